package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/transport"
)

// acquire is POST /v1/acquire.
func (n *Node) acquire(c *call, r *transport.AcquireRequest) (reply, error) {
	began := time.Now()
	command, err := n.acquireCommand(c, r)
	if err != nil {
		return reply{}, err
	}
	if c.standIn != nil {
		out, err := n.standingAcquire(c, command)
		return out, describeConflict(err, r.Requested())
	}
	repeatable := r.Session != "" || c.key != ""
	if !repeatable && r.WaitMS == 0 {
		// Nothing is kept of a try without number or key, so a refusal needs no entry: only the proof that this node leads
		// and has seen everything (R8).
		if err := n.refuseTry(c, command); err != nil {
			return reply{}, err
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c), requestLimit)
	defer cancel()
	a, err := n.propose(ctx, command, acquireSize(command))
	if err != nil {
		return reply{}, err
	}
	c.index = a.index
	if err := refusal(a.outcome); err != nil {
		return reply{}, describeConflict(err, r.Requested())
	}
	if a.outcome.Code == fsm.OK {
		if !repeatable && c.Err() != nil {
			n.abandon(a.outcome.Session)
			return reply{}, callerGone()
		}
		return n.granted(c, a.outcome.Grant, a)
	}
	return n.await(c, wait{
		session: command.Session, number: command.Number, keyed: command.Keyed, locks: len(command.Locks),
		until: began.Add(time.Duration(r.WaitMS) * time.Millisecond),
	}, a)
}

// acquireCommand turns the message into a command. It looks the session up, because commands name it by number.
func (n *Node) acquireCommand(c *call, r *transport.AcquireRequest) (*fsm.Acquire, error) {
	command := &fsm.Acquire{
		Wait: uint64(r.WaitMS), Trace: traceOf(c.request), Priority: r.Priority, MaxHold: uint64(r.MaxHoldMS), Delay: uint64(r.LockDelayMS), Value: r.Value,
	}
	for _, l := range r.Requested() {
		command.Locks = append(command.Locks, fsm.Want{Name: l.Name, Mode: modes[l.Mode], Limit: uint32(l.Limit)})
	}
	slices.SortFunc(command.Locks, func(a, b fsm.Want) int { return cmp.Compare(a.Name, b.Name) })
	if r.Session != "" {
		number, err := n.session(c, r.Session)
		if err != nil {
			return nil, err
		}
		command.Session, command.Number, command.Done, command.Task = number, r.Request, r.Done, r.Task
		return command, nil
	}
	command.Owner, command.TTL = r.Owner, uint64(cmp.Or(r.TTLMS, transport.DefaultTTLMS))
	if command.Keyed = c.key != ""; command.Keyed {
		command.ID = keyID(c.key)
	} else {
		rand.Read(command.ID[:])
	}
	return command, nil
}

func acquireSize(a *fsm.Acquire) int {
	size := 80 + len(a.Owner) + len(a.Task) + len(a.Trace) + len(a.Value)
	for _, w := range a.Locks {
		size += len(w.Name) + 8
	}
	return size
}

// modes turns the words of the wire into the numbers of the log, modeWords back.
var modes = map[string]fsm.Mode{transport.ModeExclusive: fsm.Exclusive, transport.ModeShared: fsm.Shared}

func modeWord(m fsm.Mode) string {
	if m == fsm.Shared {
		return transport.ModeShared
	}
	return transport.ModeExclusive
}

// keyID derives the session of an acquire from its Idempotency-Key, so that a repeat finds it on any node.
func keyID(key string) (id fsm.ID) {
	sum := sha256.Sum256([]byte("pawl idempotency key\x00" + key))
	copy(id[:], sum[:])
	return id
}

// traceOf takes a W3C traceparent of the usual form, and nothing else.
func traceOf(r *http.Request) string {
	const length = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	trace := r.Header.Get("Traceparent")
	if len(trace) != length {
		return ""
	}
	for _, b := range []byte(trace) {
		if (b < '0' || b > '9') && (b < 'a' || b > 'f') && b != '-' {
			return ""
		}
	}
	return trace
}

// refuseTry refuses a try that is certain to be refused, from behind a read round and without an entry.
func (n *Node) refuseTry(c *call, command *fsm.Acquire) error {
	var out fsm.Outcome
	look := func() (refused bool) {
		n.machine.Read(func(s *fsm.State) {
			out = fsm.Outcome{Code: fsm.Held}
			out.Holders, out.Waiting, refused = s.Refuses(command.Locks)
			if refused && len(out.Holders) == 0 && out.Waiting == 0 { // nobody is in the way, so a lock-delay is
				out.Code, out.Retry = fsm.Delayed, n.delayOf(s, command.Locks)
			}
			c.index = s.Index()
		})
		return refused
	}
	if !look() {
		return nil
	}
	if err := n.linearizable(c); err != nil {
		return err
	}
	if !look() {
		return nil
	}
	return refusal(out)
}

// delayOf is how long the longest lock-delay of these locks lasts, in ms, at least 1: it is asked where there is one.
func (n *Node) delayOf(s *fsm.State, locks []fsm.Want) uint64 {
	left := uint64(1)
	for _, w := range locks {
		left = max(left, s.Lock(w.Name, n.clock(s), 0).Delay)
	}
	return left
}

// granted answers with a grant. Its lease counts from this call's own entry, so it holds for a grant that came long
// afterwards and for one that is told again (R9).
func (n *Node) granted(c *call, g *fsm.Grant, a answer) (reply, error) {
	c.index = max(c.index, a.index)
	before := int64(0) // the caller counts from when it sent its call, also where another call waits in its stead
	if c.standIn != nil {
		before = c.standIn.before.Milliseconds()
	}
	out := transport.AcquireResponse{
		Granted: true, Session: hex.EncodeToString(g.ID[:]), TTLMS: int64(g.TTL), LeaseMS: before + int64(g.Deadline-min(a.clock, g.Deadline)),
		Owner: g.Owner, Request: g.Number, Replayed: a.outcome.Replayed,
	}
	for _, l := range g.Locks {
		out.Locks = append(out.Locks, transport.GrantedLock{Name: l.Name, Mode: modeWord(l.Mode), Limit: int64(l.Limit), Token: transport.Token(l.Token)})
	}
	if g.HoldEnds != 0 {
		left := before + int64(g.HoldEnds-min(a.clock, g.HoldEnds))
		out.HoldMS = &left
	}
	if len(out.Locks) == 1 {
		out.Token = out.Locks[0].Token
	}
	return reply{http.StatusOK, out}, nil
}

// callerGone is the answer to a caller without number or key whose connection has ended. What it was given is taken back,
// so one that has only closed its sending half must not read that it holds the lock.
func callerGone() error {
	return transport.NewError(transport.ErrUnknownOutcome, "the caller has closed its connection, and nothing is kept for it")
}

// abandon takes back what a try whose caller has gone was given.
func (n *Node) abandon(session uint64) {
	n.work.Go(func() {
		ctx, cancel := context.WithTimeout(n.ctx, requestLimit)
		defer cancel()
		_, _ = n.propose(ctx, &fsm.Cancel{Session: session}, 32) // what cannot be taken back ends with its TTL
	})
}

// describeConflict adds the limit that was asked for to a mode_conflict.
func describeConflict(err error, requested []transport.LockRequest) error {
	var e *transport.Error
	if errors.As(err, &e) && e.Code == transport.ErrModeConflict {
		for _, l := range requested {
			if l.Limit != 0 && l.Limit != e.Limit {
				e.RequestedLimit = l.Limit
			}
		}
	}
	return err
}

// release is POST /v1/release.
func (n *Node) release(c *call, r *transport.ReleaseRequest) (reply, error) {
	number, err := n.session(c, r.Session)
	if err != nil {
		return reply{}, err
	}
	a, err := n.change(c, &fsm.Release{Session: number, Number: r.Request, Token: uint64(r.Token), Name: r.Name}, 32+len(r.Name))
	if err != nil {
		return reply{}, err
	}
	return reply{http.StatusOK, transport.ReleaseResponse{Released: a.outcome.Names}}, nil
}

// cancelRequest is POST /v1/cancel.
func (n *Node) cancelRequest(c *call, r *transport.CancelRequest) (reply, error) {
	command := &fsm.Cancel{Number: r.Request}
	if c.key != "" {
		command.Keyed, command.Key = true, keyID(c.key)
	} else {
		number, err := n.session(c, r.Session)
		if err != nil {
			return reply{}, err
		}
		command.Session = number
	}
	a, err := n.change(c, command, 48)
	state := ""
	switch {
	case errors.Is(err, transport.ErrFinished):
		state = transport.StateFinished
	case err != nil:
		return reply{}, err
	case a.outcome.Code == fsm.Released:
		state = transport.StateReleased
	default:
		state = transport.StateCancelled
	}
	return reply{http.StatusOK, transport.CancelResponse{State: state}}, nil
}

// change proposes a command whose outcome is either done or a refusal.
func (n *Node) change(c *call, command fsm.Command, size int) (answer, error) {
	// The caller's going away does not take a command back that may be on its way.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c), requestLimit)
	defer cancel()
	a, err := n.propose(ctx, command, size)
	if err != nil {
		return a, err
	}
	c.index = a.index
	return a, refusal(a.outcome)
}
