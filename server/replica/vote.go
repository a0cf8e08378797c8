package replica

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// Raft's keys for a vote, and ours for both in one.
var (
	keyVoteTerm      = []byte("LastVoteTerm")
	keyVoteCandidate = []byte("LastVoteCand")
	keyVote          = []byte("PawlVote")
)

// errNoKey has the text by which Raft tells a missing key from a fault; it compares nothing else.
var errNoKey = errors.New("not found")

// votes is guard D4. Raft writes a vote in two transactions, the term and then the candidate. After a crash in between,
// the new term stands beside the candidate of an older vote, and that candidate is granted the vote again without a look
// at its log: committed entries can be lost (raft#661). Here the term waits in memory and is written together with the
// candidate as one value, which also saves an election one fsync. Until then reads give the last whole vote.
type votes struct {
	raft.StableStore
	watchdog *watchdog

	mu   sync.Mutex
	term uint64 // of the vote that is about to be written; not yet true
}

func (v *votes) SetUint64(key []byte, value uint64) error {
	if bytes.Equal(key, keyVoteTerm) {
		v.mu.Lock()
		v.term = value
		v.mu.Unlock()
		return nil
	}
	return v.write(func() error { return v.StableStore.SetUint64(key, value) })
}

func (v *votes) Set(key, value []byte) error {
	if bytes.Equal(key, keyVoteCandidate) {
		v.mu.Lock()
		key, value = keyVote, append(binary.BigEndian.AppendUint64(nil, v.term), value...)
		v.mu.Unlock()
	}
	return v.write(func() error { return v.StableStore.Set(key, value) })
}

// write is fail-stop. Raft panics when its term cannot be written; so a write that failed returns only once nobody hears
// this node any more, and then as if all was well: it is being shut down.
func (v *votes) write(do func() error) error {
	_ = v.watchdog.guard(WritingVote, do)
	return nil
}

func (v *votes) GetUint64(key []byte) (uint64, error) {
	if !bytes.Equal(key, keyVoteTerm) {
		return v.StableStore.GetUint64(key)
	}
	term, _, err := v.vote()
	return term, err
}

func (v *votes) Get(key []byte) ([]byte, error) {
	if !bytes.Equal(key, keyVoteCandidate) {
		return v.StableStore.Get(key)
	}
	_, candidate, err := v.vote()
	return candidate, err
}

// vote reads the last whole vote.
func (v *votes) vote() (term uint64, candidate []byte, err error) {
	value, err := v.StableStore.Get(keyVote)
	if err != nil {
		return 0, nil, err
	}
	if value == nil {
		return 0, nil, errNoKey
	}
	if len(value) < 8 {
		return 0, nil, fmt.Errorf("stored vote has %d bytes: %w", len(value), ErrDamaged)
	}
	return binary.BigEndian.Uint64(value), value[8:], nil
}
