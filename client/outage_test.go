package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

// TestErrorTaxonomy is A24.
func TestErrorTaxonomy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c, other := n.client(t), n.client(t)
		defer mustClose(t, other)
		defer c.Close(t.Context())
		held := mustLock(t, other, "x")

		_, err := c.TryAcquire(t.Context(), "x")
		check(t, "try", err, []error{ErrNotAcquired, ErrHeld}, []error{ErrUnavailable, ErrLost, context.DeadlineExceeded})

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var soon context.Context
		start := time.Now()
		_, err = c.Acquire(ctx, "x")
		check(t, "wait elapsed", err, []error{ErrNotAcquired, context.DeadlineExceeded}, []error{ErrUnavailable, ErrLost})
		if took := time.Since(start); took < time.Minute || took > time.Minute+cancelTimeout {
			t.Errorf("waiting for a minute took %v", took)
		}
		if _, waiting := n.state("x"); waiting != 0 {
			t.Error("it still stands in the queue")
		}

		_, err = c.Acquire(t.Context(), "a\x00b")
		check(t, "bad name", err, []error{ErrNotAcquired, ErrInvalid}, []error{ErrUnavailable})

		n.mu.Lock()
		n.answer = func(_, path string, _ []byte) (int, any) {
			if path == "/v1/acquire" {
				return 1, &transport.Error{Status: 409, Code: ErrDeadlock, Applied: transport.AppliedNo, Cycle: []transport.Step{{Task: "t"}}}
			}
			return 0, nil
		}
		n.mu.Unlock()
		_, err = c.Acquire(t.Context(), "x")
		check(t, "deadlock", err, []error{ErrNotAcquired, ErrDeadlock}, []error{ErrHeld, ErrUnavailable})
		if problem := (*transport.Error)(nil); !errors.As(err, &problem) || len(problem.Cycle) != 1 {
			t.Errorf("the refusal has no cycle: %v", err)
		}
		n.mu.Lock()
		n.answer = nil
		n.mu.Unlock()
		n.setAll(mute)
		soon, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = c.Acquire(soon, "y")
		check(t, "no answer", err, []error{ErrNotAcquired, ErrUnavailable, ErrUnknownOutcome, context.DeadlineExceeded}, []error{ErrHeld, ErrLost})
		n.setAll(healthy)
		time.Sleep(3 * time.Second)
		if held, waiting := n.state("y"); held || waiting != 0 {
			t.Error("an acquire without an answer left something behind")
		}

		_, err = c.Calls().Release(t.Context(), transport.ReleaseRequest{Session: held.session.id, Request: 99})
		check(t, "release of nothing", err, []error{ErrNotHeld}, []error{ErrUnavailable, ErrLost})
		_, err = c.Calls().Renew(t.Context(), transport.RenewRequest{Session: "nobody"})
		check(t, "renew of nothing", err, []error{ErrSessionGone}, []error{ErrUnavailable})

		n.setAll(refusing)
		start = time.Now()
		_, err = c.Calls().Cluster(t.Context())
		check(t, "no node", err, []error{ErrUnavailable}, []error{ErrNotAcquired, ErrLost})
		if took := time.Since(start); took > patience+time.Second {
			t.Errorf("a call without a deadline took %v", took)
		}
		_, err = c.TryAcquire(t.Context(), "x")
		check(t, "try, no node", err, []error{ErrNotAcquired, ErrUnavailable}, []error{ErrHeld})
		soon, cancel = context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err = c.Acquire(soon, "x")
		check(t, "lock, no node", err, []error{ErrNotAcquired, ErrUnavailable, context.DeadlineExceeded}, []error{ErrHeld})
		time.Sleep(time.Minute)
		check(t, "lost", held.Err(), []error{ErrLost, ReasonUnreachable}, []error{ErrReleased, ReasonExpired, ReasonClusterChanged})
		n.setAll(healthy)
		check(t, "closed", func() error { c.Close(t.Context()); _, err := c.Acquire(t.Context(), "x"); return err }(), []error{ErrNotAcquired, ErrClosed}, nil)
	})
}

func check(t *testing.T, what string, err error, is, not []error) {
	t.Helper()
	for _, target := range is {
		if !errors.Is(err, target) {
			t.Errorf("%s: %v does not match %v", what, err, target)
		}
	}
	for _, target := range not {
		if errors.Is(err, target) {
			t.Errorf("%s: %v matches %v", what, err, target)
		}
	}
}

// TestRepeatsOnlyWhatIsSafe: what may have been applied is sent again only with a
// number or key; what surely was not, always (R14).
func TestRepeatsOnlyWhatIsSafe(t *testing.T) {
	sessionless := transport.AcquireRequest{Name: "x", Owner: "o"}
	numbered := transport.AcquireRequest{Name: "x", Session: "s", Request: 1}
	problem := func(code transport.Code) func(string, string, []byte) (int, any) {
		return func(host, _ string, _ []byte) (int, any) {
			if host != "n1" {
				return http.StatusOK, transport.AcquireResponse{Granted: true}
			}
			return 1, transport.NewError(code, "scripted")
		}
	}
	// proxy is a status that no node gave.
	proxy := func(status int) func(string, string, []byte) (int, any) {
		return func(host, _ string, _ []byte) (int, any) {
			if host != "n1" {
				return http.StatusOK, transport.AcquireResponse{Granted: true}
			}
			return status, "a page of HTML"
		}
	}
	cases := []struct {
		name     string
		fault    fault
		answer   func(string, string, []byte) (int, any)
		request  transport.AcquireRequest
		key      string
		repeated bool
		is       error
	}{
		{"never connected", refusing, problem(""), sessionless, "", true, nil},
		{"answer lost", mute, problem(""), sessionless, "", false, transport.ErrUnknownOutcome},
		{"answer lost, key", mute, problem(""), sessionless, "k", true, nil},
		{"answer lost, number", mute, problem(""), numbered, "", true, nil},
		{"hung", hanging, problem(""), sessionless, "", false, transport.ErrUnknownOutcome},
		{"hung, key", hanging, problem(""), sessionless, "k", true, nil},
		{"no leader", healthy, problem(transport.ErrNoLeader), sessionless, "", true, nil},
		{"overloaded", healthy, problem(transport.ErrOverloaded), sessionless, "", true, nil},
		{"shutting down", healthy, problem(transport.ErrShuttingDown), sessionless, "", true, nil},
		{"unknown", healthy, problem(transport.ErrUnknownOutcome), sessionless, "", false, transport.ErrUnknownOutcome},
		{"unknown, key", healthy, problem(transport.ErrUnknownOutcome), sessionless, "k", true, nil},
		{"held", healthy, problem(transport.ErrHeld), sessionless, "k", false, transport.ErrHeld},
		{"internal", healthy, problem(transport.ErrInternal), sessionless, "k", false, transport.ErrInternal},
		{"quota", healthy, problem(transport.ErrQuota), sessionless, "k", false, transport.ErrQuota},
		{"proxy that limits, key", healthy, proxy(http.StatusTooManyRequests), sessionless, "k", true, nil},
		{"proxy that limits", healthy, proxy(http.StatusTooManyRequests), sessionless, "", false, transport.ErrUnknownOutcome},
		{"proxy without patience, number", healthy, proxy(http.StatusRequestTimeout), numbered, "", true, nil},
		{"proxy that forbids, key", healthy, proxy(http.StatusForbidden), sessionless, "k", false, transport.ErrUnknownOutcome},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork()
				n.set("n1", c.fault)
				n.answer = c.answer
				client := n.client(t)
				defer mustClose(t, client)
				_, err := client.Calls().Acquire(t.Context(), c.request, c.key)
				want := 1
				if c.repeated {
					want = 2
				}
				if got := len(n.requests("/v1/acquire", time.Time{})); got != want || !errors.Is(err, c.is) {
					t.Errorf("sent %d times with %v, want %d times with %v", got, err, want, c.is)
				}
			})
		})
	}
}

// TestNoHotLoop is D11: clients of a cluster that is down.
func TestNoHotLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		firsts := map[time.Duration]bool{}
		type running struct {
			*network
			*Client
			got chan time.Time
		}
		var all []running
		clients := sized(30, 100)
		for range clients {
			n := newNetwork()
			c := n.client(t)
			r := running{n, c, make(chan time.Time, 50)}
			mustLock(t, c, "held") // so that renewals are tried too
			all = append(all, r)
			n.setAll(refusing)
			for range 20 {
				go func() {
					if lock, err := c.Acquire(t.Context(), "x"); err == nil {
						r.got <- time.Now()
						_ = lock.Release(t.Context())
					}
				}()
			}
		}
		start := time.Now()
		time.Sleep(12 * time.Second) // the lease of 15 s still lasts
		for _, r := range all {
			sent := r.requests("", start)
			perSecond := map[int]int{}
			for _, s := range sent {
				perSecond[int(s.at.Sub(start)/time.Second)]++
			}
			// The 20 locks met the outage at the same instant, before any had failed.
			for second := 1; second < 12; second++ {
				if perSecond[second] > 5 {
					t.Errorf("%d attempts in second %d", perSecond[second], second)
				}
			}
			if renewals := len(r.requests("/v1/renew", start)); renewals < 5 {
				t.Errorf("%d renewals were tried", renewals)
			}
			firsts[sent[len(sent)-1].at.Sub(start)] = true
		}
		if len(firsts) < clients*2/3 {
			t.Errorf("the attempts of %d clients came at %d different times", clients, len(firsts))
		}
		healed := time.Now()
		for _, r := range all {
			r.setAll(healthy)
		}
		for _, r := range all {
			if after := (<-r.got).Sub(healed); after > 2*time.Second {
				t.Errorf("the first lock came %v after the recovery", after)
			}
		}
		for _, r := range all {
			mustClose(t, r.Client)
		}
	})
}

// TestServerThatAnswersTooSoon: a waiting call that comes back at once, queued or
// without its session, is not repeated at once.
func TestServerThatAnswersTooSoon(t *testing.T) {
	for name, answer := range map[string]any{"queued": transport.AcquireResponse{Request: 1}, "gone": gone()} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			n.answer = func(_, path string, _ []byte) (int, any) {
				if path != "/v1/acquire" {
					return 0, nil
				}
				return http.StatusAccepted, answer
			}
			c := n.client(t)
			defer mustClose(t, c)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			if _, err := c.Acquire(ctx, "x"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			}
			if got := len(n.requests("/v1/acquire", time.Time{})); got > 45 || got < 10 {
				t.Errorf("%s: %d attempts in 10 s", name, got)
			}
		})
	}
}

// TestReleaseWithoutCluster is A14 and A17.
func TestReleaseWithoutCluster(t *testing.T) {
	for _, f := range []fault{refusing, hanging} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			c := n.client(t, WithTTL(5*time.Second))
			lock, kept := mustLock(t, c, "x"), mustLock(t, c, "kept")
			n.setAll(f)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			if err := lock.Release(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: Release: %v", f, err)
			}
			if took := time.Since(start); took > 1200*time.Millisecond {
				t.Errorf("%s: Release took %v", f, took)
			}
			if lock.Held() || !kept.Held() {
				t.Errorf("%s: held %t, the other %t", f, lock.Held(), kept.Held())
			}
			time.Sleep(time.Second)
			n.setAll(healthy)
			// The Client settles it by itself although the session lives on.
			time.Sleep(3 * time.Second)
			if held, _ := n.state("x"); held {
				t.Errorf("%s: still locked", f)
			}
			if err := lock.Release(t.Context()); err != nil {
				t.Errorf("%s: a second Release: %v", f, err)
			}
			if again := mustLock(t, c, "x"); !again.Held() || !kept.Held() {
				t.Errorf("%s: the Client is of no more use", f)
			}
			n.setAll(f)
			start = time.Now()
			if err := c.Close(t.Context()); err == nil {
				t.Errorf("%s: Close without a cluster says that all is well", f)
			}
			if took := time.Since(start); took > 2*time.Second {
				t.Errorf("%s: Close took %v", f, took)
			}
			if kept.Held() || !errors.Is(kept.Err(), ErrClosed) {
				t.Errorf("%s: after Close: held %t, %v", f, kept.Held(), kept.Err())
			}
		})
	}
}

// TestReleaseTwiceAtOnce: of two releases of a lock that is held, neither tells of a loss, whichever arrives first.
func TestReleaseTwiceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := n.client(t)
		defer mustClose(t, c)
		lock := mustLock(t, c, "x")
		// The second would overtake the first.
		pause := 200 * time.Millisecond
		n.mu.Lock()
		n.delay = func() time.Duration { pause /= 2; return pause }
		n.mu.Unlock()
		var releases sync.WaitGroup
		for range 2 {
			releases.Go(func() {
				if err := lock.Release(t.Context()); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		releases.Wait()
		if held, _ := n.state("x"); held {
			t.Error("it is held")
		}

		// One whose context ends does not wait for the other.
		other := mustLock(t, c, "y")
		n.setAll(hanging)
		releases.Go(func() { _ = other.Release(t.Context()) })
		synctest.Wait()
		bounded, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := other.Release(bounded); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("beside one that hangs: %v", err)
		}
		n.setAll(healthy)
		releases.Wait()
	})
}

// TestNothingAfterRelease is A11: with answers that come late, nothing is sent
// for a grant after its Release, and nothing at all after Close.
func TestNothingAfterRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		var turn atomic.Int64
		n.delay = func() time.Duration { return time.Duration(turn.Add(37)%250) * time.Millisecond }
		c := n.client(t, WithTTL(3*time.Second))
		locks := sized(200, 1000)
		for range locks {
			if err := mustLock(t, c, "x").Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if held, waiting := n.state("x"); held || waiting != 0 {
			t.Errorf("left behind: held %t, %d waiting", held, waiting)
		}
		if releases := len(n.requests("/v1/release", time.Time{})); releases != locks {
			t.Errorf("%d releases for %d locks", releases, locks)
		}
		mustClose(t, c)
		mustClose(t, c)
		quiet := time.Now().Add(time.Nanosecond)
		time.Sleep(time.Minute)
		if sent := n.requests("", quiet); len(sent) != 0 {
			t.Errorf("%d requests after Close, as %+v", len(sent), sent[0])
		}
		all := n.requests("", time.Time{})
		if last := all[len(all)-1]; last.path != "/v1/session/close" {
			t.Errorf("the last request was to %s", last.path)
		}
		// The numbers close up: the last acquire said that all before it are done.
		acquires := n.requests("/v1/acquire", time.Time{})
		if last := acquires[len(acquires)-1]; !last.contains(fmt.Sprintf(`"request":%d,"done":%[1]d`, locks)) {
			t.Errorf("the last acquire was %s", last.body)
		}
	})
}

// TestCloseEndsWaiting: who waits in Lock learns it.
func TestCloseEndsWaiting(t *testing.T) {
	for _, f := range []fault{healthy, refusing, hanging} {
		synctest.Test(t, func(t *testing.T) {
			n := newNetwork()
			c, other := n.client(t), n.client(t)
			mustLock(t, other, "x")
			mustLock(t, c, "y")
			result := make(chan error, 1)
			go func() { _, err := c.Acquire(t.Context(), "x"); result <- err }()
			time.Sleep(time.Second)
			n.setAll(f)
			time.Sleep(10 * time.Second)
			_ = c.Close(t.Context())
			if err := <-result; !errors.Is(err, ErrClosed) {
				t.Errorf("%s: %v", f, err)
			}
			n.setAll(healthy)
			mustClose(t, other)
		})
	}
}

// TestHintLoop is D01: two nodes that take each other for the leader.
func TestHintLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		n.answer = func(host, _ string, _ []byte) (int, any) {
			n.mu.Lock()
			defer n.mu.Unlock()
			switch host {
			case "n1":
				n.leader = "n2"
			case "n2":
				n.leader = "n1"
			default:
				n.leader = ""
				return 0, nil
			}
			return 1, transport.NewError(transport.ErrNoLeader, "scripted")
		}
		c := n.client(t)
		defer mustClose(t, c)
		start := time.Now()
		mustLock(t, c, "x") // the third node serves
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("took %v", took)
		}
		if attempts := len(n.requests("/v1/session", start)); attempts > maxHints+3 {
			t.Errorf("%d attempts to open a session", attempts)
		}
	})
}

// TestWorkThatPanics is A13.
func TestWorkThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		c := n.client(t)
		defer mustClose(t, c)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_ = c.Do(t.Context(), "x", func(context.Context) error { panic("work") })
		}()
		if held, _ := n.state("x"); held {
			t.Error("still locked")
		}
		broken := errors.New("broken")
		ctx, cancel := context.WithCancel(t.Context())
		err := c.Do(ctx, "x", func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			if held, _ := n.state("x"); !held {
				t.Error("released before the work was over")
			}
			return broken
		})
		if held, _ := n.state("x"); held || !errors.Is(err, broken) {
			t.Errorf("held %t, %v", held, err)
		}
	})
}

// TestConnectionsAreUsedAgain is D12, over real sockets.
func TestConnectionsAreUsedAgain(t *testing.T) {
	var opened, calls atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch calls.Add(1) % 4 {
		case 0:
			transport.WriteError(w, transport.NewError(transport.ErrHeld, "scripted"))
		case 1:
			http.NotFound(w, nil) // as a proxy says it
		default:
			_, _ = w.Write([]byte(`{"granted":false}` + "\n\n\n"))
		}
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	c, err := New([]string{server.URL})
	if err != nil {
		t.Fatal(err)
	}
	defer mustClose(t, c)
	refusals := 0
	for range 2000 {
		if _, err := c.Calls().Acquire(t.Context(), transport.AcquireRequest{Name: "x", Owner: "o"}, ""); err != nil {
			refusals++
		}
	}
	if opened.Load() > 5 || calls.Load() != 2000 || refusals != 1000 {
		t.Errorf("%d connections for %d calls with %d refusals", opened.Load(), calls.Load(), refusals)
	}
}

func TestNewRefuses(t *testing.T) {
	cases := []struct {
		name      string
		endpoints []string
		options   []Option
	}{
		{"no endpoint", nil, nil},
		{"no scheme", []string{"127.0.0.1:7700"}, nil},
		{"another scheme", []string{"ftp://h"}, nil},
		{"a credential", []string{"http://user:secret@h"}, nil},
		{"a query", []string{"http://h?token=x"}, nil},
		{"an empty query", []string{"http://h?"}, nil},
		{"a path", []string{"http://h/pawl"}, nil},
		{"no host", []string{"http://:7700"}, nil},
		{"no such port", []string{"http://h:77000"}, nil},
		{"TTL too short", []string{"http://h"}, []Option{WithTTL(499 * time.Millisecond)}},
		{"TTL of 0", []string{"http://h"}, []Option{WithTTL(0)}},
		{"TTL negative", []string{"http://h"}, []Option{WithTTL(-time.Second)}},
		{"TTL too long", []string{"http://h"}, []Option{WithTTL(25 * time.Hour)}},
		{"TTL in microseconds", []string{"http://h"}, []Option{WithTTL(time.Second + time.Microsecond)}},
		{"no owner", []string{"http://h"}, []Option{WithOwner("")}},
		{"owner with a newline", []string{"http://h"}, []Option{WithOwner("a\nb")}},
		{"a timeout", []string{"http://h"}, []Option{WithHTTPClient(&http.Client{Timeout: time.Second})}},
	}
	for _, c := range cases {
		if client, err := New(c.endpoints, c.options...); err == nil {
			t.Errorf("%s: accepted", c.name)
			_ = client.Close(t.Context())
		}
	}
}

// TestDefaultTransportIsWrapped: a program that traces all it sends makes Go's default transport one of its own.
func TestDefaultTransportIsWrapped(t *testing.T) {
	plain := http.DefaultTransport
	defer func() { http.DefaultTransport = plain }()
	http.DefaultTransport = roundTripper(plain.RoundTrip)
	c, err := New([]string{"http://h"})
	if err != nil {
		t.Fatal(err)
	}
	mustClose(t, c)
}

func TestBootTimeMoves(t *testing.T) {
	first := bootTime()
	if first <= 0 {
		t.Errorf("the clock reads %v", first)
	}
	for range 1000 {
		if next := bootTime(); next < first {
			t.Fatalf("the clock went back from %v to %v", first, next)
		} else {
			first = next
		}
	}
}
