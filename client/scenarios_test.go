package client_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// TestNothingLeaks is A14: many locks, many acquires that fail, and leaders that crash leave no session and no goroutine (the
// bubble sees to that).
func TestNothingLeaks(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		holder, k := connect(t, c, "holder"), connect(t, c, "one", client.WithTTL(3*time.Second))
		ctx := context.Background()
		if _, err := holder.Acquire(ctx, "held"); err != nil {
			t.Fatal(err)
		}
		for round := range 5 {
			for i := range 20 {
				l, err := k.Acquire(ctx, fmt.Sprint("x", i%3))
				if err != nil {
					t.Fatal(err)
				}
				if err := l.Release(ctx); err != nil {
					t.Fatal(err)
				}
				short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				if _, err := k.Acquire(short, "held"); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				cancel()
			}
			if now := lockState(t, c, "held"); len(now.Queue) != 0 {
				t.Errorf("round %d: %d requests wait that nobody waits for", round, len(now.Queue))
			}
			leader := c.Leader()
			c.Crash(leader)
			l, err := k.Acquire(ctx, "across")
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Release(ctx); err != nil {
				t.Fatal(err)
			}
			c.Start(leader)
			c.WaitReady()
		}
		k.close()
		holder.close()
		time.Sleep(20 * time.Second)
		var sessions transport.SessionsResponse
		if c.MustGet(c.Leader(), "/v1/sessions").Into(t, &sessions); len(sessions.Sessions) != 0 {
			t.Errorf("%+v", sessions.Sessions)
		}
	})
}

// TestExpiredLockIsFreeAtOnce is A29: who comes after a dead holder's time has its lock at once, who waited has it when that
// time is over.
func TestExpiredLockIsFreeAtOnce(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		k := connect(t, c, "next")
		defer k.close()
		ctx := context.Background()
		for _, late := range []bool{false, true} {
			dead := connect(t, c, fmt.Sprint("dead", late), client.WithTTL(3*time.Second))
			defer dead.close()
			if _, err := dead.Acquire(ctx, "x"); err != nil {
				t.Fatal(err)
			}
			c.Network.Isolate(fmt.Sprint("dead", late))
			died := time.Now()
			time.Sleep(time.Second)
			least, most := 2*time.Second, 3*time.Second
			if late {
				time.Sleep(time.Minute)
				least, most = 0, 200*time.Millisecond
			}
			began := time.Now()
			l, err := k.Acquire(ctx, "x")
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took < least-100*time.Millisecond || took > most {
				t.Errorf("late %t: granted after %v, %v after the holder died", late, took, time.Since(died))
			}
			if err := l.Release(ctx); err != nil {
				t.Fatal(err)
			}
			c.Network.HealAll()
		}
	})
}

// TestNoLeaderForLongerThanTheLease is B03: without a leader a holder loses its lock in its time, nobody else has it before,
// and when the cluster is back what it has lost stays lost.
func TestNoLeaderForLongerThanTheLease(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		const ttl = 4 * time.Second
		holder, waiter := connect(t, c, "holder", client.WithTTL(ttl)), connect(t, c, "waiter")
		defer holder.close()
		defer waiter.close()
		ctx := context.Background()
		held, err := holder.Acquire(ctx, "x")
		if err != nil {
			t.Fatal(err)
		}
		granted := make(chan time.Time)
		go func() {
			l, err := waiter.Acquire(ctx, "x")
			if err != nil {
				t.Error(err)
			} else if l.Token() <= held.Token() {
				t.Errorf("tokens %d, then %d", held.Token(), l.Token())
			}
			granted <- time.Now()
		}()
		time.Sleep(5 * time.Second)
		c.Stop(1)
		c.Stop(2)
		stopped := time.Now()
		<-held.Done()
		lost := time.Now()
		if took := lost.Sub(stopped); took > ttl || !errors.Is(held.Err(), client.ReasonUnreachable) {
			t.Errorf("lost after %v: %v", took, held.Err())
		}
		time.Sleep(10 * time.Second)
		back := time.Now()
		c.Start(1)
		c.Start(2)
		if at := <-granted; at.Before(lost) || at.Sub(back) > ttl+5*time.Second {
			t.Errorf("granted %v after the cluster was back, %v after it was lost", at.Sub(back), at.Sub(lost))
		}
		time.Sleep(time.Minute)
		if held.Held() || held.State() != client.StateLost {
			t.Error("a lost lock came back")
		}
	})
}
