package client_test

import (
	"context"
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
		expect(`lock "a" not acquired: it was not granted before the time was over: .*context deadline exceeded`, acquire(waited, "a"))
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
