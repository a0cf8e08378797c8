package workload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/jepsen/history"
	"github.com/pawl-lock/pawl/transport"
)

// session is one that a workload keeps itself, call by call, without the SDK's care. Its lease is counted on the cluster's
// clock, from before a call was sent, less 0.2 % (R9).
type session struct {
	e     *Env
	calls client.Calls
	id    string
	ttl   time.Duration
	last  uint64 // number of the last request
	// unsure: it may have, or get, a lock that nobody believes in. Renewed, it would keep the others from it: end it.
	unsure bool

	mu    sync.Mutex
	until time.Duration // of the lease
}

func lease(sent time.Duration, milliseconds int64) time.Duration {
	d := time.Duration(milliseconds) * time.Millisecond
	return sent + d - d/500
}

// deadline is until when the session's holds may be believed.
func (s *session) deadline() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.until
}

func (s *session) extend(sent time.Duration, milliseconds int64) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.until = max(s.until, lease(sent, milliseconds))
	return s.until
}

// open opens a session; nil when it could not.
func (e *Env) open(ctx context.Context, calls client.Calls, ttl time.Duration) *session {
	s := &session{e: e, calls: calls, ttl: ttl.Truncate(time.Millisecond)}
	op := e.begin(history.Op{F: history.Open, Note: fmt.Sprint("ttl=", s.ttl)})
	sent := e.Now()
	answer, err := calls.OpenSession(ctx, transport.SessionRequest{Owner: fmt.Sprint("client", e.Index), TTLMS: s.ttl.Milliseconds()})
	e.point(ctx)
	if err != nil {
		e.end(op, history.Info, err)
		return nil
	}
	s.id = answer.Session
	op.Session, op.Lease = s.id, s.extend(sent, answer.TTLMS)
	e.end(op, history.OK, nil)
	return s
}

// keep renews the session until ctx ends, without a word in the history.
func (s *session) keep(ctx context.Context) {
	for s.e.Sleep(ctx, s.ttl/3) == nil {
		limited, cancel := context.WithTimeout(ctx, s.ttl/2)
		sent := s.e.Now()
		answer, err := s.calls.Renew(limited, transport.RenewRequest{Session: s.id})
		cancel()
		if errors.Is(err, transport.ErrSessionGone) {
			return
		}
		if err == nil {
			s.extend(sent, answer.LeaseMS)
		}
	}
}

// renew records a renewal, and says whether there is any use in going on.
func (s *session) renew(ctx context.Context) bool {
	e := s.e
	op := e.begin(history.Op{F: history.Renew, Session: s.id, Note: fmt.Sprint("ttl=", s.ttl)})
	limited, cancel := context.WithTimeout(ctx, s.ttl)
	defer cancel()
	sent := e.Now()
	answer, err := s.calls.Renew(limited, transport.RenewRequest{Session: s.id})
	e.point(ctx)
	switch {
	case err == nil:
		op.Lease = s.extend(sent, answer.LeaseMS)
		e.end(op, history.OK, nil)
		return true
	case errors.Is(err, transport.ErrSessionGone):
		e.end(op, history.Fail, errSessionGone)
		return false
	default:
		e.end(op, history.Info, err) // it may have arrived, or yet arrive
		return e.Now() < s.deadline()
	}
}

var (
	errSessionGone = errors.New("session_gone")
	errLate        = errors.New("the answer came after the lease")
	errCancelled   = errors.New("cancelled")
)

func goneOr(err error) error {
	if errors.Is(err, transport.ErrSessionGone) {
		return errSessionGone
	}
	return err
}

// acquire records a numbered acquire and its wait, which it cancels when it takes too long. It returns nil without the lock.
func (s *session) acquire(ctx context.Context, lock string, most time.Duration) *history.Op {
	s.last++
	op := s.e.begin(history.Op{F: history.Acquire, Lock: lock, Mode: transport.ModeExclusive, Session: s.id, Request: s.last})
	return s.await(ctx, op, most)
}

// await waits for the request of op, that has been begun.
func (s *session) await(ctx context.Context, op history.Op, most time.Duration) *history.Op {
	e := s.e
	end := e.Now() + most
	var err error
	for {
		wait := min(most, end-e.Now(), 20*time.Second)
		if wait < time.Millisecond || ctx.Err() != nil {
			break
		}
		limited, cancel := context.WithTimeout(ctx, wait+5*time.Second)
		sent := e.Now()
		var answer transport.AcquireResponse
		answer, err = s.calls.Acquire(limited, transport.AcquireRequest{
			Locks: []transport.LockRequest{{Name: op.Lock}}, Session: s.id, Request: op.Request, WaitMS: wait.Milliseconds()}, "")
		cancel()
		e.point(ctx)
		if err == nil && answer.Granted {
			op.Token = uint64(answer.Locks[0].Token)
			op.Lease = s.extend(sent, answer.LeaseMS)
			if e.Now() >= op.Lease {
				op.Note = "lost before it was known"
				_ = s.close(ctx) // what goes on renewing it must not keep a lock that nobody believes in
				e.end(op, history.Fail, errLate)
				return nil
			}
			e.end(op, history.OK, nil)
			return &op
		}
		if err != nil && !errors.Is(err, client.ErrUnavailable) && !errors.Is(err, transport.ErrUnknownOutcome) {
			break
		}
	}
	if refused(err) && !errors.Is(err, client.ErrUnavailable) {
		e.end(op, history.Fail, goneOr(err))
		return nil
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, gone := s.calls.Cancel(limited, transport.CancelRequest{Session: s.id, Request: op.Request}, "")
	if gone == nil || errors.Is(gone, transport.ErrSessionGone) {
		e.end(op, history.Fail, errors.Join(errCancelled, goneOr(errors.Join(err, gone))))
		return nil
	}
	s.unsure = true
	e.end(op, history.Info, gone)
	return nil
}

// vanish asks for a lock and goes away for good while it waits, as a program does that is killed: the session ends by itself,
// and with it the wait. What is granted before that is held to the end of the lease.
func (s *session) vanish(ctx context.Context, lock string) {
	e := s.e
	s.last++
	op := e.begin(history.Op{F: history.Acquire, Lock: lock, Mode: transport.ModeExclusive, Session: s.id, Request: s.last})
	limited, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	sent := e.Now()
	var got transport.AcquireResponse
	_, err := e.send(limited, e.anyNode(), "/v1/acquire", 0, transport.AcquireRequest{
		Locks: []transport.LockRequest{{Name: lock}}, Session: s.id, Request: s.last, WaitMS: 20_000}, &got)
	switch {
	case err == nil && got.Granted:
		op.Token, op.Lease = uint64(got.Locks[0].Token), s.extend(sent, got.LeaseMS)
		e.end(op, history.OK, nil)
		for !s.lostBy(ctx, op, s.deadline()) {
		}
	case err != nil && refused(err):
		e.end(op, history.Fail, goneOr(err))
	default:
		op.Note = history.Silent
		e.end(op, history.Info, err)
	}
}

// stray sends a release that names another token than the hold's: that of whoever holds a lock, or an older one. It must be
// refused, and end nothing.
func (s *session) stray(ctx context.Context, op history.Op, lock string) {
	e := s.e
	token := op.Token - 1
	var got transport.LockResponse
	if _, err := e.send(ctx, e.anyNode(), "/v1/lock?name="+lock, 0, nil, &got); err == nil && len(got.Holders) > 0 {
		if other := uint64(got.Holders[0].Token); other != op.Token {
			token = other
		}
	}
	if token == 0 { // would stand for any
		return
	}
	stray := e.begin(history.Op{F: history.Stray, Session: s.id, Request: op.Request, Token: token})
	_, err := e.send(ctx, e.anyNode(), "/v1/release", 0, transport.ReleaseRequest{
		Session: s.id, Request: op.Request, Token: transport.Token(token)}, &transport.ReleaseResponse{})
	switch {
	case err == nil:
		e.end(stray, history.OK, nil)
	case refused(err):
		e.end(stray, history.Fail, goneOr(err))
	default:
		e.end(stray, history.Info, err)
	}
}

// lostBy waits until a time, or records that the hold is lost when its lease ends before. It returns whether it is.
func (s *session) lostBy(ctx context.Context, op history.Op, until time.Duration) bool {
	e := s.e
	for {
		now, deadline := e.Now(), s.deadline()
		if now >= deadline {
			op.F, op.Type, op.Lease = history.Lost, history.Info, deadline
			op.Process = e.process
			e.History.Add(op)
			return true
		}
		if now >= until {
			return false
		}
		_ = e.Sleep(context.WithoutCancel(ctx), min(until, deadline)-now)
		e.point(ctx)
	}
}

// release records the release of a hold.
func (s *session) release(ctx context.Context, op history.Op) {
	e := s.e
	op.F, op.Lease = history.Release, 0
	op = e.begin(op)
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, err := s.calls.Release(limited, transport.ReleaseRequest{Session: s.id, Request: op.Request, Token: transport.Token(op.Token)})
	switch {
	case err == nil:
		e.end(op, history.OK, nil)
	case errors.Is(err, transport.ErrNotHeld), errors.Is(err, transport.ErrSessionGone):
		op.Note = "gone"
		e.end(op, history.OK, goneOr(err))
	default:
		s.unsure = true
		e.end(op, history.Info, err)
	}
}

// end closes the session, and with it ends a hold.
func (s *session) end(ctx context.Context) {
	e := s.e
	op := e.begin(history.Op{F: history.Close, Session: s.id})
	if err := s.close(ctx); err != nil {
		e.end(op, history.Info, err)
		return
	}
	e.end(op, history.OK, nil)
}

// close closes the session, and says nothing of it.
func (s *session) close(ctx context.Context) error {
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, err := s.calls.CloseSession(limited, transport.SessionCloseRequest{Session: s.id})
	if errors.Is(err, transport.ErrSessionGone) {
		return nil
	}
	return err
}
