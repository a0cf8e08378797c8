package script

import (
	"context"
	"time"

	"github.com/pawl-lock/pawl/jepsen/check"
	"github.com/pawl-lock/pawl/jepsen/cluster"
	"github.com/pawl-lock/pawl/jepsen/cluster/virtual"
	"github.com/pawl-lock/pawl/jepsen/history"
	"github.com/pawl-lock/pawl/jepsen/runner"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/server/replica"
)

// oneIndex is D1. The old leader hears of the new one by a heartbeat only, and is asked for a lock then: it must not write
// that with the new leader's term, at the index where the new leader began.
var oneIndex = runner.Script{
	Name: "one-index", About: "a deposed leader hears a heartbeat of the new one first, and is asked for a lock (guard D1)", Clients: 2, Locks: []string{lock},
	Checkers: []check.Checker{check.Exclusion{}, check.Tokens{}},
	Play: func(ctx context.Context, c *virtual.Cluster, h *history.History, _ uint64) error {
		s, old, err := begin(ctx, c, h)
		if err != nil {
			return err
		}
		next, third := others(old)
		handOver, err := s.afoot(old, next)
		if err != nil {
			return err
		}
		// The third votes for the next leader, and the old one hears of it by nobody but by heartbeats.
		quiet := s.Hold(old, third, virtual.Append, virtual.Heartbeat)
		silent := s.Hold(old, next, virtual.Append, virtual.Heartbeat)
		late := s.Hold(next, old, virtual.Vote, virtual.Append)
		heartbeat := s.Hold(next, old, virtual.Heartbeat)
		handOver.Release()
		if err := s.until("the next leader", func() bool { return s.Leads(next) }); err != nil {
			return err
		}
		// The heartbeat comes just before the request: between them nothing else wakes the old leader.
		if err := s.until("a heartbeat", func() bool { return heartbeat.Count() > 0 }); err != nil {
			return err
		}
		heartbeat.Release()
		_, _ = s.acquire(0, old, lock) // whatever comes of it
		_ = s.Sleep(ctx, time.Second)
		for _, hold := range []*pawltest.Hold{late, quiet, silent} {
			hold.Release()
		}
		return s.settle()
	},
}

// staleRead is D2. A voter's answer to an old heartbeat arrives at the old leader when the voter follows another one already,
// and that one has granted a lock.
var staleRead = runner.Script{
	Name: "stale-read", About: "a deposed leader is asked who holds a lock, and has late answers to its heartbeats (guard D2)", Clients: 3, Locks: []string{lock},
	Checkers: []check.Checker{check.Exclusion{}, check.Tokens{}, check.Reads{}},
	Play: func(ctx context.Context, c *virtual.Cluster, h *history.History, _ uint64) error {
		s, old, err := begin(ctx, c, h)
		if err != nil {
			return err
		}
		next, third := others(old)
		handOver, err := s.afoot(old, next)
		if err != nil {
			return err
		}
		answers := s.Hold(third, old, virtual.Answer)
		silent := s.Hold(old, next, virtual.Append, virtual.Heartbeat)
		late := s.Hold(next, old, virtual.Vote, virtual.Append, virtual.Heartbeat)
		_ = s.Sleep(ctx, 110*time.Millisecond) // a heartbeat, and an append, wait for their answers
		handOver.Release()
		if err := s.until("the next leader", func() bool { return s.Leads(next) }); err != nil {
			return err
		}
		g, err := s.acquire(1, next, lock)
		if err != nil {
			return err
		}
		_ = s.Sleep(ctx, time.Millisecond) // what ends when another thing begins is not before it
		looked := make(chan struct{})
		go func() {
			defer close(looked)
			_ = s.look(2, old, lock)
		}()
		_ = s.Sleep(ctx, 5*time.Millisecond)
		answers.Release()
		<-looked
		late.Release()
		silent.Release()
		if err := s.settle(); err != nil {
			return err
		}
		if err := s.look(2, next, lock); err != nil { // so that there is one, when the first is refused
			return err
		}
		return s.release(1, next, g)
	},
}

// refusedAppend is D3. A follower's disk fails once, while answers to the leader are late. That the node stops then (fail-stop)
// hides the defect: it is seen with both guards off.
var refusedAppend = runner.Script{
	Name: "refused-append", About: "a follower cannot write once, while its answers are late (guard D3, behind fail-stop)", Clients: 1, Locks: []string{lock},
	Checkers: []check.Checker{check.Exclusion{}, check.Tokens{}},
	Play: func(ctx context.Context, c *virtual.Cluster, h *history.History, _ uint64) error {
		s, leader, err := begin(ctx, c, h)
		if err != nil {
			return err
		}
		victim, _ := others(leader)
		// Whether the leader sends once more, or sees that it was refused, is a matter of chance each time.
		const tries = 10
		for range tries {
			late := s.Hold(victim, leader, virtual.Answer)
			s.FailAppend(victim)
			for range 5 {
				if err := s.turn(0, leader, lock); err != nil {
					return err
				}
				_ = s.Sleep(ctx, 50*time.Millisecond)
			}
			late.Release()
			for range 5 {
				if err := s.turn(0, leader, lock); err != nil {
					return err
				}
			}
			_ = s.Sleep(ctx, 2*time.Second)
			if !s.Runs(victim) || !s.same(leader, victim) {
				break
			}
		}
		return s.settle()
	},
}

// halfVote is D4. A node that once voted for another stops while it writes a later vote, and the other one, which lacks what
// was granted since, asks for that vote. The seed says before which write it stops: 1 to 3.
var halfVote = runner.Script{
	Name: "half-vote", About: "a node stops while it writes its vote; seeds 1 to 3: before which write (guard D4)", Clients: 2, Locks: []string{lock},
	Checkers: []check.Checker{check.Exclusion{}, check.Tokens{}},
	Play: func(ctx context.Context, c *virtual.Cluster, h *history.History, seed uint64) error {
		s, leader, err := begin(ctx, c, h)
		if err != nil {
			return err
		}
		voter, behind := others(leader)
		// The voter votes for the one that will be behind, and not for the leader that follows.
		if err := s.lead(behind); err != nil {
			return err
		}
		unasked := s.Hold(leader, voter, virtual.Vote)
		if err := s.lead(leader); err != nil {
			return err
		}
		if err := s.inStep(); err != nil {
			return err
		}
		unasked.Release()
		// It keeps connections to the voter from its time as leader: they would break, and Raft asks for a vote but once.
		if err := s.Kill(behind); err != nil {
			return err
		}
		if err := s.Start(behind); err != nil {
			return err
		}
		handOver, err := s.afoot(leader, behind)
		if err != nil {
			return err
		}
		missed := s.Hold(leader, behind, virtual.Append)
		if _, err := s.acquire(0, leader, lock); err != nil {
			return err
		}
		if err := s.until("the grant at the voter", func() bool { return s.same(leader, voter) }); err != nil {
			return err
		}
		// The voter is to lead, votes for itself, and stops.
		s.CrashAtVote(voter, int((seed-1)%3))
		go func() { _ = s.Transfer(voter) }()
		_ = s.Sleep(ctx, 20*time.Millisecond)
		deposed := s.Hold(leader, voter, virtual.Append, virtual.Heartbeat)
		if err := s.Start(voter); err != nil {
			return err
		}
		handOver.Release()
		_ = s.Sleep(ctx, 3*time.Second)
		next, err := s.leader()
		if err != nil {
			return err
		}
		_, _ = s.acquire(1, next, lock) // is held, unless the grant was lost
		deposed.Release()
		missed.Release()
		return s.settle()
	},
}

// staleTail is D7. A leader is cut off with entries that never commit, gets a snapshot of what was done without it, leads
// again, and a node without data joins: it must not be given the entries that never were.
var staleTail = runner.Script{
	Name: "stale-tail", About: "a node that got a snapshot leads, and a wiped one joins (guard D7)", Clients: 5, Locks: []string{lock},
	Checkers:  []check.Checker{check.Exclusion{}, check.Tokens{}},
	Snapshots: replica.SnapshotPolicy{Interval: 5 * time.Second, Threshold: 300, Trailing: 300},
	Play: func(ctx context.Context, c *virtual.Cluster, h *history.History, _ uint64) error {
		s, old, err := begin(ctx, c, h)
		if err != nil {
			return err
		}
		// The library sends 256 entries at once, here those from 1: the last of them are to be of the tail.
		const batch = 256
		at := uint64(0)
		for at < batch-3 {
			if err := s.turn(0, old, lock); err != nil {
				return err
			}
			if at, err = s.digest(old); err != nil {
				return err
			}
		}
		if err := s.inStep(); err != nil {
			return err
		}
		a, b := others(old)
		for _, other := range []int{a, b} {
			_, _ = s.Cut(old, other), s.Cut(other, old)
		}
		for i := range 4 {
			// Each an entry of its own, as long as four are on their way.
			name := string(rune('b' + i))
			go func() {
				_, _ = s.call(1+i, old, "/v1/acquire", map[string]any{"name": name, "owner": "cut off", "ttl_ms": ttl.Milliseconds()}, new(any))
			}()
			_ = s.Sleep(ctx, 2*time.Millisecond)
		}
		if err := s.until("another leader", func() bool { return s.Leads(a) || s.Leads(b) }); err != nil {
			return err
		}
		next, wiped := a, b
		if s.Leads(b) {
			next, wiped = b, a
		}
		for at < 2*batch+100 { // until the log is cut behind what the old leader has
			if at, err = s.digest(next); err != nil {
				return err
			}
			if err := s.turn(0, next, lock); err != nil {
				return err
			}
		}
		_ = s.Sleep(ctx, 12*time.Second)
		if err := s.Heal(); err != nil {
			return err
		}
		if err := s.lead(old); err != nil {
			return err
		}
		if err := s.Kill(wiped); err != nil {
			return err
		}
		if err := s.Wipe(wiped); err != nil {
			return err
		}
		snapshot := s.Hold(old, wiped, virtual.Snapshot) // it would soon repair what was done
		if err := s.Start(wiped); err != nil {
			return err
		}
		for end := s.Now() + 5*time.Second; s.Now() < end; {
			_ = s.Sleep(ctx, 100*time.Millisecond)
			if _, err := s.digest(wiped); err != nil {
				return err
			}
		}
		snapshot.Release()
		return s.settle()
	},
}

// same says whether two nodes have the same index.
func (s *stage) same(a, b int) bool {
	one, _, err := s.Digest(s.ctx, a)
	other, _, failed := s.Digest(s.ctx, b)
	return err == nil && failed == nil && one == other
}

// settle waits until all is well again, and writes something more.
func (s *stage) settle() error {
	for i := range s.Size() {
		if err := s.Cluster.Disk(i, cluster.DiskFine, 0); err != nil {
			return err
		}
		if err := s.Start(i); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	if err := s.Ready(ctx); err != nil {
		return err
	}
	leader, err := s.leader()
	if err != nil {
		return err
	}
	return s.turn(0, leader, "other")
}
