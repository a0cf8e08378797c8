package replica

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// Replica is one member of the Raft cluster, or a node that wants to become one. Its methods are safe for concurrent use.
type Replica struct {
	id        string
	dir       string
	raft      *raft.Raft
	machine   *machine
	transport *transport
	database  *raftboltdb.BoltStore
	watchdog  *watchdog
	transfers *transfers
	heard     chan bool
	forwarded chan struct{} // closed when the leadership goroutine has ended
	ended     chan struct{} // closed when Raft will never answer anything again
	stop      sync.Once
	stopErr   error
}

// Open opens the files and starts Raft, which stays quiet on a node that is Empty until it is bootstrapped or hears from
// a leader. The stream layer is closed when it fails. A directory that is in use is refused with ErrInUse within 5 s, one
// that cannot be trusted with ErrDamaged, its path and the repair; both are for a person to read.
func Open(config Config) (*Replica, error) {
	opened, err := open(config)
	if err != nil && config.Stream != nil {
		_ = config.Stream.Close()
	}
	return opened, err
}

func open(config Config) (_ *Replica, err error) {
	if err := config.Validate(); err != nil {
		return nil, fmt.Errorf("replica configuration: %w", err)
	}
	config.Snapshots = config.Snapshots.orDefaults()
	if config.Timing == (Timing{}) {
		config.Timing, _ = Profile("default")
	}
	if config.Logger == nil {
		config.Logger = hclog.NewNullLogger()
	}
	logger := newQuiet(config.Logger)

	files, err := openSnapshots(config.Dir, logger)
	if err != nil {
		return nil, err
	}
	newest, err := files.newestIndex()
	if err != nil {
		return nil, fmt.Errorf("listing the snapshots: %w", err)
	}
	database, err := openDatabase(config.Dir, config.New && newest == 0)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = database.Close()
		}
	}()
	if err := checkGap(config.Dir, database, newest); err != nil {
		return nil, err
	}

	dog := newWatchdog(config.Fatal)
	dog.meter, dog.disk = config.Meter, config.Disk
	r := &Replica{
		id:        config.ID,
		dir:       config.Dir,
		machine:   &machine{FSM: config.FSM, snapshots: files, meter: config.Meter},
		database:  database,
		watchdog:  dog,
		transfers: &transfers{patience: 2 * config.Timing.Election, fatal: dog.fail},
		heard:     make(chan bool),
		forwarded: make(chan struct{}),
		ended:     make(chan struct{}),
	}
	log := &logs{LogStore: database, watchdog: dog}
	var store raft.LogStore = log
	if config.wrapLogs != nil {
		store = config.wrapLogs(store)
	}
	cache, err := raft.NewLogCache(logCacheSize, store)
	if err != nil {
		dog.stop()
		return nil, fmt.Errorf("making the log cache: %w", err)
	}
	notify := make(chan bool, notifyPlaces)
	r.transport = newTransport(config.Stream, logger)
	r.transport.meter = config.Meter
	r.raft, err = startRaft(config.raftSettings(notify, logger), r.machine, cache, &votes{StableStore: database, watchdog: dog}, files, r.transport)
	if err != nil {
		_ = r.transport.Close()
		dog.stop()
		return nil, damaged(config.Dir, fmt.Errorf("starting raft: %w", err))
	}
	log.running.Store(true)

	has := func(index, term uint64) bool {
		var entry raft.Log
		return index <= max(r.raft.AppliedIndex(), r.raft.CommitIndex()) ||
			cache.GetLog(index, &entry) == nil && entry.Term == term
	}
	files.guard(has)
	go func() {
		defer close(r.forwarded)
		forwardLeadership(notify, r.heard, r.ended)
	}()
	r.transport.start(&screen{
		self:       config.ID,
		members:    r.Servers,
		free:       func() (uint64, error) { return freeBytes(config.Dir) },
		has:        has,
		term:       r.Term,
		installing: &files.installing,
	})
	return r, nil
}

// startRaft turns the library's panics over files that it cannot read into errors.
func startRaft(settings *raft.Config, fsm raft.FSM, logs raft.LogStore, stable raft.StableStore, files raft.SnapshotStore, t raft.Transport) (r *raft.Raft, err error) {
	defer func() {
		if caught := recover(); caught != nil {
			err = fmt.Errorf("%v", caught)
		}
	}()
	return raft.NewRaft(settings, fsm, logs, stable, files, t)
}

// checkGap refuses a log that does not reach back to the newest snapshot: a snapshot is missing.
func checkGap(dir string, database *raftboltdb.BoltStore, newest uint64) error {
	first, err := database.FirstIndex()
	if err != nil {
		return fmt.Errorf("reading the log: %w", err)
	}
	if first > newest+1 {
		return damaged(dir, fmt.Errorf("the log begins at entry %d, the newest snapshot ends at %d", first, newest))
	}
	return nil
}

// Empty says that this node has no log entry and no snapshot: it may be formed into a cluster, or join one.
func (r *Replica) Empty() bool { return r.raft.LastIndex() == 0 }

// Leadership gives every change, in order: true when this node begins to lead, false when it no longer does. A listener
// that is slow may miss a loss together with the gain after it, or the other way round, never the last change. It is closed by
// Shutdown. There is one channel: for one listener.
func (r *Replica) Leadership() <-chan bool { return r.heard }

// What follows are hints: they were true a moment ago.

// IsLeader says whether this node believes that it leads.
func (r *Replica) IsLeader() bool { return r.raft.State() == raft.Leader }

// Term is the newest term this node has heard of. It never goes back; it is what a peer's read round is answered with.
func (r *Replica) Term() uint64 { return r.raft.CurrentTerm() }

// LastIndex is the index of the newest entry or snapshot here.
func (r *Replica) LastIndex() uint64 { return r.raft.LastIndex() }

// CommitIndex is the newest index this node knows to be committed. After a restart it is 0 until a leader is heard.
func (r *Replica) CommitIndex() uint64 { return r.raft.CommitIndex() }

// AppliedIndex is the index that the state machine itself has reached. Raft's own entries (one at the beginning of each
// term) do not reach it, so it may stay below CommitIndex until the first entry of the term.
func (r *Replica) AppliedIndex() uint64 { return r.machine.applied.Load() }

// Leader is the leader that this node knows, or two empty strings.
func (r *Replica) Leader() (id, address string) {
	a, i := r.raft.LeaderWithID()
	return string(i), string(a)
}

// LastContact is when this follower last heard from its leader; zero if never.
func (r *Replica) LastContact() time.Time { return r.raft.LastContact() }

// Snapshot makes a snapshot now and cuts the log. Nothing new to write is no error.
func (r *Replica) Snapshot(ctx context.Context) error {
	err := r.await(ctx, r.raft.Snapshot())
	if err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return fmt.Errorf("making a snapshot: %w", err)
	}
	return nil
}

// Stats are the library's figures by name, for people and metrics. Not for every request: it formats them all.
func (r *Replica) Stats() map[string]string { return r.raft.Stats() }

// shutdownLimit bounds the wait for Raft's goroutines, which may be at a disk that does not answer.
const shutdownLimit = 5 * time.Second

// Shutdown stops the replica, in at most 5 s or until the context ends. In this order: the connections, so that nothing
// more is said and no exchange with a peer that does not answer is waited for; Raft; the stores last. When Raft could not
// be stopped its files are left open, an error is returned and the process should exit. Membership and leadership are not
// its business: hand over before. Later calls give the first one's result.
func (r *Replica) Shutdown(ctx context.Context) error {
	r.stop.Do(func() { r.stopErr = r.shutdown(ctx) })
	return r.stopErr
}

func (r *Replica) shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shutdownLimit)
	defer cancel()
	_ = r.transport.Close() // the listener's error changes nothing: nobody is heard from here on
	r.watchdog.release()    // now failed writes may return
	stopped := make(chan struct{})
	future := r.raft.Shutdown()
	go func() {
		defer close(stopped)
		_ = future.Error() // always nil
	}()
	var late error
	select {
	case <-stopped:
	case <-ctx.Done():
		late = fmt.Errorf("stopping raft: %w", context.Cause(ctx))
	}
	close(r.ended) // whoever still waits for a future
	<-r.forwarded
	r.watchdog.stop()
	if late != nil {
		return late
	}
	if err := r.database.Close(); err != nil {
		return fmt.Errorf("closing the log store: %w", err)
	}
	return nil
}
