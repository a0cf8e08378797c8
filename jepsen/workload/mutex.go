package workload

import (
	"context"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

// most is how long a hold's work may take at most, often longer than its lease.
const most = 2 * time.Second

// mutex has clients contend for a few exclusive locks.
type mutex struct{ ordinary }

func (mutex) Name() string    { return "mutex" }
func (mutex) Locks() []string { return []string{"mutex/a", "mutex/b"} }

func (w mutex) Client(ctx context.Context, e *Env) {
	e.contend(ctx, func() ask { return ask{names: []string{pickOne(e, w.Locks())}} }, func(ctx context.Context, h *hold) { h.work(ctx, most) })
}

func (mutex) Final(context.Context, *Env) {}

// readWrite has readers and writers of one lock, some of whom change from one to the other.
type readWrite struct{ ordinary }

func (readWrite) Name() string    { return "rw" }
func (readWrite) Locks() []string { return []string{"rw/a", "rw/b"} }

func (w readWrite) Client(ctx context.Context, e *Env) {
	e.contend(ctx, func() ask {
		mode := transport.ModeShared
		if e.one(3) {
			mode = transport.ModeExclusive
		}
		return ask{names: []string{pickOne(e, w.Locks())}, mode: mode}
	}, func(ctx context.Context, h *hold) {
		h.work(ctx, most)
		for range e.Rand.IntN(3) {
			h.convert(ctx, e.between(100*time.Millisecond, 5*time.Second))
			h.work(ctx, most/2)
		}
	})
}

func (readWrite) Final(context.Context, *Env) {}

// semaphore has clients share permits.
type semaphore struct{ ordinary }

const permits = 2

func (semaphore) Name() string    { return "semaphore" }
func (semaphore) Locks() []string { return []string{"semaphore/a"} }

func (w semaphore) Client(ctx context.Context, e *Env) {
	e.contend(ctx, func() ask {
		return ask{names: []string{pickOne(e, w.Locks())}, mode: transport.ModeShared, limit: permits}
	}, func(ctx context.Context, h *hold) { h.work(ctx, most) })
}

func (semaphore) Final(context.Context, *Env) {}
