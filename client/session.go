package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

// session is the Client's proof of life at the server. Its lock guards what its
// Locks show, and is never held over the network: Held must not block.
type session struct {
	client *Client
	id     string

	alive context.Context // ends when the session is lost or the Client closed; its cause says why
	kill  context.CancelCauseFunc

	mu         sync.Mutex
	ttl        time.Duration
	deadline   time.Duration // on the lease clock
	missed     bool          // a renewal has failed since the last one that was answered
	ended      error
	lastNumber uint64
	unfinished map[uint64]*Lock // by request number; nil while there is no grant
	owed       []debt
	settling   bool
}

// debt is a release or cancel that the caller did not wait for.
type debt struct {
	number uint64
	lock   *Lock // nil: a cancel
}

func newSession(c *Client, id string, ttl, sent time.Duration) *session {
	s := &session{client: c, id: id, ttl: ttl, deadline: sent + safely(ttl), unfinished: map[uint64]*Lock{}}
	s.alive, s.kill = context.WithCancelCause(context.Background())
	return s
}

// safely takes from a lease what the two clocks' rates may differ by: this is
// the client's half of R3; the server's is that its lease clock never runs ahead.
func safely(lease time.Duration) time.Duration { return lease - lease/500 }

// extend notes that the server promised lease to a call that was sent at sent.
// The server's deadline never goes back, so neither does this one.
func (s *session) extend(sent, lease time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deadline = max(s.deadline, sent+safely(lease))
	s.missed = false
}

// failing says whether renewals fail, or are not answered.
func (s *session) failing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.missed || s.deadline-s.client.now() < s.ttl/3
}

// miss notes that an attempt to renew has failed.
func (s *session) miss() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missed = true
}

// left gives how long the lease lasts; not more than 0 means that it is over.
func (s *session) left() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deadline - s.client.now()
}

// usable says whether the session still counts, and ends it when it does not.
func (s *session) usable() bool {
	if s.left() <= 0 {
		s.end(&LostError{Reason: ReasonUnreachable})
	}
	return !s.over()
}

// over says whether the session has ended. It is the word that counts: alive
// ends a moment later.
func (s *session) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended != nil
}

// unreached says whether the session has ended because no node could be reached, so
// that it may go on at the server.
func (s *session) unreached() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Is(s.ended, ReasonUnreachable)
}

// end ends the session and all its locks for the given reason. Once lost, always
// lost: an answer that comes later changes nothing.
func (s *session) end(reason error) {
	s.mu.Lock()
	if s.ended != nil {
		s.mu.Unlock()
		return
	}
	s.ended = reason
	locks := 0
	for _, lock := range s.unfinished {
		if lock != nil {
			lock.endLocked(reason)
			lock.step.end()
			locks++
		}
	}
	s.mu.Unlock()
	s.kill(reason)
	s.client.forget(s)
	if !errors.Is(reason, ErrClosed) {
		s.client.log.Warn("session ended", "reason", reason, "locks", locks)
	}
}

// run renews the session every third of its TTL until it ends. It is the only
// goroutine that does.
func (s *session) run() {
	ctx, cancel := context.WithCancelCause(s.alive)
	defer cancel(nil)
	defer context.AfterFunc(s.client.alive, func() { cancel(ErrClosed) })()
	for {
		s.mu.Lock()
		pause := min(s.ttl/3, s.deadline-s.client.now())
		s.mu.Unlock()
		if sleep(ctx, pause) != nil {
			return
		}
		for !s.renew(ctx) {
			if ctx.Err() != nil {
				return
			}
			// A refusal that is not about this session may pass before the deadline.
			if sleep(ctx, min(s.client.renewals.least, max(s.left(), 0))) != nil {
				return
			}
		}
	}
}

// renew tries to renew once, for as long as the lease lasts, and says whether it
// succeeded. It ends the session when that is over.
func (s *session) renew(ctx context.Context) bool {
	if !s.usable() {
		return false
	}
	s.mu.Lock()
	request := &transport.RenewRequest{Session: s.id, Done: s.doneLocked()}
	s.mu.Unlock()
	bounded, cancel := context.WithTimeout(ctx, s.left())
	defer cancel()
	began := time.Now()
	answer, err := do[transport.RenewRequest, transport.RenewResponse](bounded, s.client, call{path: "/v1/renew", repeatable: true, renewal: true, failed: s.miss}, request)
	if s.client.hooks.Renewal != nil {
		s.client.hooks.Renewal(time.Since(began), err)
	}
	switch {
	case err == nil:
		s.extend(answer.sent, duration(answer.body.LeaseMS))
		s.noteLost(answer.body.Lost)
		return s.usable()
	case errors.Is(err, transport.ErrSessionGone):
		s.end(&LostError{Reason: ReasonExpired})
	default:
		s.miss()
		s.usable()
		s.client.log.Debug("renewal failed", "error", err)
	}
	return false
}

// noteLost ends the locks that the server says are not held any more.
func (s *session) noteLost(lost []transport.LostHold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, hold := range lost {
		for number, lock := range s.unfinished {
			if lock == nil || lock.grants[hold.Name].Token != hold.Token || s.anothersLocked(lock, hold) {
				continue
			}
			lock.endLocked(lostAsTold(hold))
			if len(lock.names) == 1 {
				s.finishLocked(number) // nothing is left of it; the next done tells the server that we know
			}
		}
	}
}

// anothersLocked says whether the loss is that of another hold of this session. Those who share a lock have one token
// (R6): taken by force are all of them, but each has a maximum of its own, and the lock knows when it is over.
func (s *session) anothersLocked(lock *Lock, hold transport.LostHold) bool {
	return hold.By == "" && hold.Reason == string(ReasonMaxHold) && lock.grants[hold.Name].Mode == transport.ModeShared &&
		(lock.until == 0 || s.client.now() < lock.until)
}

// begin gives the number of a new request, and the done that goes with it.
func (s *session) begin() (number, done uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastNumber++
	s.unfinished[s.lastNumber] = nil
	return s.lastNumber, s.doneLocked()
}

// doneLocked gives the number below which all are finished.
func (s *session) doneLocked() uint64 {
	done := s.lastNumber + 1
	for number := range s.unfinished {
		done = min(done, number)
	}
	return done
}

// finish notes that nothing of the request is left at the server.
func (s *session) finish(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.finishLocked(number)
}

func (s *session) finishLocked(number uint64) {
	if lock := s.unfinished[number]; lock != nil {
		lock.step.end()
	}
	delete(s.unfinished, number)
}

// owe takes over a release or cancel that has failed or that nobody waits for,
// so that a lock whose Release failed does not stay locked as long as the session
// lives on for others (A17).
func (s *session) owe(d debt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended != nil {
		return // it ended with the session
	}
	for _, other := range s.owed {
		if other.number == d.number {
			return
		}
	}
	s.owed = append(s.owed, d)
	if !s.settling {
		s.settling = s.client.work(s.settle)
	}
}

// settle sends what is owed, one after the other, and ends when nothing is left
// or the session is over.
func (s *session) settle() {
	for {
		s.mu.Lock()
		if len(s.owed) == 0 || s.ended != nil {
			s.settling = false
			s.mu.Unlock()
			return
		}
		next := s.owed[0]
		s.mu.Unlock()
		var err error
		if next.lock != nil {
			err = next.lock.giveBack(s.alive)
		} else {
			err = s.cancel(s.alive, next.number)
		}
		if err != nil {
			s.client.log.Debug("settling failed", "request", next.number, "error", err)
			// do has repeated what can be repeated, so this was a refusal. It is rare, and
			// must not make a hot loop. The end of the session is seen above.
			_ = sleep(s.alive, jitter(greatestSpacing))
			continue
		}
		s.mu.Lock()
		s.owed = s.owed[1:]
		s.mu.Unlock()
	}
}

// cancel takes a request back, whatever became of it, and finishes its number.
func (s *session) cancel(ctx context.Context, number uint64) error {
	_, err := do[transport.CancelRequest, transport.CancelResponse](ctx, s.client, call{path: "/v1/cancel", repeatable: true},
		&transport.CancelRequest{Session: s.id, Request: number})
	if err != nil && !isGone(err) {
		return err
	}
	s.finish(number)
	return nil
}

// isGone says whether the error means that what was to be ended has ended.
func isGone(err error) bool {
	return errors.Is(err, transport.ErrSessionGone) || errors.Is(err, transport.ErrNotHeld) || errors.Is(err, transport.ErrFinished)
}
