package workload

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pawl-lock/pawl/jepsen/history"
	"github.com/pawl-lock/pawl/transport"
)

// requests sends every message several times, late, out of order and to several nodes: each numbered request happens once.
type requests struct{ ordinary }

func (requests) Name() string    { return "requests" }
func (requests) Locks() []string { return []string{"requests/a", "requests/b"} }

// mostLate bounds the messages of a client that are on their way.
const mostLate = 32

func (w requests) Client(ctx context.Context, e *Env) {
	c := e.connect()
	defer e.disconnect(c)
	late := make(chan struct{}, mostLate)
	var sending sync.WaitGroup
	defer sending.Wait()
	for e.rest(ctx) {
		s := e.open(ctx, c.Calls(), longestTTL)
		if s == nil {
			continue
		}
		keeping, stop := context.WithCancel(ctx)
		var kept sync.WaitGroup
		kept.Go(func() { s.keep(keeping) })
		for range 1 + e.Rand.IntN(20) {
			if !e.rest(ctx) || e.Now() >= s.deadline() {
				break
			}
			s.last++
			if !w.round(ctx, s, s.last, late, &sending) {
				break
			}
		}
		if e.one(2) {
			sending.Wait()
		}
		stop()
		kept.Wait()
		_ = s.close(ctx)
	}
}

// round sends one request and what belongs to it, and says whether that was surely ended: if not, going on renewing the session
// would keep it. Late copies go on in the background.
func (w requests) round(ctx context.Context, s *session, number uint64, late chan struct{}, sending *sync.WaitGroup) bool {
	e := s.e
	lock := pickOne(e, w.Locks())
	wait := e.between(0, 3*time.Second)
	copies := func(f string, first, last time.Duration) {
		for range e.Rand.IntN(3) {
			select {
			case late <- struct{}{}:
			default:
				return
			}
			copied, after := e.fork(), e.between(first, last)
			sending.Go(func() {
				defer func() { <-late }()
				if copied.Sleep(ctx, after) == nil {
					w.send(ctx, copied, s, f, lock, number, wait)
				}
			})
		}
	}
	copies(history.Acquire, 0, time.Second)
	copies(history.Acquire, time.Second, 8*time.Second)
	if e.one(6) { // a cancel that may overtake its acquire
		copies(history.Cancel, 0, wait)
	}
	granted := w.send(ctx, e, s, history.Acquire, lock, number, wait)
	if granted {
		_ = e.Sleep(ctx, e.between(0, 300*time.Millisecond))
	}
	f := history.Cancel
	if granted && e.one(2) {
		f = history.Release
	}
	copies(f, 0, 4*time.Second)
	if !w.send(ctx, e, s, f, lock, number, 0) {
		return false
	}
	copies(history.Acquire, 0, 6*time.Second)
	w.send(ctx, e, s, history.Look, lock, number, 0)
	return true
}

// send sends one message once and records it, and says whether it was done.
func (w requests) send(ctx context.Context, e *Env, s *session, f, lock string, number uint64, wait time.Duration) bool {
	op := history.Op{F: f, Lock: lock, Session: s.id, Request: number}
	if f == history.Look {
		return e.look(ctx, lock)
	}
	if f == history.Acquire {
		op.Mode = transport.ModeExclusive
	}
	op = e.begin(op)
	var err error
	var a answer
	node, sent := e.anyNode(), e.Now()
	done := true
	switch f {
	case history.Acquire:
		var got transport.AcquireResponse
		a, err = e.send(ctx, node, "/v1/acquire", wait, transport.AcquireRequest{
			Locks: []transport.LockRequest{{Name: lock}}, Session: s.id, Request: number, WaitMS: max(wait.Milliseconds(), 1)}, &got)
		if err == nil && !got.Granted {
			op.Note, done = "queued", false
		} else if err == nil {
			op.Token, op.Lease = uint64(got.Locks[0].Token), lease(sent, got.LeaseMS)
			if got.Replayed {
				op.Note = "replayed"
			}
		}
	case history.Release:
		var got transport.ReleaseResponse
		a, err = e.send(ctx, node, "/v1/release", 0, transport.ReleaseRequest{Session: s.id, Request: number}, &got)
	case history.Cancel:
		var got transport.CancelResponse
		a, err = e.send(ctx, node, "/v1/cancel", 0, transport.CancelRequest{Session: s.id, Request: number}, &got)
		op.Note = got.State
	}
	op.Log, op.Node = a.index, a.node
	var refusal *transport.Error
	switch {
	case err == nil && !done:
		e.end(op, history.Fail, nil) // in its place in the queue, and not granted by this message
	case err == nil:
		e.end(op, history.OK, nil)
	case errors.As(err, &refusal) && refused(err):
		e.end(op, history.Fail, refusal.Code)
	case refused(err):
		e.end(op, history.Fail, err)
	default:
		e.end(op, history.Info, err)
	}
	return err == nil && done
}

func (requests) Final(context.Context, *Env) {}

// reads looks at locks from every side while others contend for them.
type reads struct{ ordinary }

func (reads) Name() string    { return "reads" }
func (reads) Locks() []string { return []string{"reads/a", "reads/b"} }

func (w reads) Client(ctx context.Context, e *Env) {
	var looking sync.WaitGroup
	defer looking.Wait()
	looker := e.fork()
	looker.Rate *= 4
	looking.Go(func() {
		for looker.rest(ctx) {
			looker.look(ctx, pickOne(looker, w.Locks()))
		}
	})
	e.contend(ctx, func() ask { return ask{names: []string{pickOne(e, w.Locks())}} }, func(ctx context.Context, h *hold) { h.work(ctx, most/2) })
}

func (reads) Final(context.Context, *Env) {}

// look records a read of who holds a lock.
func (e *Env) look(ctx context.Context, lock string) bool {
	op := e.begin(history.Op{F: history.Look, Lock: lock})
	var got transport.LockResponse
	a, err := e.send(ctx, e.anyNode(), "/v1/lock?name="+lock, 0, nil, &got)
	if err != nil {
		e.end(op, history.Fail, err)
		return false
	}
	op.Log, op.Node = a.index, a.node
	if len(got.Holders) > 0 {
		op.Token, op.Mode = uint64(got.Holders[0].Token), got.Holders[0].Mode
	}
	e.end(op, history.OK, nil)
	return true
}
