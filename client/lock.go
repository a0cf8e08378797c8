package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

// Lock is what an acquire was granted: one lock, or several with LockAll. It is
// safe for concurrent use.
type Lock struct {
	session *session
	number  uint64
	names   []string

	ended context.Context // ends when the lock is lost or released; its cause says why
	finis context.CancelCauseFunc
	lost  chan struct{}

	// guarded by session.mu
	tokens   map[string]transport.Token
	until    time.Duration // end of a maximum hold, on the lease clock; 0 is none
	bound    *time.Timer   // fires about then
	err      error         // why it ended; nil while held
	tried    bool          // an Unlock was sent that may have arrived
	released bool          // the server has confirmed that it is gone
}

func newLock(s *session, request transport.AcquireRequest, granted []transport.GrantedLock) *Lock {
	l := &Lock{session: s, number: request.Request, tokens: make(map[string]transport.Token, len(granted)), lost: make(chan struct{})}
	for _, lock := range request.Locks {
		l.names = append(l.names, lock.Name) // in the caller's order, whatever the answer's
	}
	for _, lock := range granted {
		l.tokens[lock.Name] = lock.Token
	}
	l.ended, l.finis = context.WithCancelCause(context.Background())
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
func (l *Lock) TokenOf(name string) transport.Token {
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	return l.tokens[name]
}

// Held says whether the lock is held, by the clock at this very moment: a
// process that wakes from a pause learns at once that its lease is over. It
// never blocks on the network.
func (l *Lock) Held() bool {
	return l.Err() == nil
}

// Lost gives a channel that is closed when the lock is lost, no later than
// anybody else can be granted it (unless an operator takes it by force), or when
// the Client is closed. Unlock does not close it.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// Err says why the lock is not held: a *LostError, ErrReleased or ErrClosed; nil
// while it is held.
func (l *Lock) Err() error {
	l.session.usable()
	l.session.mu.Lock()
	defer l.session.mu.Unlock()
	l.overdueLocked()
	return l.err
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
		l.loseLocked(&LostError{Reason: ReasonMaxHold})
		delete(l.session.unfinished, l.number) // the server ends all of it, in the same moment or a little later
	}
	return l.err != nil
}

// Context gives a context that ends when the lock is lost or released (its cause
// is then Err), with parent, or when cancel is called, which must happen at last.
func (l *Lock) Context(parent context.Context) (ctx context.Context, cancel context.CancelFunc) {
	ctx, end := context.WithCancelCause(parent)
	stop := context.AfterFunc(l.ended, func() { end(context.Cause(l.ended)) })
	return ctx, func() { stop(); end(context.Canceled) }
}

// loseLocked ends the lock against its holder's will.
func (l *Lock) loseLocked(reason error) {
	if l.err != nil {
		return
	}
	l.err = reason
	l.unboundLocked()
	close(l.lost)
	l.finis(reason)
}

func (l *Lock) unboundLocked() {
	if l.bound != nil {
		l.bound.Stop()
	}
}

// Unlock gives the lock back. From its beginning the lock does not count as held,
// whatever the outcome. It blocks until the server has confirmed it or ctx ends.
// After an error it may be called again; the Client goes on trying by itself too,
// until the session ends. Unlock of a lock that was lost answers with its
// LostError, and once confirmed Unlock does nothing more.
func (l *Lock) Unlock(ctx context.Context) error {
	s := l.session
	s.usable()
	s.mu.Lock()
	if l.overdueLocked() && !errors.Is(l.err, ErrReleased) {
		_, left := s.unfinished[l.number]
		lost := l.err
		s.mu.Unlock()
		if left {
			s.owe(debt{number: l.number, lock: l}) // of several only one may have been taken
		}
		return fmt.Errorf("unlocking %q: %w", l.Name(), lost)
	}
	if l.released {
		s.mu.Unlock()
		return nil
	}
	l.err = ErrReleased
	l.unboundLocked()
	s.mu.Unlock()
	l.finis(ErrReleased)
	if err := l.release(ctx); err != nil {
		if errors.Is(err, ErrLost) {
			return fmt.Errorf("unlocking %q: %w", l.Name(), err)
		}
		s.owe(debt{number: l.number, lock: l})
		return fmt.Errorf("unlocking %q: %w", l.Name(), err)
	}
	return nil
}

// release tells the server. An answer that the hold is gone is as good as one
// that it was released, provided that an earlier attempt may have done it;
// otherwise the lock had been lost without our knowing.
func (l *Lock) release(ctx context.Context) error {
	s := l.session
	s.mu.Lock()
	tried := l.tried
	l.tried = true
	s.mu.Unlock()
	answer, err := do[transport.ReleaseRequest, transport.ReleaseResponse](ctx, s.client, call{path: "/v1/release", repeatable: true},
		&transport.ReleaseRequest{Session: s.id, Request: l.number})
	gone := err != nil && isGone(err)
	if err != nil && !gone {
		if !s.over() {
			return err
		}
		// The session ended meanwhile, and the hold with it: nothing is owed.
		gone, tried = true, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l.released = true
	delete(s.unfinished, l.number)
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
