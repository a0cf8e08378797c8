package workload

import (
	"context"
	"fmt"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/jepsen/history"
	"github.com/pawl-lock/pawl/transport"
)

// election has candidates lead in turn, and hand over to each other.
type election struct{ ordinary }

func (election) Name() string    { return "election" }
func (election) Locks() []string { return []string{"election"} }

func (w election) Client(ctx context.Context, e *Env) {
	c := e.connect()
	defer func() { e.disconnect(c) }()
	for e.rest(ctx) {
		if e.one(30) {
			e.disconnect(c)
			c = e.connect()
		}
		w.round(ctx, e, c.Election(w.Locks()[0], candidate(e.Index)))
	}
}

func candidate(i int) string { return fmt.Sprint("candidate", i) }

func (w election) round(ctx context.Context, e *Env, race *client.Election) {
	op := e.begin(history.Op{F: history.Acquire, Lock: w.Locks()[0], Mode: transport.ModeExclusive})
	limited, cancel := context.WithTimeout(ctx, e.between(time.Second, 30*time.Second))
	won, err := race.Campaign(limited, "here")
	cancel()
	e.point(ctx)
	if err != nil {
		e.end(op, history.Fail, err)
		return
	}
	h := e.held(op, won.Lock)
	if h == nil {
		return
	}
	h.work(ctx, most)
	if h.holds() && e.one(3) {
		w.handOver(ctx, h, won)
		return
	}
	h.release(ctx)
}

// handOver is a release too: the belief ends when it begins, although the leader leads for a moment more.
func (w election) handOver(ctx context.Context, h *hold, won *client.Leadership) {
	e := h.e
	op := h.op
	op.F, op.Note = history.Release, "to "+candidate(e.Rand.IntN(e.Clients))
	op = e.begin(op)
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := won.HandOver(limited, op.Note[len("to "):])
	if h.lock.Held() { // nobody was there to hand over to
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		err = won.Resign(limited)
	}
	<-h.recorded
	if err == nil && !h.lost {
		e.end(op, history.OK, err)
		return
	}
	e.end(op, history.Info, err)
}

func (election) Final(context.Context, *Env) {}
