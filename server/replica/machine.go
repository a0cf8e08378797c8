package replica

import (
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// machine is the state machine as Raft sees it. It knows how far the state machine really is (Raft's own figure counts
// what was queued for it) and which configuration was committed at which index (Raft's own figure is always 0).
type machine struct {
	raft.FSM
	snapshots *snapshots
	meter     Meter
	applied   atomic.Uint64

	mu      sync.Mutex
	members Membership
}

var _ raft.ConfigurationStore = (*machine)(nil)

func (m *machine) Apply(entry *raft.Log) any {
	began := time.Now()
	response := m.FSM.Apply(entry)
	m.meter.applied(time.Since(began))
	m.applied.Store(entry.Index)
	return response
}

func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	frozen, err := m.FSM.Snapshot()
	if err != nil {
		return nil, err
	}
	return measured{frozen, m.meter}, nil
}

// StoreConfiguration is called in the order of the log, between the entries.
func (m *machine) StoreConfiguration(index uint64, configuration raft.Configuration) {
	if store, ok := m.FSM.(raft.ConfigurationStore); ok {
		store.StoreConfiguration(index, configuration)
	}
	m.setMembers(index, configuration)
	m.applied.Store(index)
}

func (m *machine) Restore(file io.ReadCloser) error {
	if err := m.FSM.Restore(file); err != nil {
		return err
	}
	// Raft opened this snapshot a moment ago, on this goroutine. A leader that sends an older one to a follower opens
	// that too, but nothing older than what was restored last is ever noted.
	if meta := m.snapshots.read.Load(); meta != nil {
		m.setMembers(meta.ConfigurationIndex, meta.Configuration)
		m.applied.Store(meta.Index)
	}
	return nil
}

func (m *machine) setMembers(index uint64, configuration raft.Configuration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.members = Membership{Index: index, Servers: fromConfiguration(configuration)}
}

func (m *machine) committedMembers() Membership {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.members
}
