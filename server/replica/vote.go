package replica

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
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
//
// Values are kept with a checksum: bbolt has none, and a changed bit in a term could give the same vote twice.
type votes struct {
	raft.StableStore
	watchdog *watchdog

	mu   sync.Mutex
	term uint64 // of the vote that is about to be written; not yet true
}

func (v *votes) SetUint64(key []byte, value uint64) error {
	if bytes.Equal(key, keyVoteTerm) && !off(guardD4) {
		v.mu.Lock()
		v.term = value
		v.mu.Unlock()
		return nil
	}
	return v.Set(key, binary.BigEndian.AppendUint64(nil, value))
}

func (v *votes) Set(key, value []byte) error {
	if bytes.Equal(key, keyVoteCandidate) && !off(guardD4) {
		v.mu.Lock()
		key, value = keyVote, append(binary.BigEndian.AppendUint64(nil, v.term), value...)
		v.mu.Unlock()
	}
	sealed := binary.BigEndian.AppendUint32(bytes.Clone(value), crc32.Checksum(value, castagnoli))
	return v.write(func() error { return v.StableStore.Set(key, sealed) })
}

// write is fail-stop. Raft panics when its term cannot be written; so a write that failed returns only once nobody hears
// this node any more, and then as if all was well: it is being shut down.
func (v *votes) write(do func() error) error {
	_ = v.watchdog.guard(WritingVote, do)
	return nil
}

func (v *votes) GetUint64(key []byte) (uint64, error) {
	if bytes.Equal(key, keyVoteTerm) && !off(guardD4) {
		term, _, err := v.vote()
		return term, err
	}
	value, err := v.read(key)
	if err != nil {
		return 0, err
	}
	if len(value) != 8 {
		return 0, fmt.Errorf("stored %s has %d bytes: %w", key, len(value), ErrDamaged)
	}
	return binary.BigEndian.Uint64(value), nil
}

func (v *votes) Get(key []byte) ([]byte, error) {
	if bytes.Equal(key, keyVoteCandidate) && !off(guardD4) {
		_, candidate, err := v.vote()
		return candidate, err
	}
	return v.read(key)
}

// read gives a value that is as it was written.
func (v *votes) read(key []byte) ([]byte, error) {
	sealed, err := v.StableStore.Get(key)
	if err != nil {
		return nil, err
	}
	if sealed == nil {
		return nil, errNoKey
	}
	value := sealed[:max(0, len(sealed)-4)]
	if !bytes.Equal(sealed[len(value):], binary.BigEndian.AppendUint32(nil, crc32.Checksum(value, castagnoli))) {
		return nil, fmt.Errorf("stored %s: its checksum is another: %w", key, ErrDamaged)
	}
	return value, nil
}

// vote reads the last whole vote.
func (v *votes) vote() (term uint64, candidate []byte, err error) {
	value, err := v.read(keyVote)
	if err != nil {
		return 0, nil, err
	}
	if len(value) < 8 {
		return 0, nil, fmt.Errorf("stored vote has %d bytes: %w", len(value), ErrDamaged)
	}
	return binary.BigEndian.Uint64(value), value[8:], nil
}
