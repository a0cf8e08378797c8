package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// TestNestedAcquiresAreSeen has two goroutines take a and b in opposite order, each the second under the first's context:
// one is refused with the cycle, the other gets both. Neither says anything about tasks.
func TestNestedAcquiresAreSeen(t *testing.T) {
	nests := map[string]func(k *client.Client, outer, inner string, meet func()) error{
		"Acquire": func(k *client.Client, outer, inner string, meet func()) error {
			first, err := k.Acquire(context.Background(), outer)
			if err != nil {
				return err
			}
			defer first.Release(context.Background())
			meet()
			second, err := k.Acquire(first.Context(), inner)
			if err != nil {
				return err
			}
			return second.Release(context.Background())
		},
		"Do": func(k *client.Client, outer, inner string, meet func()) error {
			return k.Do(context.Background(), outer, func(ctx context.Context) error {
				meet()
				return k.Do(ctx, inner, func(context.Context) error { return nil })
			})
		},
		"two clients": nil,
	}
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		for name, nest := range nests {
			one := connect(t, c, "one")
			defer one.close()
			other := one
			if nest == nil {
				nest, other = nests["Do"], connect(t, c, "other")
				defer other.close()
			}
			results := make(chan error, 2)
			var both sync.WaitGroup
			both.Add(2)
			meet := func() { both.Done(); both.Wait() }
			began := time.Now()
			go func() { results <- nest(one.Client, "a", "b", meet) }()
			go func() { results <- nest(other.Client, "b", "a", meet) }()
			refused := 0
			for range 2 {
				err := <-results
				var problem *transport.Error
				switch {
				case err == nil:
				case errors.Is(err, client.ErrDeadlock) && errors.Is(err, client.ErrNotAcquired) && errors.As(err, &problem):
					refused++
					if len(problem.Cycle) != 2 || problem.Cycle[0].WaitsFor == problem.Cycle[1].WaitsFor {
						t.Errorf("%s: the cycle is %+v", name, problem.Cycle)
					}
				default:
					t.Errorf("%s: %v", name, err)
				}
			}
			if took := time.Since(began); refused != 1 || took > time.Second {
				t.Errorf("%s: %d of two were refused, after %v", name, refused, took)
			}
		}
	})
}

// TestNothingElseIsRefused: what only looks like a deadlock is none, and is never refused as one.
func TestNothingElseIsRefused(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		k := connect(t, c, "one")
		defer k.close()
		ctx := context.Background()
		must := func(l *client.Lock, err error) *client.Lock {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		release := func(locks ...*client.Lock) {
			t.Helper()
			for _, l := range locks {
				if err := l.Release(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
		wait := func(ctx context.Context, name string) chan *client.Lock {
			got := make(chan *client.Lock, 1)
			go func() {
				l, err := k.Acquire(ctx, name)
				if err != nil {
					t.Errorf("waiting for %s: %v", name, err)
				}
				got <- l
			}()
			time.Sleep(100 * time.Millisecond)
			return got
		}

		// Crosswise without contexts: the holders are other goroutines than the waiters, and let go.
		a, b := must(k.Acquire(ctx, "a")), must(k.Acquire(ctx, "b"))
		forB, forA := wait(ctx, "b"), wait(ctx, "a")
		release(a, b)
		release(<-forB, <-forA)

		// Goroutines beside each other under one lock's context: the second waits for what the first will release.
		outer := must(k.Acquire(ctx, "outer"))
		first := must(k.Acquire(outer.Context(), "x"))
		second := wait(outer.Context(), "x")
		// … and a stranger may wait for the first, while the second waits for the stranger.
		stranger := must(k.Acquire(ctx, "y"))
		third := wait(outer.Context(), "y")
		beside := wait(stranger.Context(), "x")
		release(first)
		release(<-second)
		release(<-beside, stranger)
		release(<-third)

		// Released in another order than taken, the task goes on from what is left.
		inner := must(k.Acquire(outer.Context(), "x"))
		innermost := must(k.Acquire(inner.Context(), "y"))
		if now := lockState(t, c, "y"); now.Holders[0].Task != lockState(t, c, "outer").Holders[0].Task {
			t.Errorf("nested, but not of one task: %+v", now)
		}
		release(inner, innermost)
		release(must(k.Acquire(outer.Context(), "z")), outer)
	})
}

// TestTask: a lock without a nest has a task of its own, one under a context the same, one under an outer context, beside
// what is held already, another, and one with the option that which is said.
func TestTask(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		k, other := connect(t, c, "one"), connect(t, c, "other")
		defer k.close()
		defer other.close()
		count := 0
		take := func(k testClient, ctx context.Context, options ...client.AcquireOption) (*client.Lock, string) {
			t.Helper()
			count++
			l, err := k.Acquire(ctx, fmt.Sprint("lock-", count), options...)
			if err != nil {
				t.Fatal(err)
			}
			task := lockState(t, c, l.Name()).Holders[0].Task
			if task == "" {
				t.Errorf("%s has no task", l.Name())
			}
			return l, task
		}
		a, taskA := take(k, context.Background())
		_, taskB := take(k, context.Background())
		c1, taskC := take(k, a.Context())
		_, taskD := take(k, a.Context())
		e, taskE := take(k, c1.Context())
		f, taskF := take(k, e.Context(), client.Task("job"))
		_, taskG := take(k, f.Context())
		_, taskH := take(other, e.Context())
		if taskA == taskB || taskC != taskA || taskD == taskA || taskE != taskA || taskF != "job" || taskG != "job" {
			t.Errorf("tasks %q", []string{taskA, taskB, taskC, taskD, taskE, taskF, taskG})
		}
		if taskH != "#1" {
			t.Errorf("in another client the task is %q", taskH)
		}
		// A try and an acquire that failed leave nothing of themselves in the task.
		if _, err := k.TryAcquire(e.Context(), "lock-2"); !errors.Is(err, client.ErrHeld) {
			t.Error(err)
		}
		if _, task := take(k, e.Context()); task != taskA {
			t.Errorf("after a try that failed: task %q, want %q", task, taskA)
		}
	})
}

// TestTaskOfItsOwn: a goroutine waits for b under the context of a, but a is given back without waiting for it. Who holds b
// and asks for a is refused, since the context says otherwise, and is not when the goroutine has a task of its own.
func TestTaskOfItsOwn(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		for _, own := range []bool{false, true} {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			x, y := connect(t, c, "x"), connect(t, c, "y")
			b, err := x.Acquire(ctx, "b")
			if err != nil {
				t.Fatal(err)
			}
			a, err := y.Acquire(ctx, "a")
			if err != nil {
				t.Fatal(err)
			}
			var options []client.AcquireOption
			if own {
				options = append(options, client.Task("cleaning"))
			}
			var both sync.WaitGroup
			both.Go(func() {
				if _, err := y.Acquire(a.Context(), "b", options...); !errors.Is(err, client.ErrReleased) {
					t.Errorf("own task %t: the wait under a's context ended with %v", own, err)
				}
			})
			time.Sleep(time.Second)
			both.Go(func() {
				time.Sleep(time.Second)
				if err := a.Release(ctx); err != nil {
					t.Error(err)
				}
			})
			if _, err := x.Acquire(b.Context(), "a"); errors.Is(err, client.ErrDeadlock) == own {
				t.Errorf("own task %t: asking for a under b: %v", own, err)
			}
			both.Wait()
			x.close()
			y.close()
			cancel()
		}
	})
}
