package client_test

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/server/pawltest"
)

// TestErrorTexts: an error says once what was not done, why, and who is in the way.
func TestErrorTexts(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		ctx := context.Background()
		one, two := connect(t, c, "one"), connect(t, c, "two")
		defer two.close()
		held, err := one.Acquire(ctx, "a", client.Semaphore(3))
		if err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(ctx)
		waited, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		expect := func(want string, err error) {
			t.Helper()
			if err == nil || !regexp.MustCompile("^"+want+"$").MatchString(err.Error()) {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		}
		acquire := func(ctx context.Context, name string, options ...client.AcquireOption) error {
			_, err := two.Acquire(ctx, name, options...)
			return err
		}
		_, err = two.TryAcquire(ctx, "a")
		expect(`lock "a" not acquired: held: the lock is held or queued for by others; held by one \(token \d+, for \d+m?s\)`, err)
		_, err = two.TryAcquireAll(ctx, []string{"a", "b"})
		expect(`locks \["a" "b"\] not acquired: held: the lock is held or queued for by others; held by one \(token .*\)`, err)
		_, err = two.AcquireAll(ctx, nil)
		expect(`locks \[\] not acquired: invalid: name is required .*`, err)
		expect(`lock "a" not acquired: mode_conflict: the lock "a" is in use with another limit; the limit in force is 3, and 2 was asked for`,
			acquire(ctx, "a", client.Semaphore(2)))
		expect(`lock "a" not acquired: it was not granted before the time was over: .*context deadline exceeded; held by one \(token \d+, for 1(\.\d)?s\)`, acquire(waited, "a"))
		cancel()
		expect(`lock "b" not acquired: invalid: priority must be from .*`, acquire(ended, "b", client.Priority(3000)))
		c.Network.Isolate("two")
		_, err = two.TryAcquire(ctx, "b")
		expect(`lock "b" not acquired: calling /v1/acquire: no node could serve the request: tried for as long as this call may take: last failure: .*`, err)
		c.Network.HealAll()
		if err := held.Release(ctx); err != nil {
			t.Fatal(err)
		}
		expect(`the lock was released`, held.Err())
		expect(`converting "a": the lock was released`, held.Convert(ctx))
		expect(`checking "a": stale_token: this is not the token of a present holder`, held.Check(ctx))
		one.close()
		_, err = one.Acquire(ctx, "a")
		expect(`lock "a" not acquired: (opening a session: calling /v1/session: )?the client is closed`, err)
	})
}

// TestWhoIsInTheWay: an acquire whose deadline comes says who has the lock, without taking longer and without leaving a
// request behind; one that is cancelled asks nothing.
func TestWhoIsInTheWay(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		ctx := context.Background()
		counted := &countingTransport{RoundTripper: c.ClientAt("two").Transport}
		one, two := connect(t, c, "one"), connect(t, c, "two", client.WithHTTPClient(&http.Client{Transport: counted}))
		defer one.close()
		defer two.close()
		held, err := one.Acquire(ctx, "a")
		if err != nil {
			t.Fatal(err)
		}
		soon := func() (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, 3*time.Second) }
		for _, names := range [][]string{{"a"}, {"free", "a"}} {
			waiting, cancel := soon()
			began := time.Now()
			_, err := two.AcquireAll(waiting, names)
			cancel()
			var waited *client.WaitError
			if !errors.Is(err, client.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, client.ErrUnavailable) || !errors.As(err, &waited) {
				t.Fatalf("%v: %v", names, err)
			}
			if h := waited.Holders; len(h) != 1 || h[0].Owner != "one" || h[0].Token != held.Token() || h[0].HeldMS < 2900 {
				t.Errorf("%v: in the way are %+v", names, h)
			}
			if took := time.Since(began); took > 3100*time.Millisecond {
				t.Errorf("%v: waiting for 3 s took %v", names, took)
			}
		}
		before := len(counted.asked())
		waiting, cancel := context.WithCancel(ctx)
		time.AfterFunc(time.Second, cancel)
		if _, err := two.Acquire(waiting, "a"); !errors.Is(err, context.Canceled) || errors.As(err, new(*client.WaitError)) {
			t.Errorf("cancelled: %v", err)
		}
		if asked := counted.asked()[before:]; len(asked) != 2 {
			t.Errorf("an acquire that is cancelled asked %q", asked)
		}
		if now := lockState(t, c, "a"); len(now.Queue) != 0 {
			t.Errorf("left in the queue: %+v", now.Queue)
		}

		// Clients of one program have the same owner and number their tasks alike.
		twin := connect(t, c, "twin", client.WithOwner("one"))
		defer twin.close()
		waiting, cancel = soon()
		defer cancel()
		var waited *client.WaitError
		if _, err := twin.Acquire(waiting, "a"); !errors.As(err, &waited) || len(waited.Holders) != 1 {
			t.Errorf("held by a client with the same owner: %v", err)
		}

		// A cluster that vanishes meanwhile keeps nobody waiting for its answer.
		waiting, cancel = soon()
		defer cancel()
		time.AfterFunc(2*time.Second, func() { c.Network.Isolate("two") })
		began := time.Now()
		if _, err := two.Acquire(waiting, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("cut off: %v", err)
		}
		if took := time.Since(began); took > 3600*time.Millisecond {
			t.Errorf("cut off, waiting for 3 s took %v", took)
		}
		c.Network.HealAll()
		time.Sleep(20 * time.Second)
	})
}
