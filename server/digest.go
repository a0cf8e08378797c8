package server

import (
	"crypto/sha256"

	"github.com/pawl-lock/pawl/fsm"
)

// Digest gives the index of the last entry that this node has applied, and a digest of its whole state there: nodes at the
// same index have the same (R1). It stops the state machine for as long as a snapshot takes to write, so it is for tests.
func (n *Node) Digest() (index uint64, digest [sha256.Size]byte) {
	n.machine.Read(func(s *fsm.State) { index, digest = s.Index(), sha256.Sum256(s.Encode()) })
	return index, digest
}
