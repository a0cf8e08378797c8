package workload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/jepsen/history"
	"github.com/pawl-lock/pawl/transport"
)

// longestTTL is that of all sessions.
const longestTTL = 6 * time.Second

// ask is what a client asks for.
type ask struct {
	names []string
	mode  string // exclusive when empty
	limit int64
}

// hold is a lock that a client has, and what it believes about it.
type hold struct {
	e        *Env
	lock     *client.Lock
	mu       sync.Mutex    // guards op against the end of the lock's context
	op       history.Op    // template of what is recorded about it
	seen     atomic.Int64  // when it was last seen to be held
	lost     bool          // may be read when recorded is closed
	recorded chan struct{} // closed when the end of the lock's context is
}

// connect makes the SDK's client.
func (e *Env) connect() *client.Client {
	c, err := client.New(e.Client.Endpoints,
		client.WithHTTPClient(e.Client.HTTP), client.WithClock(e.Client.Clock),
		client.WithOwner(fmt.Sprint("client", e.Index)),
		client.WithTTL(e.between(time.Second, longestTTL).Truncate(time.Millisecond)))
	if err != nil {
		panic(err) // only a wrong argument is an error
	}
	return c
}

func (e *Env) disconnect(c *client.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_ = c.Close(ctx) // what it could not close ends with its TTL
}

// contend has a client ask for locks, hold them for a while and give them back, again and again, until ctx ends.
func (e *Env) contend(ctx context.Context, pick func() ask, inside func(context.Context, *hold)) {
	c := e.connect()
	defer func() { e.disconnect(c) }()
	for e.rest(ctx) {
		if e.one(30) { // a program that is started anew
			e.disconnect(c)
			c = e.connect()
		}
		if h := e.acquire(ctx, c, pick()); h != nil {
			inside(ctx, h)
			h.release(ctx)
		}
	}
}

// acquire records an acquire and returns the hold, nil when there is none.
func (e *Env) acquire(ctx context.Context, c *client.Client, a ask) *hold {
	op := history.Op{F: history.Acquire, Mode: a.mode, Limit: a.limit}
	if op.Mode == "" {
		op.Mode = transport.ModeExclusive
	}
	if len(a.names) == 1 {
		op.Lock = a.names[0]
	} else {
		for _, name := range a.names {
			op.Locks = append(op.Locks, history.Granted{Name: name})
		}
	}
	var options []client.AcquireOption
	switch {
	case a.limit > 0:
		options = append(options, client.Semaphore(a.limit))
	case a.mode == transport.ModeShared:
		options = append(options, client.Shared())
	}
	if e.one(12) {
		options = append(options, client.MaxHold(e.between(500*time.Millisecond, 3*time.Second).Truncate(time.Millisecond)))
	}
	limited, cancel := context.WithTimeout(ctx, e.between(time.Second, 20*time.Second))
	defer cancel()
	call := c.AcquireAll
	if e.one(4) {
		call = c.TryAcquireAll
	}
	op = e.begin(op)
	lock, err := call(limited, a.names, options...)
	e.point(ctx) // here a client may be paused before it knows that it has the lock
	if err != nil {
		e.end(op, history.Fail, err) // the SDK has given back what it may have been granted
		return nil
	}
	return e.held(op, lock)
}

// held records that an acquire was granted, and watches over the belief.
func (e *Env) held(op history.Op, lock *client.Lock) *hold {
	if op.Locks == nil {
		op.Token = uint64(lock.Token())
	} else {
		granted := make([]history.Granted, 0, len(op.Locks))
		for _, g := range op.Locks {
			granted = append(granted, history.Granted{Name: g.Name, Token: uint64(lock.TokenOf(g.Name))})
		}
		op.Locks = granted
	}
	h := &hold{e: e, lock: lock, op: op, recorded: make(chan struct{})}
	if lock.Held() {
		e.end(op, history.OK, nil)
		h.seen.Store(int64(e.Now()))
	} else {
		// It was lost before it was known: nobody ever believed in it.
		op.Note = "lost before it was known"
		e.end(op, history.Fail, lock.Err())
		_ = lock.Release(lock.Context())
		return nil
	}
	context.AfterFunc(lock.Context(), func() {
		defer close(h.recorded)
		var why *client.LostError
		if !errors.As(context.Cause(lock.Context()), &why) {
			return
		}
		h.lost = true
		h.mu.Lock()
		defer h.mu.Unlock()
		lost := h.op
		lost.F, lost.Type, lost.Note = history.Lost, history.Info, string(why.Reason)
		lost.Lease = time.Duration(h.seen.Load())
		if e.Exact {
			lost.Lease = e.Now()
		}
		e.History.Add(lost)
	})
	return h
}

// holds asks whether the lock is held, as a careful program does before each step.
func (h *hold) holds() bool {
	held := h.lock.Held()
	if held {
		h.seen.Store(int64(h.e.Now()))
	}
	return held
}

// work passes some time, at most as long as the lock is held.
func (h *hold) work(ctx context.Context, most time.Duration) {
	for range 1 + h.e.Rand.IntN(3) {
		if !h.holds() {
			return
		}
		_ = h.e.Sleep(ctx, h.e.between(0, most/3))
		h.e.point(ctx)
	}
}

// prepare passes time between a read and the write that follows from it, and says whether to write at all. Every other time the
// program is careless and does not ask whether it still holds the lock. A careful one asks, and is then still on its way to the
// write for a moment: nothing but the stamp helps against a pause there.
func (h *hold) prepare(ctx context.Context) bool {
	e := h.e
	if e.one(2) {
		_ = e.Sleep(ctx, e.between(0, most))
	} else {
		h.work(ctx, most)
		if !h.holds() {
			return false
		}
		_ = e.Sleep(ctx, e.between(0, most/10))
	}
	e.point(ctx)
	return ctx.Err() == nil
}

// convert records a change of the hold's mode, from shared to exclusive or back. Refused, as when another reader waits for the
// same, it leaves the hold as it was.
func (h *hold) convert(ctx context.Context, most time.Duration) {
	e := h.e
	if !h.holds() {
		return
	}
	op := h.op
	op.F = history.Convert
	var options []client.AcquireOption
	if op.Mode == transport.ModeExclusive {
		op.Mode, options = transport.ModeShared, []client.AcquireOption{client.Shared()}
	} else {
		op.Mode = transport.ModeExclusive
	}
	op = e.begin(op)
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err := h.lock.Convert(limited, options...)
	e.point(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch held := h.holds(); {
	case err == nil && held:
		op.Token = uint64(h.lock.Token())
		e.end(op, history.OK, nil)
		h.op = op
	case held:
		e.end(op, history.Fail, err)
	default: // lost meanwhile: it may have been converted before
		e.end(op, history.Info, err)
	}
}

// release records the release of a hold that was not lost.
func (h *hold) release(ctx context.Context) {
	e := h.e
	if !h.holds() {
		<-h.recorded
		// The client settles by itself what may be left of it, as of several locks of which one was lost.
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = h.lock.Release(limited)
		return
	}
	op := h.op
	op.F = history.Release
	op = e.begin(op)
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := h.lock.Release(limited)
	<-h.recorded
	switch {
	case h.lost: // in this very moment, so nothing was sent
		e.end(op, history.Info, err)
	case err == nil:
		e.end(op, history.OK, nil)
	case errors.Is(err, client.ErrLost):
		op.Note = "gone"
		e.end(op, history.OK, err)
	default:
		e.end(op, history.Info, err)
	}
}
