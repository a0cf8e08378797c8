package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server/replica"
)

// leadership is one stretch of this node's being at work as leader: from when its begin-term entry was applied until it
// is lost. Everything that only a leader may do runs under its context.
type leadership struct {
	term     uint64
	begin    uint64
	proposer *proposer
	rounds   *replica.Rounds
	claims   *claims
	ctx      context.Context // ends with it
}

var errLeadershipLost = errors.New("leadership was lost")

// followLeadership starts and ends the leader's work. It never stops listening for longer than that takes to end, never
// calls Raft itself, and ends when the replica does.
func (n *Node) followLeadership() {
	stop := func() {}
	for leads := range n.replica.Leadership() {
		// Won while leading means lost and regained: the old work ends first.
		stop()
		stop = func() {}
		if leads {
			ctx, cancel := context.WithCancelCause(n.ctx)
			done := make(chan struct{})
			go func() {
				defer close(done)
				n.lead(ctx)
			}()
			stop = func() {
				cancel(errLeadershipLost)
				<-done
			}
		}
	}
	stop()
}

// lead is the leader's work, until ctx ends. A beginning that no longer counts is made anew, which is always safe (R3).
func (n *Node) lead(ctx context.Context) {
	for ctx.Err() == nil {
		l, err := n.beginTerm(ctx)
		if err != nil {
			if ctx.Err() == nil && n.replica.IsLeader() {
				n.giveUp(ctx, err)
			}
			return
		}
		n.atWork(ctx, l)
	}
}

// beginTerm proposes the begin-term entry and waits until it is applied here: from then on everything that was
// acknowledged before is in this node's state.
func (n *Node) beginTerm(ctx context.Context) (*leadership, error) {
	limited, cancel := context.WithTimeout(ctx, beginLimit)
	defer cancel()
	begin, err := n.beginEntry()
	if err != nil {
		return nil, err
	}
	applied, err := n.replica.Submit(begin).Wait(limited)
	if err != nil {
		return nil, fmt.Errorf("beginning the term: %w", err)
	}
	result, ok := applied.Response.(*fsm.Result)
	if !ok || result == nil {
		return nil, fmt.Errorf("beginning the term: %w", replica.ErrStopped)
	}
	return &leadership{term: result.Term, begin: applied.Index}, nil
}

func (n *Node) beginEntry() ([]byte, error) {
	cluster, floor := n.clusterAndFloor()
	id, err := clusterID(cluster)
	if err != nil {
		return nil, fmt.Errorf("beginning the term: %w", err)
	}
	e := fsm.Entry{Begin: &fsm.Begin{
		Cluster: id, Floor: floor, Node: n.config.Name, URL: n.config.APIURL, Limits: n.config.Limits,
	}}
	return e.Encode()
}

// atWork proposes and answers reads until ctx ends or the beginning no longer counts.
func (n *Node) atWork(ctx context.Context, l *leadership) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errLeadershipLost)
	l.proposer = newProposer(n, l.begin, func() { cancel(errStaleStamp) })
	l.rounds = n.replica.NewRounds(ctx, l.term, roundLimit, n.askTerm)
	l.ctx, l.claims = ctx, n.findOrphans() // before anything is written under this leadership
	var working sync.WaitGroup
	working.Go(func() { l.proposer.run(ctx) })
	working.Go(func() { n.endOrphans(l) })
	n.leader.Store(l)
	n.log.Info("leading", "term", l.term, "begin", l.begin)
	<-ctx.Done()
	n.leader.Store(nil)
	working.Wait()
	n.hub.fail(fmt.Errorf("%w: %w", replica.ErrUnknown, errLeadershipLost))
	n.log.Info("no longer leading", "term", l.term, "reason", context.Cause(ctx))
}

// giveUp is for a leader that cannot begin: Raft calls it leader, so nobody else leads, and it does nothing (B12). It
// hands over, and when that fails too the process must end.
func (n *Node) giveUp(ctx context.Context, why error) {
	n.log.Error("cannot begin the term, handing leadership over", "error", why)
	limited, cancel := context.WithTimeout(ctx, beginLimit)
	defer cancel()
	if err := n.replica.Transfer(limited, n.successor(limited)); err != nil && ctx.Err() == nil && n.replica.IsLeader() {
		n.fail(fmt.Errorf("this node leads but cannot begin its term (%w), and cannot hand leadership over: %w", why, err))
	}
}

// propose puts one command through the log and returns its outcome. The error is an *transport.Error of one of the three
// kinds of R14. It blocks until the entry is applied, ctx ends, or the outcome is unknown.
func (n *Node) propose(ctx context.Context, command fsm.Command, size int) (answer, error) {
	return n.send(ctx, func() *proposal { return &proposal{command: command, size: size, done: make(chan answer, 1)} })
}

// renew puts one renewal through the log; it may wait a little for others to share its entry (R4).
func (n *Node) renew(ctx context.Context, renewal fsm.Renewal, ttl time.Duration) (answer, error) {
	hold := min(ttl/50, 100*time.Millisecond)
	return n.send(ctx, func() *proposal { return &proposal{renewal: renewal, hold: hold, done: make(chan answer, 1)} })
}

// staleTries is how often a command is proposed anew because its stamp no longer counted; unjudgedFor is for how long
// because entries had no time for it, and unjudgedPause how long is waited in between: the entry that has time is the
// leader's next tick.
const (
	staleTries    = 3
	unjudgedFor   = 5 * time.Second
	unjudgedPause = 5 * time.Millisecond
)

func (n *Node) send(ctx context.Context, build func() *proposal) (answer, error) {
	began := time.Now()
	for try := 1; ; try++ {
		l := n.leader.Load()
		if l == nil {
			return answer{}, n.notLeading()
		}
		a := l.proposer.propose(ctx, build())
		if errors.Is(a.err, errStaleStamp) && try < staleTries && n.awaitLeadership(ctx, l) {
			continue
		}
		if errors.Is(a.err, errUnjudged) && time.Since(began) < unjudgedFor && pause(ctx, unjudgedPause) {
			try-- // the stamp counted
			continue
		}
		if a.err != nil {
			return a, n.wireError(a.err)
		}
		return a, nil
	}
}

// awaitLeadership waits a moment for this node to be at work again after old ended.
func (n *Node) awaitLeadership(ctx context.Context, old *leadership) bool {
	ctx, cancel := context.WithTimeout(ctx, leaderWait)
	defer cancel()
	return n.poll(ctx, func() bool { l := n.leader.Load(); return l != nil && l != old })
}

// poll looks every few milliseconds until is is true or ctx ends. It serves what is rare and soon over, and where a signal
// would have to be carried through many hands.
func (n *Node) poll(ctx context.Context, is func() bool) bool {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !is() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return is()
		}
	}
	return true
}

// Leads reports whether this node is at work as leader at this moment; a moment later it may not be.
func (n *Node) Leads() bool { return n.leader.Load() != nil }
