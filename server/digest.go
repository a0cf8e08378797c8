package server

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
)

// Digest gives the index of the last entry that this node has applied, and a digest of its whole state there: nodes at the
// same index have the same (R1). It takes as long as a snapshot takes to write, beside the work of the state machine.
func (n *Node) Digest() (index uint64, digest [sha256.Size]byte) {
	state := n.machine.Frozen()
	if state == nil { // it has stopped
		return 0, digest
	}
	return state.Index(), sha256.Sum256(state.Encode())
}

type digestAnswer struct {
	Index  uint64 `json:"index"`
	Digest string `json:"digest"` // hex
}

// digestOf tells who compares nodes, one at a time: a state may be large.
func (n *Node) digestOf(*http.Request, *struct{}) (*digestAnswer, error) {
	if !n.digesting.TryLock() {
		return nil, errors.New("a digest is being made")
	}
	defer n.digesting.Unlock()
	index, digest := n.Digest()
	return &digestAnswer{index, hex.EncodeToString(digest[:])}, nil
}
