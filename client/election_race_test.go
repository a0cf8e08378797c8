package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// meddler meddles with the acquires of a candidate: those that are called have a priority.
type meddler struct {
	http.RoundTripper
	slow    time.Duration // the answers to those that are not called come so much later
	refuses *atomic.Int32 // so many of those that are called
}

// RoundTrip implements http.RoundTripper.
func (m meddler) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path != "/v1/acquire" {
		return m.RoundTripper.RoundTrip(r)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	called := strings.Contains(string(body), `"priority"`)
	if called && m.refuses.Add(-1) >= 0 {
		refusal := httpAnswer{header: http.Header{}}
		transport.WriteError(&refusal, transport.NewError(transport.ErrQuota, "no more waits"))
		return &http.Response{StatusCode: refusal.status, Header: refusal.header, Body: io.NopCloser(&refusal.body), Request: r}, nil
	}
	r = r.Clone(r.Context())
	r.Body = io.NopCloser(bytes.NewReader(body))
	answer, err := m.RoundTripper.RoundTrip(r)
	if err == nil && !called {
		select {
		case <-time.After(m.slow):
		case <-r.Context().Done():
			answer.Body.Close()
			return nil, r.Context().Err()
		}
	}
	return answer, err
}

// httpAnswer is an http.ResponseWriter.
type httpAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *httpAnswer) Header() http.Header         { return a.header }
func (a *httpAnswer) WriteHeader(status int)      { a.status = status }
func (a *httpAnswer) Write(b []byte) (int, error) { return a.body.Write(b) }

// connectThrough is connect with a meddler between.
func connectThrough(t *testing.T, c *pawltest.Cluster, host string, slow time.Duration, refusals int32) testClient {
	meddled := *c.ClientAt(host)
	m := meddler{meddled.Transport, slow, new(atomic.Int32)}
	m.refuses.Store(refusals)
	meddled.Transport = m
	k := connect(t, c, host, client.WithHTTPClient(&meddled))
	end := k.close
	k.close = func() { end(); c.ClientAt(host).CloseIdleConnections() }
	return k
}

// TestHandOverToTheFirstInTheQueue: the candidate has the ordinary place at the head when it is called. The release grants
// that one, and the answer to the called place, which is new, overtakes the answer with the grant.
func TestHandOverToTheFirstInTheQueue(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
		defer stop()
		a := connect(t, c, "a")
		defer a.close()
		b := connectThrough(t, c, "b", 20*time.Millisecond, 0)
		defer b.close()
		for range 10 {
			leadA, err := a.Election("boss", "alice").Campaign(ctx, "")
			if err != nil {
				t.Fatal(err)
			}
			won := campaign(t, b.Election("boss", "bob"), "")
			if err := leadA.HandOver(ctx, "bob"); err != nil {
				t.Fatal(err)
			}
			leadB := <-won
			if leadB == nil {
				return // as campaign said
			}
			if err := leadB.Resign(ctx); err != nil {
				t.Fatal(err)
			}
			if now := lockState(t, c, "boss"); len(now.Holders)+len(now.Queue) != 0 {
				t.Errorf("%+v", now)
			}
		}
	})
}

// TestCalledPlaceIsRefused: the place that a called candidate cannot have costs it neither its ordinary place nor the next
// call.
func TestCalledPlaceIsRefused(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
		defer stop()
		first, a, b := connect(t, c, "first"), connect(t, c, "a"), connectThrough(t, c, "b", 0, 2)
		defer first.close()
		defer a.close()
		defer b.close()
		leadFirst := <-campaign(t, first.Election("boss", ""), "")
		wonA := campaign(t, a.Election("boss", ""), "")
		wonB := campaign(t, b.Election("boss", ""), "")
		short, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
		defer cancel()
		if err := leadFirst.HandOver(short, "b"); !errors.Is(err, client.ErrNotAcquired) { // the first refusal
			t.Fatal(err)
		}
		if now := lockState(t, c, "boss"); len(now.Queue) != 2 {
			t.Fatalf("%+v", now)
		}
		if err := leadFirst.HandOver(ctx, "b"); err != nil { // the second one, then it is called again
			t.Fatal(err)
		}
		for _, won := range []chan *client.Leadership{wonB, wonA} {
			lead := <-won
			if lead == nil {
				return
			}
			if err := lead.Resign(ctx); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestElectionsBesideEachOther: two candidates of the same names in two elections lead one each and stand for the other.
// Each lets go of what it leads without waiting for what it stands for, so that is no deadlock. Observers are told of the
// candidates as they are called.
func TestElectionsBesideEachOther(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
		defer stop()
		a, b := connect(t, c, "a"), connect(t, c, "b")
		defer a.close()
		defer b.close()
		const alice, bob = "alice", "bob#7"
		lead1 := <-campaign(t, a.Election("shard-1", alice), "")
		lead2 := <-campaign(t, b.Election("shard-2", bob), "")
		won2 := campaign(t, a.Election("shard-2", alice), "")
		won1 := campaign(t, b.Election("shard-1", bob), "")
		if err := lead1.HandOver(ctx, bob); err != nil {
			t.Error(err)
		}
		if err := lead2.Resign(ctx); err != nil {
			t.Error(err)
		}
		for election, want := range map[*client.Election]string{a.Election("shard-1", ""): bob, a.Election("shard-2", ""): alice} {
			for leader, err := range election.Observe(ctx) {
				if err != nil || leader.Candidate != want {
					t.Errorf("%+v, %v; want %s", leader, err, want)
				}
				break
			}
		}
		for _, won := range []chan *client.Leadership{won1, won2} {
			if lead := <-won; lead != nil {
				if err := lead.Resign(ctx); err != nil {
					t.Error(err)
				}
			}
		}
		if _, err := a.Election("shard-1", strings.Repeat("x", 236)).Campaign(ctx, ""); !errors.Is(err, client.ErrInvalid) || !errors.Is(err, client.ErrNotAcquired) {
			t.Error(err)
		}
	})
}
