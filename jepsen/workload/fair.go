package workload

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/pawl-lock/pawl/jepsen/history"
	"github.com/pawl-lock/pawl/transport"
)

// fair has clients queue: whoever was told its place before another asked is first.
type fair struct{ ordinary }

func (fair) Name() string    { return "fair" }
func (fair) Locks() []string { return []string{"fair/a"} }

func (w fair) Client(ctx context.Context, e *Env) {
	c := e.connect()
	defer e.disconnect(c)
	for e.rest(ctx) {
		s := e.open(ctx, c.Calls(), longestTTL)
		if s == nil {
			continue
		}
		keeping, stop := context.WithCancel(ctx)
		var kept sync.WaitGroup
		kept.Go(func() { s.keep(keeping) })
		for range 1 + e.Rand.IntN(20) {
			if !e.rest(ctx) || e.Now() >= s.deadline() || !w.round(ctx, s) {
				break
			}
		}
		stop()
		kept.Wait()
		_ = s.close(ctx) // what it left in the queue ends with it
	}
}

// round queues, waits, holds and releases once. It says whether the session is of use for another round.
func (w fair) round(ctx context.Context, s *session) bool {
	e := s.e
	s.last++
	op := history.Op{F: history.Queue, Lock: pickOne(e, w.Locks()), Mode: transport.ModeExclusive, Session: s.id, Request: s.last}
	op = e.begin(op)
	sent := e.Now()
	var got transport.AcquireResponse
	answer, err := e.send(ctx, e.anyNode(), "/v1/acquire", time.Second, transport.AcquireRequest{
		Locks: []transport.LockRequest{{Name: op.Lock}}, Session: s.id, Request: s.last, WaitMS: 1}, &got)
	e.point(ctx)
	switch {
	case refused(err):
		e.end(op, history.Fail, goneOr(err))
		return !errors.Is(err, transport.ErrSessionGone)
	case err != nil:
		e.end(op, history.Info, err)
		return false // closing the session takes it out of the queue, if it is there
	}
	op.Log, op.Node = answer.index, answer.node
	if got.Granted {
		op.Token, op.Lease = uint64(got.Locks[0].Token), s.extend(sent, got.LeaseMS)
	}
	e.end(op, history.OK, nil)
	op.F, op.Log, op.Node = history.Acquire, 0, ""
	granted := &op
	if !got.Granted {
		op = e.begin(op)
		if granted = s.await(ctx, op, 40*time.Second); granted == nil {
			return !s.unsure && e.Now() < s.deadline()
		}
	}
	if s.lostBy(ctx, *granted, e.Now()+e.between(0, 300*time.Millisecond)) {
		return false
	}
	s.release(ctx, *granted)
	return !s.unsure
}

func (fair) Final(context.Context, *Env) {}
