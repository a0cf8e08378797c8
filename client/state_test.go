package client

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestState: a lock is uncertain from the first renewal that fails until one succeeds or the deadline is reached.
func TestState(t *testing.T) {
	for _, f := range []fault{refusing, hanging, mute} {
		synctest.Test(t, func(t *testing.T) {
			const ttl = 6 * time.Second
			n := newNetwork()
			c := n.client(t, WithTTL(ttl))
			defer mustClose(t, c)
			lock, other := mustLock(t, c, "x"), mustLock(t, c, "y")
			expect := func(want State) {
				t.Helper()
				if got := lock.State(); got != want || lock.Held() != (want == StateHeld || want == StateUncertain) {
					t.Errorf("%s: state %s, held %t, want %s", f, got, lock.Held(), want)
				}
			}
			expect(StateHeld)
			n.setAll(f)
			time.Sleep(ttl/3 + ttl/4 + time.Second)
			expect(StateUncertain)
			n.setAll(healthy)
			time.Sleep(time.Second)
			expect(StateHeld)
			if err := other.Release(t.Context()); err != nil || other.State() != StateReleased {
				t.Errorf("%s: a released lock is %s: %v", f, other.State(), err)
			}
			n.setAll(refusing)
			time.Sleep(ttl)
			expect(StateLost)
			n.setAll(healthy)
			time.Sleep(ttl)
			expect(StateLost)
			if other.State() != StateReleased {
				t.Errorf("%s: a lost session made a released lock %s", f, other.State())
			}
			last := mustLock(t, c, "z")
			mustClose(t, c)
			if last.State() != StateReleased || !errors.Is(last.Err(), ErrClosed) {
				t.Errorf("%s: after Close a lock is %s: %v", f, last.State(), last.Err())
			}
		})
	}
}

// TestContextOfALock: it has the values of the acquire's context and not its end, and looks at the lease's clock when it is
// asked, since timers do not count suspended time.
func TestContextOfALock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		start, suspended := time.Now(), time.Duration(0)
		c := n.client(t, WithClock(func() time.Duration { return time.Since(start) + suspended }))
		defer mustClose(t, c)
		type key struct{}
		asking, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "v"))
		lock, err := c.Acquire(asking, "x")
		if err != nil {
			t.Fatal(err)
		}
		ctx := lock.Context()
		child, stop := context.WithCancel(ctx)
		defer stop()
		cancel()
		if ctx.Value(key{}) != "v" || ctx.Err() != nil || child.Err() != nil || !lock.Held() {
			t.Errorf("value %v, %v", ctx.Value(key{}), ctx.Err())
		}
		suspended = time.Hour
		// Asked, it knows at once; nothing that blocks has run in between.
		if !ended(ctx.Done()) || !errors.Is(context.Cause(ctx), ErrLost) || !errors.Is(context.Cause(child), ErrLost) {
			t.Errorf("after the suspension: %v, %v", context.Cause(ctx), context.Cause(child))
		}
	})
}
