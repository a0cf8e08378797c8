package client

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

// TestLostIsAcknowledged: what a renewal tells as lost ends that lock and no other, and the next renewal shows the server
// that it arrived, so that it is not told for ever.
func TestLostIsAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := n.client(t, WithTTL(3*time.Second))
		defer c.Close(context.Background())
		taken, err := c.Acquire(context.Background(), "taken")
		if err != nil {
			t.Fatal(err)
		}
		kept, err := c.Acquire(context.Background(), "kept")
		if err != nil {
			t.Fatal(err)
		}
		n.mu.Lock()
		n.answer = func(_, path string, _ []byte) (int, any) {
			if path != "/v1/renew" {
				return 0, nil
			}
			return http.StatusOK, transport.RenewResponse{TTLMS: 3000, LeaseMS: 3000, Lost: []transport.LostHold{
				{Name: "taken", Token: taken.Token(), Reason: "r", By: "b"}, {Name: "kept", Token: kept.Token() - 1, Reason: "an older one"}}}
		}
		n.mu.Unlock()
		<-taken.Done()
		var lost *LostError
		if err := taken.Err(); !errors.As(err, &lost) || lost.Reason != ReasonRevoked || lost.Detail != "r" || lost.By != "b" {
			t.Errorf("lost for %v", err)
		}
		told := time.Now()
		time.Sleep(2500 * time.Millisecond)
		if !kept.Held() {
			t.Errorf("the other lock: %v", kept.Err())
		}
		renewals := n.requests("/v1/renew", told.Add(time.Millisecond))
		if len(renewals) < 2 {
			t.Fatalf("%d renewals", len(renewals))
		}
		for _, r := range renewals {
			if !r.contains(`"done":2`) {
				t.Errorf("renewed with %s, the first request is finished", r.body)
			}
		}
		if err := taken.Release(context.Background()); !errors.Is(err, ErrLost) || len(n.requests("/v1/release", told)) != 0 {
			t.Errorf("releasing what is gone: %v", err)
		}
	})
}

// TestAnotherCluster: answers of another cluster than before end what was held, with that reason, and the Client goes on
// there.
func TestAnotherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.cluster = "first"
		c := n.client(t)
		defer c.Close(context.Background())
		lock := mustLock(t, c, "x")
		time.Sleep(time.Minute)
		n.mu.Lock()
		n.cluster = ""
		n.mu.Unlock()
		time.Sleep(time.Minute)
		if !lock.Held() {
			t.Fatalf("an answer without the name of a cluster: %v", lock.Err())
		}
		n.mu.Lock()
		n.cluster = "second"
		clear(n.sessions)
		clear(n.locks)
		n.mu.Unlock()
		<-lock.Done()
		check(t, "another cluster", context.Cause(lock.Context()), []error{ErrLost, ReasonClusterChanged}, []error{ReasonExpired})
		again := mustLock(t, c, "x")
		time.Sleep(time.Minute)
		if !again.Held() {
			t.Errorf("in the other cluster: %v", again.Err())
		}
	})
}

// A release that no node could be asked for is not confirmed by the session's end on this side: without a leader the server
// keeps the hold for longer.
func TestReleaseIsNotConfirmedByItsOwnDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := n.client(t)
		defer c.Close(t.Context())
		lock := mustLock(t, c, "x")
		n.setAll(refusing)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := lock.Release(ctx); err == nil || !errors.Is(err, ErrUnavailable) {
			t.Errorf("Release without a node that answers: %v", err)
		}
		if lock.Held() {
			t.Error("it is held after Release has begun")
		}
		n.setAll(healthy)
	})
}
