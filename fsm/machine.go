package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// errStopped is returned after a fatal error.
var errStopped = errors.New("the state machine has stopped")

// Machine is the state machine as Raft sees it: it decodes entries, applies them under a lock, and lets readers in
// between. This file is the only one of the package that knows Raft.
type Machine struct {
	fatal func(error)
	sink  func(*Result)

	mu    sync.RWMutex
	state *State
	seen  uint64 // index of the last entry or configuration that passed, never behind state.index
}

// NewMachine returns a machine in its first state. After every applied entry, and after a snapshot was restored (a
// Result with one EventReset), sink is called in the order of the log while the state is locked: it must be quick, must
// not block and must not call the machine. When fatal is called the node must exit: applying on would make two nodes
// disagree; the machine applies nothing afterwards.
func NewMachine(sink func(*Result), fatal func(error)) *Machine {
	return &Machine{state: NewState(), sink: sink, fatal: fatal}
}

// Apply implements raft.FSM. It returns a *Result, nil after a fatal error.
func (m *Machine) Apply(l *raft.Log) any {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == nil {
		return nil
	}
	e, err := DecodeEntry(l.Data)
	if err == nil {
		var r *Result
		if r, err = m.state.Apply(l.Index, l.Term, e); err == nil {
			m.seen = l.Index
			m.sink(r)
			return r
		}
	}
	m.state = nil
	m.fatal(fmt.Errorf("log entry %d: %w", l.Index, err))
	return nil
}

// StoreConfiguration implements raft.ConfigurationStore: an entry that changed the membership has passed. So Seen gets
// as far as the commit index also when the last entry was none of ours.
func (m *Machine) StoreConfiguration(index uint64, _ raft.Configuration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seen = max(m.seen, index)
}

// Snapshot implements raft.FSM; it takes constant time.
func (m *Machine) Snapshot() (raft.FSMSnapshot, error) {
	state := m.Frozen()
	if state == nil {
		return nil, errStopped
	}
	return frozen{state}, nil
}

// Frozen returns the state as it is now, for who reads it at leisure while entries go on being applied; it takes constant
// time. It is nil when the machine has stopped.
func (m *Machine) Frozen() *State {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == nil {
		return nil
	}
	return m.state.Snapshot()
}

// Restore implements raft.FSM: it replaces the state, or leaves it as it was when the snapshot is bad. After a fatal
// error it does nothing: a node that was told to exit must not come back to life.
func (m *Machine) Restore(r io.ReadCloser) error {
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		return fmt.Errorf("reading snapshot: %w", err)
	}
	s, err := Decode(b)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.state == nil {
		return errStopped
	}
	m.state, m.seen = s, s.index
	m.sink(&Result{Index: s.index, Applied: true, Clock: s.clock, Events: []Event{{Kind: EventReset}}})
	return nil
}

// Read calls f with the state, which f must not keep. Entries are not applied meanwhile, so f must be quick; many
// readers go at once. It returns false, without calling f, when the machine has stopped.
func (m *Machine) Read(f func(*State)) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.state == nil {
		return false
	}
	f(m.state)
	return true
}

// Seen returns the index of the last log entry that has passed through the machine, membership changes included.
func (m *Machine) Seen() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.seen
}

// frozen is a state that is being written to a snapshot.
type frozen struct{ state *State }

// Persist implements raft.FSMSnapshot.
func (f frozen) Persist(sink raft.SnapshotSink) error {
	if _, err := io.Copy(sink, bytes.NewReader(f.state.Encode())); err != nil {
		return errors.Join(fmt.Errorf("writing snapshot: %w", err), sink.Cancel())
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (f frozen) Release() {}
