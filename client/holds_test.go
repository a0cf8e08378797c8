package client_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// wantLost waits until the lock is lost and checks why.
func wantLost(t *testing.T, l *client.Lock, reason client.Reason, detail, by string) {
	t.Helper()
	<-l.Done()
	var lost *client.LostError
	if err := l.Err(); l.Held() || !errors.As(err, &lost) || lost.Reason != reason || !errors.Is(err, reason) || lost.Detail != detail || lost.By != by {
		t.Errorf("%s: held %t, %v; want lost for %v, %q by %q", l.Name(), l.Held(), l.Err(), reason, detail, by)
	}
	if err := l.Release(context.Background()); !errors.Is(err, client.ErrLost) {
		t.Errorf("releasing what was lost: %v", err)
	}
}

// TestMaxHoldBoundsTheLock: the lock ends at its maximum however well its session is renewed, no later than another is
// granted it, and not long before.
func TestMaxHoldBoundsTheLock(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		holder, waiter := connect(t, c, "holder", client.WithTTL(3*time.Second)), connect(t, c, "waiter")
		defer holder.close()
		defer waiter.close()
		for _, names := range [][]string{{"a"}, {"a", "b"}} {
			const most = 20 * time.Second
			began := time.Now()
			l, err := holder.AcquireAll(context.Background(), names, client.MaxHold(most), client.Value("v"))
			if err != nil {
				t.Fatal(err)
			}
			granted := make(chan time.Time, 1)
			go func() {
				next, err := waiter.Acquire(context.Background(), "a")
				if err != nil {
					t.Error(err)
					granted <- time.Time{}
					return
				}
				granted <- time.Now()
				if err := next.Release(context.Background()); err != nil {
					t.Error(err)
				}
			}()
			ctx := l.Context()
			time.Sleep(most - 100*time.Millisecond)
			if !l.Held() || ctx.Err() != nil {
				t.Errorf("lost %v before its maximum: %v", 100*time.Millisecond, l.Err())
			}
			<-l.Done()
			<-ctx.Done()
			lost := time.Now()
			if took := lost.Sub(began); took > most || took < most-most/500-10*time.Millisecond {
				t.Errorf("lost after %v, the maximum is %v", took, most)
			}
			if !errors.Is(context.Cause(ctx), client.ErrLost) {
				t.Errorf("the lock's context: %v", context.Cause(ctx))
			}
			if at := <-granted; !at.After(lost) || at.Sub(lost) > 200*time.Millisecond {
				t.Errorf("granted to another %v after it was lost", at.Sub(lost))
			}
			wantLost(t, l, client.ReasonMaxHold, "", "")
		}
		// The session lives on, and so does what else it holds.
		l, err := holder.Acquire(context.Background(), "c")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if err := l.Release(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// TestMaxHoldOfOneThatShares: of two holds of one client that share a lock, and so its token, one reaches its maximum. The
// other goes on, and nothing of it is left when it is released. It is the older one, so that the loss is told: what is
// below an unfinished request is not known to have been heard of.
func TestMaxHoldOfOneThatShares(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		k := connect(t, c, "one", client.WithTTL(3*time.Second))
		defer k.close()
		ctx := context.Background()
		other, err := k.Acquire(ctx, "x", client.Shared(), client.MaxHold(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		bounded, err := k.Acquire(ctx, "x", client.Shared(), client.MaxHold(2*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if bounded.Token() != other.Token() {
			t.Fatalf("tokens %d and %d", bounded.Token(), other.Token())
		}
		time.Sleep(10 * time.Second) // a few renewals tell of the loss
		wantLost(t, bounded, client.ReasonMaxHold, "", "")
		if err := other.Err(); err != nil {
			t.Errorf("the other is not held any more: %v", err)
		}
		if err := other.Release(ctx); err != nil {
			t.Error(err)
		}
		if now := lockState(t, c, "x"); len(now.Holders) != 0 {
			t.Errorf("left behind: %+v", now.Holders)
		}
	})
}

// TestConvert changes the mode back and forth, waits for another reader, gives up, and is refused as the second of two.
func TestConvert(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		k, other := connect(t, c, "one"), connect(t, c, "other")
		defer k.close()
		defer other.close()
		ctx := context.Background()
		l, err := k.Acquire(ctx, "x")
		if err != nil {
			t.Fatal(err)
		}
		first := l.Token()
		if err := l.Convert(ctx, client.Semaphore(2)); err != nil {
			t.Fatal(err)
		}
		if err := l.Check(ctx); l.Token() <= first || err != nil {
			t.Errorf("token %d, then %d: %v", first, l.Token(), err)
		}
		if _, err := k.Calls().Check(ctx, "x", first); !errors.Is(err, client.ErrStaleToken) {
			t.Errorf("checking the token of before: %v", err)
		}
		if err := l.Convert(ctx, client.Shared()); !errors.Is(err, client.ErrInvalid) || !l.Held() {
			t.Errorf("converting to the same mode: %v", err)
		}
		reader, err := other.Acquire(ctx, "x", client.Semaphore(2))
		if err != nil {
			t.Fatal(err)
		}
		// Giving up leaves it as it was, and nothing in the queue.
		short, cancel := context.WithTimeout(ctx, time.Second)
		if err := l.Convert(short); !errors.Is(err, context.DeadlineExceeded) || !l.Held() {
			t.Errorf("giving a conversion up: %v, %v", err, l.Err())
		}
		cancel()
		if now := lockState(t, c, "x"); len(now.Queue) != 0 || len(now.Holders) != 2 {
			t.Errorf("after giving up: %+v", now)
		}
		done := make(chan error, 1)
		go func() { done <- l.Convert(ctx) }()
		time.Sleep(time.Minute) // longer than one call waits
		if err := reader.Convert(ctx); !errors.Is(err, client.ErrDeadlock) || !reader.Held() {
			t.Errorf("the second of two: %v, %v", err, reader.Err())
		}
		select {
		case err := <-done:
			t.Fatalf("converted beside another holder: %v", err)
		default:
		}
		if err := reader.Release(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		now := lockState(t, c, "x")
		if len(now.Holders) != 1 || now.Mode != transport.ModeExclusive || now.Holders[0].Token != l.Token() {
			t.Errorf("token %d; the server says %+v", l.Token(), now)
		}
		if err := l.Release(ctx); err != nil {
			t.Fatal(err)
		}
		if err := l.Convert(ctx); !errors.Is(err, client.ErrReleased) {
			t.Errorf("converting what was released: %v", err)
		}
	})
}

// TestStampsOfAConvertedLock: a stamper of several locks knows of each whether it is shared, also after it was converted,
// and its stamps are never below earlier ones.
func TestStampsOfAConvertedLock(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		ctx := context.Background()
		k := connect(t, c, "one")
		defer k.close()
		l, err := k.AcquireAll(ctx, []string{"y", "x"})
		if err != nil {
			t.Fatal(err)
		}
		stamps := fence.NewStamper(l)
		before := stamps.Next()
		expect := func(shared bool) {
			t.Helper()
			next := stamps.Next()
			if next.Shared != shared || next.Token != uint64(l.TokenOf("y")) || !next.Above(before) || next.Validate() != nil {
				t.Errorf("%v after %v", next, before)
			}
			if other := stamps.NextOf("x"); other.Shared || other.Token != uint64(l.TokenOf("x")) || other.Validate() != nil {
				t.Errorf("of the one that is not converted: %v", other)
			}
			before = next
		}
		expect(false)
		if err := l.ConvertOf(ctx, "y", client.Semaphore(2)); err != nil {
			t.Fatal(err)
		}
		if grant := l.GrantOf("y"); grant != (transport.GrantedLock{Name: "y", Mode: transport.ModeShared, Limit: 2, Token: l.TokenOf("y")}) {
			t.Errorf("%+v", grant)
		}
		expect(true)
		if err := l.ConvertOf(ctx, "y"); err != nil {
			t.Fatal(err)
		}
		expect(false)
		reader, err := k.Acquire(ctx, "z", client.Shared())
		if err != nil {
			t.Fatal(err)
		}
		if stamp := fence.NewStamper(reader).Next(); !stamp.Shared || stamp.Validate() != nil {
			t.Errorf("a reader's stamp is %v", stamp)
		}
	})
}

// TestValueAndLabels: what a client says about its session and its holds can be read.
func TestValueAndLabels(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		k := connect(t, c, "one", client.WithLabels(map[string]string{"zone": "b"}))
		defer k.close()
		l, err := k.AcquireAll(context.Background(), []string{"x", "y"}, client.Value("first"))
		if err != nil {
			t.Fatal(err)
		}
		if now := lockState(t, c, "y"); now.Holders[0].Value != "first" {
			t.Errorf("%+v", now)
		}
		if err := l.SetValue(context.Background(), "second"); err != nil {
			t.Fatal(err)
		}
		for _, name := range l.Names() {
			if now := lockState(t, c, name); now.Holders[0].Value != "second" {
				t.Errorf("%+v", now)
			}
		}
		if err := l.SetValue(context.Background(), "\x00"); !errors.Is(err, client.ErrInvalid) {
			t.Errorf("a value with NUL: %v", err)
		}
		sessions, err := k.Calls().ListSessions(context.Background(), "one", client.Page{})
		if err != nil || len(sessions.Sessions) != 1 || sessions.Sessions[0].Labels["zone"] != "b" {
			t.Errorf("%+v %v", sessions, err)
		}
		if err := l.Release(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := l.SetValue(context.Background(), "late"); !errors.Is(err, client.ErrReleased) {
			t.Errorf("after the releasing: %v", err)
		}
	})
}

// TestForcedOutIsTold: whoever is forced out learns of it with its next renewal, by whom and why; of several locks the
// others stay until they are given back.
func TestForcedOutIsTold(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		k, operator := connect(t, c, "one", client.WithTTL(3*time.Second)), connect(t, c, "operator")
		defer k.close()
		defer operator.close()
		ctx := context.Background()
		single, err := k.Acquire(ctx, "x", client.LockDelay(10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		several, err := k.AcquireAll(ctx, []string{"y", "z"})
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"x", "y"} {
			token := lockState(t, c, name).Holders[0].Token
			answer, err := operator.Calls().ForceRelease(ctx, transport.ForceReleaseRequest{Name: name, Token: token, Reason: "stuck"})
			if err != nil || answer.Released != 1 {
				t.Fatalf("%+v %v", answer, err)
			}
			if _, err := operator.Calls().ForceRelease(ctx, transport.ForceReleaseRequest{Name: name, Token: token, Reason: "stuck"}); !errors.Is(err, client.ErrNotHeld) {
				t.Errorf("again: %v", err)
			}
		}
		if _, err := operator.TryAcquire(ctx, "x"); !errors.Is(err, client.ErrDelayed) {
			t.Errorf("in the lock-delay: %v", err)
		}
		began := time.Now()
		wantLost(t, single, client.ReasonRevoked, "stuck", "operator at operator")
		if took := time.Since(began); took > 1100*time.Millisecond {
			t.Errorf("it learnt of it after %v, its TTL is 3 s", took)
		}
		<-several.Done()
		if now := lockState(t, c, "z"); len(now.Holders) != 1 {
			t.Errorf("what nobody has taken was given up: %+v", now)
		}
		wantLost(t, several, client.ReasonRevoked, "stuck", "operator at operator")
		time.Sleep(time.Second)
		if now := lockState(t, c, "z"); len(now.Holders) != 0 {
			t.Errorf("after the releasing of what was lost: %+v", now)
		}
		// The news was taken: it is not told for ever.
		time.Sleep(5 * time.Second)
		if l, err := k.Acquire(ctx, "w"); err != nil || !l.Held() {
			t.Errorf("the session is of use still: %v", err)
		}
	})
}

// TestGrantThatEndedUnheardOf cuts a client off while it is granted a lock with a maximum, until that is over: it is granted
// the lock anew, and does not hear that its request is finished.
func TestGrantThatEndedUnheardOf(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		holder, k := connect(t, c, "holder"), connect(t, c, "cut", client.WithTTL(20*time.Second))
		defer holder.close()
		defer k.close()
		ctx := context.Background()
		held, err := holder.Acquire(ctx, "x")
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan *client.Lock)
		go func() {
			l, err := k.Acquire(ctx, "x", client.MaxHold(time.Second))
			if err != nil {
				t.Error(err)
			}
			got <- l
		}()
		time.Sleep(time.Second)
		c.Network.Isolate("cut")
		if err := held.Release(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		if ended := lockState(t, c, "x").History; len(ended) == 0 || ended[0].Ended != transport.EndedMaxHold {
			t.Fatalf("it was to be granted and to end meanwhile: %+v", ended)
		}
		c.Network.HealAll()
		if l := <-got; l != nil && !l.Held() {
			t.Error(l.Err())
		}
	})
}

// TestDoEndsWithItsLock: the context of the work ends when the lock is lost, with the reason, but the lock is kept, and Do
// does not return, until the work has.
func TestDoEndsWithItsLock(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		k, other := connect(t, c, "one", client.WithTTL(3*time.Second)), connect(t, c, "other")
		defer k.close()
		defer other.close()
		began := time.Now()
		var ended time.Duration
		err := k.Do(context.Background(), "x", func(ctx context.Context) error {
			c.Lose("x", "wedged")
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Second):
			}
			ended = time.Since(began)
			if cause := context.Cause(ctx); !errors.Is(cause, client.ReasonRevoked) {
				t.Errorf("the work's context ended with %v", cause)
			}
			time.Sleep(10 * time.Second)
			return nil
		})
		if took := time.Since(began); ended > 1100*time.Millisecond || took < 10*time.Second || !errors.Is(err, client.ErrLost) {
			t.Errorf("the work was told after %v; Do took %v: %v", ended, took, err)
		}
	})
}

// TestPriorityAndLockDelay: who asks with a higher priority is granted before those who came earlier, and after a holder that
// was lost nobody is granted the lock before its delay is over.
func TestPriorityAndLockDelay(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		k, dead := connect(t, c, "one"), connect(t, c, "dead", client.WithTTL(2*time.Second))
		defer k.close()
		defer dead.close()
		ctx := context.Background()
		const delay = 30 * time.Second
		if _, err := dead.Acquire(ctx, "x", client.LockDelay(delay)); err != nil {
			t.Fatal(err)
		}
		order := make(chan string, 2)
		for _, priority := range []int64{0, 5} {
			go func() {
				l, err := k.Acquire(ctx, "x", client.Priority(priority))
				if err != nil {
					t.Error(err)
					order <- ""
					return
				}
				order <- fmt.Sprint(priority)
				if err := l.Release(ctx); err != nil {
					t.Error(err)
				}
			}()
			time.Sleep(time.Second)
		}
		c.Network.Isolate("dead")
		began := time.Now()
		if first := <-order; first != "5" {
			t.Errorf("%q was first", first)
		}
		if took := time.Since(began); took < delay || took > delay+3*time.Second {
			t.Errorf("granted %v after the holder vanished, with a delay of %v", took, delay)
		}
		if second := <-order; second != "0" {
			t.Errorf("%q was second", second)
		}
		c.Network.HealAll()
	})
}
