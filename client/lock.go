package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

// Lock is what an acquire was granted: one lock, or several with AcquireAll. It is
// safe for concurrent use. Only Release, Convert, Check and SetValue use the
// network; everything else answers at once.
type Lock struct {
	session *session
	number  uint64
	names   []string
	step    *step
	giving  chan struct{} // held by the one Release that is under way

	// ended carries the values of the acquire's context, but not its end. It ends
	// when the lock is lost, released or closed; its cause says which.
	ended context.Context
	finis context.CancelCauseFunc

	// guarded by session.mu
	grants   map[string]transport.GrantedLock
	until    time.Duration // end of a maximum hold, on the lease clock; 0 is none
	bound    *time.Timer   // fires about then
	err      error         // why it ended; nil while held
	tried    bool          // a Release was sent that may have arrived
	released bool          // the server has confirmed that it is gone
}

func newLock(ctx context.Context, s *session, step *step, request transport.AcquireRequest, granted []transport.GrantedLock) *Lock {
	l := &Lock{session: s, number: request.Request, step: step, giving: make(chan struct{}, 1), grants: make(map[string]transport.GrantedLock, len(granted))}
	for _, lock := range request.Locks {
		l.names = append(l.names, lock.Name) // in the caller's order, whatever the answer's
	}
	for _, lock := range granted {
		l.grants[lock.Name] = lock
	}
	l.ended, l.finis = context.WithCancelCause(context.WithoutCancel(ctx))
	return l
}

// Name gives the name, the first one of several.
func (l *Lock) Name() string { return l.names[0] }

// Names gives all names.
func (l *Lock) Names() []string { return slices.Clone(l.names) }

// Token gives the fencing token (of the first name): send it with every write to
// what the lock protects, and let the storage refuse a token below the highest
// it has seen.
func (l *Lock) Token() transport.Token { return l.TokenOf(l.names[0]) }

// TokenOf gives the token of one of several names, 0 for any other name. It is
// another one after Convert.
func (l *Lock) TokenOf(name string) transport.Token { return l.GrantOf(name).Token }

// GrantOf gives token and mode of one of several names, which belong together also
// while the lock is being converted; the zero value for any other name.
func (l *Lock) GrantOf(name string) transport.GrantedLock {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	return l.grants[name]
}

// State is what a Lock is.
type State string

// The states of a Lock. Of these only StateHeld and StateUncertain can still change.
const (
	// StateHeld: the server cannot have granted it to anybody else.
	StateHeld State = "held"
	// StateUncertain is held as well, but renewals fail, or have not been answered
	// for two thirds of the TTL: unless one succeeds it will be lost.
	StateUncertain State = "uncertain"
	// StateLost: it ended against the holder's will, and Err is a *LostError.
	StateLost State = "lost"
	// StateReleased: it was given back, by Release or by Close, also when the server
	// has not confirmed that yet.
	StateReleased State = "released"
)

// State says what the lock is, by the clock at this very moment. See Held.
func (l *Lock) State() State {
	switch err := l.Err(); {
	case errors.Is(err, ErrLost):
		return StateLost
	case err != nil:
		return StateReleased
	case l.session.failing():
		return StateUncertain
	}
	return StateHeld
}

// Held says whether the lock is held (StateHeld or StateUncertain), by the clock
// at this very moment: a process that wakes from a pause learns at once that its
// lease is over.
func (l *Lock) Held() bool { return l.Err() == nil }

// Done gives a channel that is closed when the lock is not held any more: when it
// is lost, no later than anybody else can be granted it (unless an operator takes
// it by force), when its Release begins, and when the Client is closed.
func (l *Lock) Done() <-chan struct{} { return l.Context().Done() }

// Err says why the lock is not held: a *LostError, ErrReleased or ErrClosed; nil
// while it is held.
func (l *Lock) Err() error {
	l.session.usable()
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	l.overdueLocked()
	return l.err
}

// Context gives the context for work that needs the lock. It ends when Done is
// closed, with Err as its cause. It has the values of the context that the lock
// was acquired with, but does not end with that one. Acquires under it are seen as
// nested, so that a deadlock of them is found: those under the context of the
// innermost lock that is held. Goroutines that acquire beside each other under one
// context do not disturb each other. See Tasks in the package's documentation for a
// goroutine that the lock is not kept for.
func (l *Lock) Context() context.Context { return lockContext{l.ended, l} }

// lockContext looks at the lease's clock whenever it is asked, since timers stand
// still while the machine is suspended.
type lockContext struct {
	context.Context
	lock *Lock
}

// Done implements context.Context. It is the channel of the context within, so
// contexts derived from this one are its children and need no goroutine.
func (c lockContext) Done() <-chan struct{} {
	c.lock.Err()
	return c.Context.Done()
}

// Err implements context.Context.
func (c lockContext) Err() error {
	c.lock.Err()
	return c.Context.Err()
}

// Value implements context.Context.
func (c lockContext) Value(key any) any {
	if _, ok := key.(stepKey); ok {
		return c.lock.step
	}
	return c.Context.Value(key)
}

// boundLocked has the lock end at this time of the lease clock, which renewals do
// not extend.
func (l *Lock) boundLocked(until time.Duration) {
	l.until = until
	l.bound = time.AfterFunc(max(until-l.session.client.now(), 0), func() {
		l.session.mu.Lock()
		defer l.session.mu.Unlock()
		if !l.overdueLocked() {
			l.bound.Reset(max(l.until-l.session.client.now(), time.Millisecond)) // the timer's clock is not the lease's
		}
	})
}

// overdueLocked ends a lock whose maximum is over, by the clock at this moment, and
// says whether it has ended, whatever the reason.
func (l *Lock) overdueLocked() bool {
	if l.err == nil && l.until != 0 && l.session.client.now() >= l.until {
		l.endLocked(&LostError{Reason: ReasonMaxHold})
		l.session.finishLocked(l.number) // the server ends all of it, in the same moment or a little later
	}
	return l.err != nil
}

// endLocked ends the lock on this side: from now on it does not count as held.
func (l *Lock) endLocked(reason error) {
	if l.err != nil {
		return
	}
	l.err = reason
	if l.bound != nil {
		l.bound.Stop()
	}
	l.finis(reason)
}

// Release gives the lock back. From its beginning the lock does not count as held,
// whatever the outcome. It blocks until the server has confirmed it or ctx ends; with
// the lock's own context, which ends at once, for up to 2 s.
// After an error it may be called again; the Client goes on trying by itself too,
// until the session ends. Release of a lock that was lost answers with its
// LostError, and once confirmed Release does nothing more.
func (l *Lock) Release(ctx context.Context) error {
	if err := l.release(ctx); err != nil {
		return fmt.Errorf("releasing %q: %w", l.Name(), err)
	}
	return nil
}

func (l *Lock) release(ctx context.Context) error {
	s := l.session
	if under, _ := ctx.Value(stepKey{}).(*step); under == l.step {
		// The lock's own context, which ends right here and must not end the release.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		ctx = bounded
	}
	s.usable()
	s.mu.Lock()
	if l.overdueLocked() && !errors.Is(l.err, ErrReleased) {
		_, left := s.unfinished[l.number]
		lost := l.err
		s.mu.Unlock()
		if left {
			s.owe(debt{number: l.number, lock: l}) // of several only one may have been taken
		}
		return lost
	}
	if l.released {
		s.mu.Unlock()
		return nil
	}
	l.endLocked(ErrReleased)
	s.mu.Unlock()
	err := l.giveBack(ctx)
	if err != nil && !errors.Is(err, ErrLost) {
		s.owe(debt{number: l.number, lock: l})
	}
	return err
}

// giveBack tells the server. An answer that the hold is gone is as good as one
// that it was released, provided that an earlier attempt may have done it;
// otherwise the lock had been lost without our knowing. One at a time: of two that
// overtake each other the first would take the other's success for a loss.
func (l *Lock) giveBack(ctx context.Context) error {
	select {
	case l.giving <- struct{}{}:
		defer func() { <-l.giving }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s := l.session
	s.mu.Lock()
	if l.released {
		s.mu.Unlock()
		return nil
	}
	tried := l.tried
	l.tried = true
	s.mu.Unlock()
	answer, err := do[transport.ReleaseRequest, transport.ReleaseResponse](ctx, s.client, call{path: "/v1/release", repeatable: true},
		&transport.ReleaseRequest{Session: s.id, Request: l.number})
	gone := err != nil && isGone(err)
	if err != nil && !gone {
		// A session that could not be reached has ended on this side only: at the server it goes on for as long as there is no
		// leader, and the hold with it. Nobody has confirmed anything.
		if !s.over() || s.unreached() {
			return err
		}
		// The session ended meanwhile, and the hold with it: nothing is owed.
		gone, tried = true, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l.released = true
	s.finishLocked(l.number)
	if gone && !tried && !answer.uncertain {
		return &LostError{Reason: ReasonExpired}
	}
	return nil
}

// left bounds a wait by a deadline of ctx, in whole milliseconds, at least 1.
func left(ctx context.Context, most time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(deadline))
	}
	return max(most.Truncate(time.Millisecond), time.Millisecond)
}
