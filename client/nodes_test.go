package client

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

// TestNothingGoesElsewhere: whatever a rogue node says, by a hint or a redirect, no request and no credential reaches a host
// that was not configured, and the other nodes serve.
func TestNothingGoesElsewhere(t *testing.T) {
	for _, redirect := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			n.leader = "evil"
			evil := 0
			rogue := roundTripper(func(request *http.Request) (*http.Response, error) {
				switch host := request.URL.Host; {
				case host == "evil":
					evil++
				case host == "n1" && redirect:
					return &http.Response{StatusCode: http.StatusTemporaryRedirect, Header: http.Header{"Location": {"http://evil" + request.URL.Path}},
						Body: io.NopCloser(strings.NewReader("")), Request: request}, nil
				}
				return n.RoundTrip(request)
			})
			n.answer = func(host, _ string, _ []byte) (int, any) {
				if host == "n1" {
					return 1, transport.NewError(transport.ErrNoLeader, "scripted")
				}
				return 0, nil
			}
			var secret atomic.Value
			secret.Store("first")
			c := n.client(t, WithHTTPClient(&http.Client{Transport: rogue}), WithCredential(func() string { return secret.Load().(string) }))
			defer mustClose(t, c)
			lock := mustLock(t, c, "x")
			time.Sleep(time.Minute)
			secret.Store("second")
			time.Sleep(time.Minute)
			if !lock.Held() {
				t.Error(lock.Err())
			}
			for _, err := range c.Watch(t.Context(), WatchQuery{Start: time.Second}) {
				if err == nil {
					t.Error("an event")
				}
			}
			if evil != 0 {
				t.Errorf("redirect %t: %d requests went to a host that was not configured", redirect, evil)
			}
			seen := map[string]int{}
			for _, s := range n.requests("", time.Time{}) {
				seen[s.header.Get("Authorization")]++
			}
			if len(seen) != 2 || seen["Bearer first"] < 10 || seen["Bearer second"] < 10 {
				t.Errorf("redirect %t: credentials sent: %v", redirect, seen)
			}
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestProxyWithoutPatience: a proxy that cuts whatever has been silent for 30 s is not noticed by who waits for longer, and
// costs no place in the queue.
func TestProxyWithoutPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		holder, first, second := n.client(t), n.client(t), n.client(t)
		for _, c := range []*Client{holder, first, second} {
			defer mustClose(t, c)
		}
		held := mustLock(t, holder, "x")
		order := make(chan *Client, 2)
		for _, c := range []*Client{first, second} {
			go func() {
				lock := mustLock(t, c, "x")
				order <- c
				if err := lock.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}()
			time.Sleep(time.Second)
		}
		time.Sleep(10 * time.Minute)
		if err := held.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if <-order != first || <-order != second {
			t.Error("the second was granted first")
		}
		bodies := map[string]int{}
		for _, s := range n.requests("/v1/acquire", time.Time{}) {
			bodies[s.body]++
			if took := s.until.Sub(s.at); took > 30*time.Second {
				t.Errorf("a call was silent for %v", took)
			}
		}
		if len(bodies) != 3 {
			t.Errorf("the waits were not repeated as they were: %v", bodies)
		}
	})
}
