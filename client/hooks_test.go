package client

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

// TestHooks: each is told of what it is for, once.
func TestHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var attempts, renewals, failed int
		var acquires, losses []string
		n := newNetwork()
		c := n.client(t, WithTTL(3*time.Second), WithHooks(Hooks{
			Attempt: func(a Attempt) {
				mu.Lock()
				defer mu.Unlock()
				attempts++
				if a.Path == "" || !strings.HasPrefix(a.Endpoint, "http://n") {
					t.Errorf("%+v", a)
				}
			},
			Renewal: func(_ time.Duration, err error) {
				mu.Lock()
				defer mu.Unlock()
				if renewals++; err != nil {
					failed++
				}
			},
			Acquire: func(names []string, took time.Duration, err error) {
				acquires = append(acquires, fmt.Sprint(names, took.Round(time.Second), err == nil))
			},
			Lost: func(lock *Lock, why *LostError) {
				mu.Lock()
				defer mu.Unlock()
				losses = append(losses, fmt.Sprint(lock.Name(), lock.Token(), why.Reason == ReasonUnreachable, lock.Held()))
			},
		}))
		defer c.Close(context.Background())
		released, lost := mustLock(t, c, "x"), mustLock(t, c, "y")
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := c.Acquire(ctx, "x"); err == nil {
			t.Error("granted twice")
		}
		if err := released.Release(t.Context()); err != nil {
			t.Error(err)
		}
		n.setAll(refusing)
		time.Sleep(5 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"[x] 0s true", "[y] 0s true", "[x] 5s false"}; !slices.Equal(acquires, want) {
			t.Errorf("acquires %q, want %q", acquires, want)
		}
		if want := fmt.Sprint("y", lost.Token(), true, false); len(losses) != 1 || losses[0] != want {
			t.Errorf("losses %q, want %q", losses, want)
		}
		if sent := len(n.requests("", time.Time{})); attempts != sent || renewals < 5 || failed != 1 {
			t.Errorf("%d attempts of %d; %d renewals, %d failed", attempts, sent, renewals, failed)
		}
	})
}

// TestTrace: what the context of an acquire has is sent with it, and with its release.
func TestTrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		n := newNetwork()
		c := n.client(t, WithTrace(func(ctx context.Context) string { trace, _ := ctx.Value(key{}).(string); return trace }))
		defer mustClose(t, c)
		lock, err := c.Acquire(context.WithValue(t.Context(), key{}, "00-1-2-01"), "x")
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Release(lock.Context()); err != nil {
			t.Errorf("a release under the lock's own context: %v", err) // which has ended by then
		}
		time.Sleep(time.Minute)
		for _, s := range n.requests("", time.Time{}) {
			want := ""
			if s.path == "/v1/acquire" || s.path == "/v1/release" || s.path == "/v1/session" {
				want = "00-1-2-01"
			}
			if got := s.header.Get("Traceparent"); got != want {
				t.Errorf("%s was sent with %q, want %q", s.path, got, want)
			}
		}
	})
}

func TestDefaultOwner(t *testing.T) {
	host, _ := os.Hostname()
	owner := defaultOwner()
	if !strings.HasPrefix(owner, host+"/") || !strings.HasSuffix(owner, fmt.Sprintf(":%d", os.Getpid())) || !strings.Contains(owner, "client.test") {
		t.Errorf("the default owner is %q", owner)
	}
	for text, want := range map[string]string{"a\nb\xff": "ab", strings.Repeat("é", 100): strings.Repeat("é", 49), "": ""} {
		if got := plain(text, 99); got != want || transport.ValidateOwner("owner", "x"+got) != nil {
			t.Errorf("%q became %q", text, got)
		}
	}
}
