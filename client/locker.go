package client

import (
	"context"
	"sync"
)

// Locker is a sync.Locker, for code that knows nothing of distributed locks. That
// interface can tell neither an error nor a loss, so use Acquire where you can.
type Locker struct {
	client  *Client
	ctx     context.Context
	name    string
	options []AcquireOption

	mu   sync.Mutex
	held *Lock
}

// Locker gives a sync.Locker for the lock called name. ctx is what its Lock waits
// under. It sends nothing.
func (c *Client) Locker(ctx context.Context, name string, options ...AcquireOption) *Locker {
	return &Locker{client: c, ctx: ctx, name: name, options: options}
}

// Lock blocks until the lock is acquired. It panics with Acquire's error when that
// fails, as it does when ctx ends: to return without the lock would be worse.
func (l *Locker) Lock() {
	lock, err := l.client.Acquire(l.ctx, l.name, l.options...)
	if err != nil {
		panic(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = lock
}

// Unlock releases the lock, and waits up to 2 s for that; what the server has not
// confirmed by then the Client settles by itself. It panics when Lock was not called.
func (l *Locker) Unlock() {
	l.mu.Lock()
	lock := l.held
	l.held = nil
	l.mu.Unlock()
	if lock == nil {
		panic("pawl: Unlock of a Locker that is not locked")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(l.ctx), closeTimeout)
	defer cancel()
	if err := lock.Release(ctx); err != nil {
		l.client.log.Warn("unlocking failed", "lock", l.name, "error", err)
	}
}

// Held gives the lock between Lock and Unlock, with its token and context; nil
// otherwise.
func (l *Locker) Held() *Lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}
