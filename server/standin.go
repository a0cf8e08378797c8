package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server/replica"
	"github.com/pawl-lock/pawl/transport"
)

// A caller that waits without number or key cannot ask again, so the node that it asked does that in its stead: it names the
// wait, and repeats it by that name at whoever leads. The leader knows for each such wait whether somebody stands in for
// it. Under one leadership a wait ends with the call that stands in for it; what waited when a leadership began and is not
// claimed soon afterwards has nobody any more, and the leader takes it back. A node whose caller is gone says so to whoever
// leads (farewell.go). All of that costs no entries while all is quiet.
//
// So a grant is told only by a call that has claimed the wait under the leadership that made the grant: no other leader
// takes that one back.
//
// What is left by nature: a grant whose answer was on its way when the caller vanished (or the leader, if it was the node
// that was asked) is held by nobody until its TTL has passed. It is at most one for a lock. And when the node that was asked
// has died, so is what is granted to its callers under leaderships that each last less than orphanPatience.

// standIn is what a node knows of a wait that it repeats in its caller's stead.
type standIn struct {
	id      fsm.ID        // of the session that the wait opens
	arrived time.Time     // at the node that was asked, which alone repeats
	wait    time.Duration // how long its caller wants to wait
	before  time.Duration // how long it had waited before this try
	tried   time.Time     // when this try began
	lost    time.Time     // since when there has been no leader to wait at
	handed  bool          // something may have come of an earlier try
	pause   time.Duration // before the next
	names   int           // how often it was named anew
}

const (
	firstPause = 10 * time.Millisecond  // before a wait is repeated
	lastPause  = 500 * time.Millisecond // the same, when that has failed often: many may wait for one leader
	maxNames   = 3

	// outagePatience is how long a caller is kept while there is no leader that this node can reach. An election is over by
	// then; if this node alone is cut off its caller gets on better elsewhere.
	outagePatience = 10 * time.Second

	// orphanPatience is how long a new leader waits for somebody to stand in for a wait that it found. Who can does within
	// the time that an entry needs to reach all nodes.
	orphanPatience = 2 * time.Second
)

// standInFor has this node stand in for a call that waits without number or key. One that was passed on is named by the
// node that passed it on.
func standInFor(c *call, wait time.Duration) error {
	s := &standIn{arrived: time.Now(), tried: time.Now(), wait: wait, pause: firstPause}
	c.standIn = s
	if text := c.request.Header.Get(transport.HeaderWait); c.forwarded && text != "" {
		id, before, _ := strings.Cut(text, " ")
		b, err1 := hex.DecodeString(id)
		ms, err2 := strconv.ParseUint(before, 10, 32)
		if err1 != nil || err2 != nil || len(b) != len(s.id) {
			return badField(transport.HeaderWait, "is malformed")
		}
		copy(s.id[:], b)
		s.before = time.Duration(ms) * time.Millisecond
		return nil
	}
	rand.Read(s.id[:])
	return nil
}

// header says it to the leader.
func (s *standIn) header() string { return fmt.Sprintf("%x %d", s.id, s.before.Milliseconds()) }

// left is what is left of the wait at the beginning of this try, at least a moment: what has waited is never a mere try.
func (s *standIn) left() time.Duration { return max(s.wait-s.before, time.Millisecond) }

// again reports whether this node is to make a call once more in its caller's stead, and waits for the moment.
func (n *Node) again(c *call, err error) bool {
	s := c.standIn
	var e *transport.Error
	if s == nil || c.forwarded || !errors.As(err, &e) {
		return false
	}
	switch {
	case e.Code == transport.ErrUnknownOutcome:
		s.handed = true
	case e.Code == transport.ErrNoLeader, e.Code == transport.ErrShuttingDown, e.Code == transport.ErrOverloaded && s.handed:
	case e.Code == transport.ErrFinished && s.handed && s.names < maxNames:
		// It was granted, and the grant has ended, before anybody could be told. The caller wants one that it learns of.
		s.names++
		rand.Read(s.id[:])
	default:
		return false
	}
	if c.Err() != nil {
		return false
	}
	if s.lost.IsZero() || time.Since(s.tried) > leaderWait { // it waited at a leader before
		s.lost = time.Now()
	}
	timer := time.NewTimer(s.pause)
	defer timer.Stop()
	s.pause = min(2*s.pause, lastPause)
	select {
	case <-timer.C:
	case <-n.turns.now().Done():
	case <-n.draining:
		return false
	case <-c.Done():
		return false
	}
	s.tried = time.Now()
	s.before = time.Since(s.arrived)
	if !s.handed {
		return s.before < leaderWait
	}
	// A last try after its time tells for certain how it ended.
	return time.Since(s.lost) < outagePatience && s.before < s.wait+leaderWait
}

// lastWord is what the caller is told when nobody goes on asking: once something may have come of its call, only a definite
// answer says that nothing did.
func (s *standIn) lastWord(err error) error {
	var e *transport.Error
	if s == nil || !s.handed || !errors.As(err, &e) {
		return err
	}
	switch e.Code {
	case transport.ErrNoLeader, transport.ErrShuttingDown, transport.ErrOverloaded, transport.ErrFinished:
		return transport.NewError(transport.ErrUnknownOutcome, "the wait was handed over, and what became of it could not be learned")
	}
	return err
}

// claims are the waits without number or key that somebody stands in for, under one leadership.
type claims struct {
	mu      sync.Mutex
	held    map[fsm.ID]*claim   // as many as there are calls
	orphans map[fsm.ID]struct{} // waited when the leadership began, and nobody has claimed them since; as many as the state has
}

// claim is one call's. A later call for the same wait takes it over.
type claim struct {
	id     fsm.ID
	unsure bool          // its acquire may still come
	ended  chan struct{} // set while the wait is being taken back; closed when it is gone
}

// findOrphans makes the claims of a leadership that has not written anything yet.
func (n *Node) findOrphans() *claims {
	k := &claims{held: map[fsm.ID]*claim{}, orphans: map[fsm.ID]struct{}{}}
	n.machine.Read(func(s *fsm.State) {
		s.Unrepeatable(func(id fsm.ID) { k.orphans[id] = struct{}{} })
	})
	return k
}

// take claims a wait for a call. While an earlier call's end is taking it back there is nothing to claim: it waits until
// that is through, or ctx ends, which is the error.
func (k *claims) take(ctx context.Context, id fsm.ID) (*claim, error) {
	mine := &claim{id: id}
	for {
		k.mu.Lock()
		other := k.held[id]
		if other == nil || other.ended == nil {
			k.held[id] = mine
			delete(k.orphans, id)
			k.mu.Unlock()
			return mine, nil
		}
		k.mu.Unlock()
		select {
		case <-other.ended:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// drop is for a call whose wait is over.
func (k *claims) drop(c *claim) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held[c.id] == c {
		delete(k.held, c.id)
	}
}

// end begins to take a wait back; it is false when another call stands in for it by now.
func (k *claims) end(c *claim) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held[c.id] != c {
		return false
	}
	c.ended = make(chan struct{})
	return true
}

func (k *claims) ended(c *claim) {
	k.drop(c)
	close(c.ended)
}

// takeOrphans claims what nobody has claimed, to take it back.
func (k *claims) takeOrphans() (orphans []*claim) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id := range k.orphans {
		c := &claim{id: id, ended: make(chan struct{})}
		k.held[id] = c
		orphans = append(orphans, c)
	}
	k.orphans = nil
	return orphans
}

// takeBack ends a wait whose call has ended without an answer that its caller can have got, and a grant that nobody can have
// been told of.
func (n *Node) takeBack(l *leadership, c *claim) {
	if l.ctx.Err() == nil && l.claims.end(c) {
		n.work.Go(func() { n.endClaim(l, c) })
	}
}

// endClaim writes that a wait has ended, for as long as the leadership lasts: the next leader finds what is left. It never
// writes under another one, where somebody else may have claimed the wait and been told of its grant.
func (n *Node) endClaim(l *leadership, c *claim) {
	defer l.claims.ended(c)
	for l.ctx.Err() == nil {
		var session uint64
		n.machine.Read(func(s *fsm.State) { session = s.SessionNumber(c.id) })
		command := &fsm.Cancel{Session: session}
		switch {
		case session == 0 && !c.unsure:
			return // nothing is left of it
		case session == 0: // a tombstone catches it
			command = &fsm.Cancel{Keyed: true, Key: c.id}
		}
		if _, err := n.proposeUnder(l.ctx, l, command, 48); err == nil {
			return
		}
		pause(l.ctx, tickPause)
	}
}

// endOrphans takes back the waits that nobody stands in for any more: those whose callers asked a node that has died, is cut
// off, or does not run. Otherwise each would be granted to nobody for a whole TTL.
func (n *Node) endOrphans(l *leadership) {
	if !pause(l.ctx, orphanPatience) {
		return
	}
	orphans := l.claims.takeOrphans()
	if len(orphans) == 0 {
		return
	}
	n.log.Info("ending waits whose callers are gone", "count", len(orphans))
	n.endClaims(l, orphans)
}

// endClaims writes that waits have ended, an entry full at a time.
func (n *Node) endClaims(l *leadership, claims []*claim) {
	next := make(chan *claim)
	var ending sync.WaitGroup
	for range min(len(claims), fsm.MaxCommands) {
		ending.Go(func() {
			for c := range next {
				n.endClaim(l, c)
			}
		})
	}
	for _, c := range claims {
		next <- c
	}
	close(next)
	ending.Wait()
}

// pause waits, and is false when ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// proposeUnder puts a command through the log under this leadership or not at all.
func (n *Node) proposeUnder(ctx context.Context, l *leadership, command fsm.Command, size int) (answer, error) {
	a := l.proposer.propose(ctx, &proposal{command: command, size: size, done: make(chan answer, 1)})
	if a.err != nil {
		return a, n.wireError(a.err)
	}
	return a, nil
}

// errMoved: the wait was claimed under a leadership that is over, and may have been claimed under another.
var errMoved = fmt.Errorf("%w: another leadership has begun", replica.ErrUnknown)

// standingAcquire is acquire for a wait that somebody stands in for.
func (n *Node) standingAcquire(c *call, command *fsm.Acquire) (reply, error) {
	began := time.Now()
	s := c.standIn
	command.ID, command.Wait = s.id, uint64(s.left().Milliseconds())
	l := n.leader.Load()
	if l == nil {
		return reply{}, n.notLeading()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c), requestLimit)
	defer cancel()
	mine, err := l.claims.take(ctx, s.id)
	if err != nil {
		return reply{}, n.wireError(fmt.Errorf("%w: %w", replica.ErrNotApplied, err))
	}
	out, err := n.standing(ctx, c, l, command, began.Add(s.left()))
	switch {
	case c.forwarded && err != nil && n.stopping():
		// Who stands in asks again, and the next leader has the wait still.
		l.claims.drop(mine)
	case c.Err() == nil && definite(err):
		l.claims.drop(mine)
	default: // the caller cannot learn what it was given, or nobody knows whether it still waits
		mine.unsure = errors.Is(err, transport.ErrUnknownOutcome)
		n.takeBack(l, mine)
		if err == nil {
			err = callerGone()
		}
	}
	return out, err
}

func (n *Node) standing(ctx context.Context, c *call, l *leadership, command *fsm.Acquire, until time.Time) (reply, error) {
	a, err := n.proposeUnder(ctx, l, command, acquireSize(command))
	if err != nil {
		return reply{}, err
	}
	c.index = a.index
	if err := refusal(a.outcome); err != nil {
		return reply{}, err
	}
	if a.outcome.Code == fsm.OK {
		return n.granted(c, a.outcome.Grant, a)
	}
	return n.await(c, wait{locks: len(command.Locks), until: until, under: l}, a)
}

// definite reports whether an answer is the certain end of a wait.
func definite(err error) bool {
	for _, open := range []error{transport.ErrUnknownOutcome, transport.ErrNoLeader, transport.ErrShuttingDown, transport.ErrOverloaded} {
		if errors.Is(err, open) {
			return false
		}
	}
	return true
}
