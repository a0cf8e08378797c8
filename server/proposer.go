package server

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server/replica"
)

// errStaleStamp: the entry was stamped under a beginning that no longer counts. Nothing came of it (R3).
// errUnjudged: the entry had so much to end and grant that it left the command out.
var errUnjudged = fmt.Errorf("%w: the entry had no time for the command", replica.ErrNotApplied)

var errStaleStamp = fmt.Errorf("%w: the entry's stamp no longer counted", replica.ErrNotApplied)

// proposal is one command on its way into the log. Either Command or Renewal is set.
type proposal struct {
	command fsm.Command
	renewal fsm.Renewal
	size    int           // bytes, about
	hold    time.Duration // how long a renewal may wait for company (R4)

	state atomic.Int32 // queued, then taken by the proposer or withdrawn by its caller
	done  chan answer  // holds one
}

const (
	proposalQueued int32 = iota
	proposalTaken
	proposalWithdrawn
)

// answer is what became of a proposal. Its error is nil or wraps replica.ErrNotApplied or replica.ErrUnknown (R14).
type answer struct {
	outcome fsm.Outcome
	index   uint64
	clock   uint64 // the lease clock at the entry
	err     error
}

// proposer is the leader's one writer: it puts what arrives together into one entry, while a few earlier ones are on
// their way, so that Raft's cost per entry is shared under load and a lone command waits for nobody (R2). It also ticks
// when something is due. It belongs to one leadership and ends with its context.
type proposer struct {
	begin   uint64    // index of the begin-term entry
	since   time.Time // when this node learned that it was applied; the stamps count from here
	replica *replica.Replica
	machine *fsm.Machine
	wrote   *atomic.Pointer[time.Time] // when the last entry was applied

	commands chan *proposal
	renewals chan *proposal
	landed   chan error    // an entry was answered
	ended    chan struct{} // run has returned: what is still queued is nobody's
	broken   func()        // called when a stamp no longer counts
	full     func()        // called when a request is refused because the queue is full
}

func newProposer(n *Node, begin uint64, broken func()) *proposer {
	return &proposer{
		begin: begin, since: time.Now(), replica: n.replica, machine: n.machine, wrote: &n.wrote, broken: broken, full: n.metrics.queueFull.Inc,
		commands: make(chan *proposal, maxQueue), renewals: make(chan *proposal, maxQueue), landed: make(chan error, maxInFlight),
		ended: make(chan struct{}),
	}
}

var errQueueFull = errors.New("too many requests wait for the log")

// propose hands a command to the proposer and waits for its outcome. ctx ends the waiting: with ErrNotApplied when the
// command was not taken yet, else with ErrUnknown.
func (p *proposer) propose(ctx context.Context, x *proposal) answer {
	queue := p.commands
	if x.command == nil {
		queue = p.renewals
	}
	select {
	case queue <- x:
	default:
		p.full()
		return answer{err: fmt.Errorf("%w: %w", replica.ErrNotApplied, errQueueFull)}
	}
	select {
	case a := <-x.done:
		return a
	case <-p.ended:
		if x.state.CompareAndSwap(proposalQueued, proposalWithdrawn) {
			return answer{err: fmt.Errorf("%w: %w", replica.ErrNotApplied, errLeadershipLost)}
		}
		return <-x.done // it was taken, and whoever took it answers
	case <-ctx.Done():
	}
	if x.state.CompareAndSwap(proposalQueued, proposalWithdrawn) {
		return answer{err: fmt.Errorf("%w: %w", replica.ErrNotApplied, context.Cause(ctx))}
	}
	select {
	case a := <-x.done: // it came in the same instant
		return a
	default:
		return answer{err: fmt.Errorf("%w: %w", replica.ErrUnknown, context.Cause(ctx))}
	}
}

// tickPause is how long the proposer waits before it ticks again when Raft has refused an entry.
const tickPause = 50 * time.Millisecond

// run works until ctx ends, and then refuses what it has not handed to Raft.
func (p *proposer) run(ctx context.Context) {
	var (
		held     []*proposal // renewals that wait for an entry to ride on
		flush    = stoppedTimer()
		flushAt  time.Time // the earliest that one of them asks for
		tick     = stoppedTimer()
		inFlight int
		pause    time.Duration
	)
	defer close(p.ended)
	defer flush.Stop()
	defer tick.Stop()
	for {
		if inFlight == 0 {
			tick.Reset(max(p.nextTick(time.Now()), pause))
		} else {
			tick.Stop() // the entry on its way is as good as a tick
		}
		commands, renewals := p.commands, p.renewals
		if inFlight == maxInFlight {
			commands = nil
		}
		if len(held) == fsm.MaxRenewals {
			renewals = nil
		}
		var batch []*proposal
		propose := false
		select {
		case x := <-commands:
			batch, propose = append(batch, x), true
		case x := <-renewals:
			// A short session's renewal does not wait as long as a long one's may.
			if at := time.Now().Add(x.hold); len(held) == 0 || at.Before(flushAt) {
				flushAt = at
				flush.Reset(x.hold)
			}
			if held = append(held, x); len(held) == fsm.MaxRenewals {
				flush.Reset(0)
			}
		case <-flush.C:
			propose = len(held) > 0
		case <-tick.C:
			propose = inFlight == 0
		case err := <-p.landed:
			inFlight--
			pause = 0
			if err != nil {
				pause = tickPause
			}
			if errors.Is(err, errStaleStamp) {
				p.broken()
			}
		case <-ctx.Done():
			refuse(held, context.Cause(ctx))
			return
		}
		if propose && inFlight < maxInFlight {
			batch = p.gather(batch)
			held = p.gatherRenewals(held)
			if p.submit(ctx, batch, held) {
				inFlight++
			}
			held = nil
			flush.Stop()
		} else if propose && len(held) > 0 {
			flush.Reset(time.Millisecond) // all places are taken: one is free in a moment
		}
	}
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// gather takes what else has arrived, as far as one entry holds it.
func (p *proposer) gather(batch []*proposal) []*proposal {
	size := 0
	for _, x := range batch {
		size += x.size
	}
	for len(batch) < fsm.MaxCommands-1 && size < maxEntryBytes { // one place is kept for the renewals
		select {
		case x := <-p.commands:
			batch = append(batch, x)
			size += x.size
		default:
			return batch
		}
	}
	return batch
}

func (p *proposer) gatherRenewals(held []*proposal) []*proposal {
	for len(held) < fsm.MaxRenewals {
		select {
		case x := <-p.renewals:
			held = append(held, x)
		default:
			return held
		}
	}
	return held
}

// submit hands one entry to Raft and has its outcomes delivered. It reports whether an entry is on its way.
func (p *proposer) submit(ctx context.Context, batch, renewals []*proposal) bool {
	batch, renewals = taken(batch), taken(renewals)
	e := fsm.Entry{Stamp: fsm.Stamp{Begin: p.begin}, Wall: uint64(time.Now().UnixMilli())}
	for _, x := range batch {
		e.Commands = append(e.Commands, x.command)
	}
	if len(renewals) > 0 {
		renew := &fsm.Renew{Sessions: make([]fsm.Renewal, len(renewals))}
		for i, x := range renewals {
			renew.Sessions[i] = x.renewal
		}
		e.Commands = append(e.Commands, renew)
	}
	// Immediately before the entry is handed to Raft: a stamp must not claim time that passed afterwards, and claiming
	// less is safe (R3).
	e.Stamp.Elapsed = uint64(time.Since(p.since).Milliseconds())
	data, err := e.Encode()
	if err != nil {
		refuse(append(batch, renewals...), err)
		return false
	}
	pending := p.replica.Submit(data)
	go func() { // ends with Raft's answer, or with this leadership
		applied, err := pending.Wait(ctx)
		err = p.deliver(applied, err, batch, renewals)
		select {
		case p.landed <- err:
		case <-ctx.Done():
		}
	}()
	return true
}

func (p *proposer) deliver(applied replica.Applied, err error, batch, renewals []*proposal) error {
	result, _ := applied.Response.(*fsm.Result)
	switch {
	case err != nil:
	case result == nil: // the state machine has stopped this node
		err = fmt.Errorf("%w: %w", replica.ErrUnknown, replica.ErrStopped)
	case !result.Applied:
		err = errStaleStamp
	default:
		now := time.Now()
		p.wrote.Store(&now)
		for i, x := range batch {
			a := answer{outcome: result.Outcomes[i], index: result.Index, clock: result.Clock}
			if a.outcome.Code == fsm.Unjudged {
				a = answer{err: errUnjudged}
			}
			x.done <- a
		}
		for i, x := range renewals {
			x.done <- answer{outcome: result.Outcomes[len(batch)].Renewals[i], index: result.Index, clock: result.Clock}
		}
		return nil
	}
	for _, x := range append(batch, renewals...) {
		x.done <- answer{err: err}
	}
	return err
}

// refuse answers what was not handed to Raft.
func refuse(held []*proposal, why error) {
	for _, x := range held {
		x.done <- answer{err: fmt.Errorf("%w: %w", replica.ErrNotApplied, why)}
	}
}

// taken keeps what its callers have not withdrawn.
func taken(batch []*proposal) []*proposal {
	kept := batch[:0]
	for _, x := range batch {
		if x.state.CompareAndSwap(proposalQueued, proposalTaken) {
			kept = append(kept, x)
		}
	}
	return kept
}

// idleLow and idleHigh bound how long no entry may go by while a session lives, so that the time that passed is not lost
// at a change of leaders (R3).
const (
	idleLow  = 1 * time.Second
	idleHigh = 60 * time.Second
)

// nextTick is how long the proposer may sleep before an entry is needed though nobody asks for one.
func (p *proposer) nextTick(now time.Time) time.Duration {
	const idle = time.Hour
	var need fsm.Schedule
	if !p.machine.Read(func(s *fsm.State) { need = s.Schedule() }) {
		return idle
	}
	if need.Backlog || need.Begin != p.begin {
		// Under another beginning the tick is answered as stale, and this leader begins anew; if nothing were proposed the
		// clock would stand still until somebody asks for something.
		return 0
	}
	wait := idle
	elapsed := now.Sub(p.since)
	stamped := time.Duration(need.Elapsed) * time.Millisecond
	if need.Due != ^uint64(0) {
		// The clock must be above the deadline: one millisecond more.
		ahead := need.Due + 1 - min(need.Clock, need.Due+1)
		wait = min(wait, stamped+time.Duration(min(ahead, uint64(idle/time.Millisecond)))*time.Millisecond-elapsed)
	}
	if need.ShortestTTL > 0 {
		often := min(max(time.Duration(need.ShortestTTL)*time.Millisecond/10, idleLow), idleHigh)
		wait = min(wait, stamped+often-elapsed)
	}
	return max(wait, 0)
}
