package replica

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// Config is what a replica is made of. Zero values of Timing, Snapshots and Logger mean the defaults.
type Config struct {
	// ID is Raft's server id, name.incarnation; never used again for another data directory (design, Membership).
	ID string
	// Address is Raft's server address, host:port/incarnation. It must be what Stream.Addr says: votes are kept by it.
	Address string
	// Dir holds raft.db and snapshots/; it must exist.
	Dir string
	// New says that this directory has never been opened as a replica: only then may raft.db be missing or empty. A node
	// that lost its log and votes and goes on under its old id can make the cluster lose committed entries.
	New bool
	// FSM is the state machine. If it is a raft.ConfigurationStore too, it is told of configurations.
	FSM raft.FSM
	// Stream carries Raft's connections, after the handshake. The replica closes it, with all its connections.
	Stream    raft.StreamLayer
	Timing    Timing
	Snapshots SnapshotPolicy
	Logger    hclog.Logger
	Meter     Meter
	// Fatal is called once, from any goroutine, when the node must not go on. A process exits in it. If it returns, the
	// replica says nothing more to anybody and waits for Shutdown.
	Fatal func(reason string)

	// Disk is put around every write of the log and of votes, when it is set: tests of whole clusters have disks there that
	// are slow, hang or fail. It calls write, or gives an error.
	Disk func(what string, write func() error) error

	// wrapLogs lets tests put a faulty store between Raft and the guards.
	wrapLogs func(raft.LogStore) raft.LogStore
}

// SnapshotPolicy says when the log is cut: every Interval (to twice that) it is looked whether Threshold entries came
// since the last snapshot; Trailing of them stay for followers that are behind.
type SnapshotPolicy struct {
	Interval  time.Duration // zero: 30 s
	Threshold uint64        // zero: 16,384 entries
	Trailing  uint64        // zero: 65,536 entries; far above what can be in flight (raft#697)
}

func (p SnapshotPolicy) orDefaults() SnapshotPolicy {
	if p.Interval == 0 {
		p.Interval = 30 * time.Second
	}
	if p.Threshold == 0 {
		p.Threshold = 16384
	}
	if p.Trailing == 0 {
		p.Trailing = 65536
	}
	return p
}

// Validate says what is missing or cannot work. It looks at nothing outside the value.
func (c Config) Validate() error {
	var found []error
	need := func(ok bool, what string) {
		if !ok {
			found = append(found, errors.New(what))
		}
	}
	need(c.ID != "", "replica needs an id")
	need(c.Address != "", "replica needs an address")
	need(c.Dir != "", "replica needs a data directory")
	need(c.FSM != nil, "replica needs a state machine")
	need(c.Stream != nil, "replica needs a stream layer")
	need(c.Fatal != nil, "replica needs to know how to stop the process")
	if c.Stream != nil && c.Stream.Addr().String() != c.Address {
		found = append(found, fmt.Errorf("stream layer calls itself %q, the replica %q: votes are recorded by address",
			c.Stream.Addr(), c.Address))
	}
	if c.Timing != (Timing{}) {
		found = append(found, c.Timing.Validate())
	}
	return errors.Join(found...)
}

const (
	// maxAppendEntries bounds one batch; 64 caps throughput, more than 256 gains nothing (measured).
	maxAppendEntries = 256
	// logCacheSize keeps followers from reading the store again: below 4 batches it misses (measured).
	logCacheSize = 4 * maxAppendEntries
	// retainSnapshots keeps the one before the newest for people to look at; it is never started from.
	retainSnapshots = 2
)

// raftSettings are the library's settings. RestoreCommittedLogs (D5) does not exist in v1.7.3 and must stay false where
// it does: with it a node comes back with an empty configuration, or never.
func (c Config) raftSettings(notify chan<- bool, logger hclog.Logger) *raft.Config {
	s := raft.DefaultConfig()
	s.LocalID = raft.ServerID(c.ID)
	s.HeartbeatTimeout, s.ElectionTimeout, s.LeaderLeaseTimeout = c.Timing.Heartbeat, c.Timing.Election, c.Timing.Lease
	s.CommitTimeout = 50 * time.Millisecond
	s.MaxAppendEntries = maxAppendEntries
	// Off: only then does a refused hand-off mean that the entry is not in the log (R14).
	s.BatchApplyCh = false
	// A removed node tells its users so; it does not vanish.
	s.ShutdownOnRemove = false
	s.SnapshotInterval, s.SnapshotThreshold, s.TrailingLogs = c.Snapshots.Interval, c.Snapshots.Threshold, c.Snapshots.Trailing
	s.NoLegacyTelemetry = true
	s.NotifyCh = notify
	s.Logger = logger
	return s
}
