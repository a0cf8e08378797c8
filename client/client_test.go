package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

func mustLock(t *testing.T, c *Client, name string) *Lock {
	t.Helper()
	lock, err := c.Acquire(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func mustClose(t *testing.T, c *Client) {
	t.Helper()
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// ended says whether the channel is closed.
func ended(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestOneSessionHoldsAllLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := n.client(t)
		defer mustClose(t, c)
		first := mustLock(t, c, "a")
		mustLock(t, c, "b")
		ctx := first.Context()
		time.Sleep(5 * time.Minute)
		if !first.Held() || first.Err() != nil || ctx.Err() != nil {
			t.Fatalf("after five minutes: held %t, %v", first.Held(), first.Err())
		}
		if opened, renewed := len(n.requests("/v1/session", time.Time{})), len(n.requests("/v1/renew", time.Time{})); opened != 1 || renewed < 58 || renewed > 60 {
			t.Errorf("%d sessions and %d renewals, want 1 and 60", opened, renewed)
		}
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if first.Held() || !errors.Is(context.Cause(ctx), ErrReleased) || !ended(first.Done()) || first.State() != StateReleased {
			t.Errorf("after Release: held %t, cause %v, done %t", first.Held(), context.Cause(ctx), ended(first.Done()))
		}
		if err := first.Release(t.Context()); err != nil {
			t.Errorf("a second Release: %v", err)
		}
		if again := mustLock(t, c, "a"); again.Token() <= first.Token() {
			t.Errorf("token %d after %d", again.Token(), first.Token())
		}
	})
}

// TestSameProcessLocksTwice is A28.
func TestSameProcessLocksTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newNetwork().client(t)
		defer mustClose(t, c)
		first := mustLock(t, c, "x")
		second := make(chan *Lock)
		go func() { second <- mustLock(t, c, "x") }()
		time.Sleep(2 * time.Minute) // several waiting calls
		select {
		case <-second:
			t.Fatal("both hold the lock")
		default:
		}
		if err := first.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if lock := <-second; lock.Token() <= first.Token() || !lock.Held() {
			t.Errorf("token %d after %d, held %t", lock.Token(), first.Token(), lock.Held())
		}
	})
}

// TestHungNode is A10: a node that hangs with its connections open costs no lock.
func TestHungNode(t *testing.T) {
	for _, ttl := range []time.Duration{time.Second, 6 * time.Second, 15 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			n.leader = "n2"
			c := n.client(t, WithTTL(ttl))
			defer mustClose(t, c)
			lock := mustLock(t, c, "x")
			start := time.Now()
			n.mu.Lock()
			n.fault["n2"] = hanging // the followers go on to call it the leader
			n.mu.Unlock()
			time.Sleep(10 * ttl)
			if !lock.Held() || ended(lock.Done()) {
				t.Fatalf("TTL %v: the lock was lost: %v", ttl, lock.Err())
			}
			hung := 0
			for _, s := range n.requests("/v1/renew", start) {
				if s.host == "n2" && !s.until.IsZero() {
					hung++
					if took := s.until.Sub(s.at); took > min(2*time.Second, ttl/3) {
						t.Errorf("TTL %v: an attempt took %v", ttl, took)
					}
				}
			}
			if hung == 0 {
				t.Error("nothing was sent to the hung node: this shows nothing")
			}
		})
	}
}

// TestWaitAtHungNode: a call that waits at a node that hangs is repeated
// elsewhere as soon as the renewals notice, not at the end of its wait.
func TestWaitAtHungNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.leader = "n1"
		c, holder := n.client(t, WithTTL(6*time.Second)), n.client(t)
		defer mustClose(t, c)
		defer mustClose(t, holder)
		held := mustLock(t, holder, "x")
		granted := make(chan time.Time)
		go func() {
			mustLock(t, c, "x")
			granted <- time.Now()
		}()
		time.Sleep(time.Second)
		n.set("n1", hanging)
		// Waits that stand at n1 already must hang too.
		n.mu.Lock()
		n.leader = "n3"
		n.mu.Unlock()
		for _, l := range n.requests("/v1/acquire", time.Time{}) {
			if l.until.IsZero() && l.host != "n1" {
				t.Fatal("the wait is not at the node that hangs")
			}
		}
		start := time.Now()
		time.Sleep(4 * time.Second)
		moved := false
		for _, s := range n.requests("/v1/acquire", start) {
			moved = moved || s.host != "n1" && s.contains(`"request":1`)
		}
		if !moved {
			t.Error("the wait was not repeated elsewhere within 4 s")
		}
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-granted
	})
}

// TestLostNoLaterThanTheDeadline is A08 (b), A09 and A12: without an acknowledged
// renewal the lock is lost by TTL after the last one was sent, nothing is sent
// for it afterwards, and the Client can lock again.
func TestLostNoLaterThanTheDeadline(t *testing.T) {
	for _, f := range []fault{refusing, hanging} {
		for range 20 {
			synctest.Test(t, func(t *testing.T) {
				const ttl = 3 * time.Second
				n := newNetwork()
				n.delay = func() time.Duration { return rand.N(100 * time.Millisecond) }
				c := n.client(t, WithTTL(ttl))
				defer mustClose(t, c)
				lock := mustLock(t, c, "x")
				ctx := lock.Context()
				time.Sleep(5*time.Second + rand.N(2*time.Second))
				n.setAll(f)
				renewals := n.requests("/v1/renew", time.Time{})
				last := renewals[len(renewals)-1]
				cut := time.Now()
				<-lock.Done()
				if after := time.Since(last.at); after > ttl {
					t.Errorf("%s: lost %v after the last renewal was sent", f, after)
				}
				if time.Since(cut) < ttl/2 {
					t.Errorf("%s: lost already after %v", f, time.Since(cut))
				}
				synctest.Wait()
				var lost *LostError
				if !errors.As(context.Cause(ctx), &lost) || lost.Reason != ReasonUnreachable || lock.Held() {
					t.Errorf("%s: cause %v, held %t", f, context.Cause(ctx), lock.Held())
				}
				quiet := time.Now().Add(time.Nanosecond)
				time.Sleep(10 * time.Second)
				if sent := n.requests("", quiet); len(sent) != 0 {
					t.Errorf("%s: %d requests after the loss, as %+v", f, len(sent), sent[0])
				}
				n.setAll(healthy)
				again := mustLock(t, c, "x")
				time.Sleep(15 * time.Second)
				if !again.Held() || lock.Held() || again.Token() <= lock.Token() {
					t.Errorf("%s: the new lock is held: %t, the old one: %t", f, again.Held(), lock.Held())
				}
				if err := lock.Release(t.Context()); !errors.Is(err, ErrLost) {
					t.Errorf("%s: Release of the lost lock: %v", f, err)
				}
				if !again.Held() {
					t.Errorf("%s: releasing the old lock ended the new one", f)
				}
			})
		}
	}
}

// TestHeldLooksAtTheClock: a process that was suspended knows before any timer
// has run.
func TestHeldLooksAtTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		start, suspended := time.Now(), time.Duration(0)
		c := n.client(t, WithClock(func() time.Duration { return time.Since(start) + suspended }))
		defer mustClose(t, c)
		lock := mustLock(t, c, "x")
		suspended = 14960 * time.Millisecond // 15 s less 0.2 % is 14,970 ms
		if !lock.Held() {
			t.Error("not held before the deadline")
		}
		suspended = 14970 * time.Millisecond
		if lock.Held() || !ended(lock.Done()) {
			t.Error("held at the deadline")
		}
		suspended = 0
		if lock.Held() {
			t.Error("a lost lock came back")
		}
	})
}

// TestLateAnswerRevivesNothing: an answer that comes after the deadline is for a
// session that this side has given up.
func TestLateAnswerRevivesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := n.client(t, WithTTL(3*time.Second))
		defer mustClose(t, c)
		mustLock(t, c, "x")
		c.mu.Lock()
		s := c.current
		c.mu.Unlock()
		s.end(&LostError{Reason: ReasonUnreachable})
		lock := &Lock{session: s, err: s.ended}
		s.extend(c.now(), time.Hour)
		if s.usable() || lock.Held() {
			t.Error("the session came back")
		}
	})
}

// TestRenewalTellsWhatWasLost: force ends one lock and no other.
func TestRenewalTellsWhatWasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := n.client(t)
		defer mustClose(t, c)
		taken, kept := mustLock(t, c, "a"), mustLock(t, c, "b")
		n.mu.Lock()
		n.answer = func(_, path string, _ []byte) (int, any) {
			if path != "/v1/renew" {
				return 0, nil
			}
			return http.StatusOK, transport.RenewResponse{TTLMS: 15000, LeaseMS: 15000, Lost: []transport.LostHold{
				{Name: "a", Token: taken.Token(), Reason: "forced", By: "ops"}, {Name: "b", Token: kept.Token() - 1, Reason: "forced"}}}
		}
		n.mu.Unlock()
		<-taken.Done()
		var lost *LostError
		if !errors.As(taken.Err(), &lost) || lost.Reason != ReasonRevoked || lost.Detail != "forced" || lost.By != "ops" || taken.Held() {
			t.Errorf("taken: %v", taken.Err())
		}
		if !kept.Held() {
			t.Errorf("a lock with another token was lost: %v", kept.Err())
		}
	})
}

// TestSessionGone: the server's word ends all locks at once, with another reason.
func TestSessionGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := n.client(t)
		defer mustClose(t, c)
		lock := mustLock(t, c, "x")
		n.mu.Lock()
		clear(n.sessions)
		n.locks["x"] = nil
		n.mu.Unlock()
		<-lock.Done()
		var lost *LostError
		if !errors.As(lock.Err(), &lost) || lost.Reason != ReasonExpired {
			t.Errorf("got %v", lock.Err())
		}
		mustLock(t, c, "x")
	})
}

// TestCancelAtTheMomentOfGrant is A02.
func TestCancelAtTheMomentOfGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.delay = func() time.Duration { return rand.N(3 * time.Millisecond) }
		holder, waiter := n.client(t), n.client(t)
		defer mustClose(t, holder)
		defer mustClose(t, waiter)
		got := 0
		for range 2000 {
			held := mustLock(t, holder, "x")
			ctx, cancel := context.WithCancel(t.Context())
			release := time.AfterFunc(rand.N(20*time.Millisecond), func() { _ = held.Release(t.Context()) })
			stop := time.AfterFunc(10*time.Millisecond, cancel)
			lock, err := waiter.Acquire(ctx, "x")
			switch {
			case err == nil:
				got++
				if isHeld, _ := n.state("x"); !isHeld || !lock.Held() {
					t.Fatal("a lock was returned that is not held")
				}
				if err := lock.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
			case lock != nil || !errors.Is(err, context.Canceled) || !errors.Is(err, ErrNotAcquired):
				t.Fatalf("a third outcome: %v, %v", lock, err)
			}
			time.Sleep(time.Second)
			if isHeld, waiting := n.state("x"); isHeld || waiting != 0 {
				t.Fatalf("left behind: held %t, %d waiting", isHeld, waiting)
			}
			release.Stop()
			stop.Stop()
			cancel()
		}
		if got < 200 || got > 1800 {
			t.Errorf("%d of 2000 were granted: the moment was not met", got)
		}
	})
}
