package client

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestLocker: one at a time, as with any sync.Locker, and a failure is not silent.
func TestLocker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c, other := n.client(t), n.client(t)
		defer mustClose(t, other)
		var inside, turns int
		var all sync.WaitGroup
		var once sync.Locker = c.Locker(t.Context(), "x")
		for _, l := range []sync.Locker{once, once, other.Locker(t.Context(), "x")} {
			all.Go(func() {
				for range 10 {
					l.Lock()
					if inside++; inside != 1 {
						t.Error("two inside at once")
					}
					time.Sleep(time.Second)
					inside--
					turns++
					l.Unlock()
				}
			})
		}
		all.Wait()
		if held, waiting := n.state("x"); turns != 30 || held || waiting != 0 {
			t.Errorf("%d turns, held %t, %d waiting", turns, held, waiting)
		}
		mustPanic := func(f func()) (value any) {
			defer func() { value = recover() }()
			f()
			t.Error("no panic")
			return nil
		}
		l := c.Locker(t.Context(), "y")
		mustPanic(l.Unlock)
		l.Lock()
		if !l.Held().Held() {
			t.Error("not held")
		}
		l.Unlock()
		if l.Held() != nil {
			t.Error("held still")
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		mustLock(t, other, "y")
		if err, _ := mustPanic(c.Locker(short, "y").Lock).(error); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("panic with %v", err)
		}
		mustClose(t, c)
	})
}
