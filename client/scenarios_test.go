package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// TestNothingLeaks is A14: many locks, many acquires that fail, and leaders that crash leave no session and no goroutine
// behind, neither while the clients live on nor after (the bubble sees to that). At full size with -long.
func TestNothingLeaks(t *testing.T) {
	kills, locksEach, failuresEach := 5, 20, 20
	if *client.Long {
		kills, locksEach, failuresEach = 50, 200, 10
	}
	const ttl = 3 * time.Second
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		holder, k := connect(t, c, "holder", client.WithTTL(ttl)), connect(t, c, "one", client.WithTTL(ttl))
		ctx := context.Background()
		if _, err := holder.Acquire(ctx, "held"); err != nil {
			t.Fatal(err)
		}
		lockAndRelease := func(name string) {
			t.Helper()
			l, err := k.Acquire(ctx, name)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Release(ctx); err != nil {
				t.Fatal(err)
			}
		}
		// Idle connections are closed after two minutes; what renewals use stays.
		idle := func() int {
			time.Sleep(3 * time.Minute)
			return runtime.NumGoroutine()
		}
		lockAndRelease("x0")
		before := idle()
		for round := range kills {
			for i := range locksEach {
				lockAndRelease(fmt.Sprint("x", i%3))
			}
			for range failuresEach {
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
			lockAndRelease("across")
			c.Start(leader)
			c.WaitReady()
		}
		after := idle()
		t.Logf("%d locks, %d acquires that failed, %d leaders killed: %d goroutines before, %d after", kills*locksEach, kills*failuresEach, kills, before, after)
		if after > before+10 {
			t.Errorf("%d goroutines before, %d after", before, after)
		}
		k.close()
		holder.close()
		time.Sleep(ttl)
		var sessions transport.SessionsResponse
		if c.MustGet(c.Leader(), "/v1/sessions").Into(t, &sessions); len(sessions.Sessions) != 0 {
			t.Errorf("%+v", sessions.Sessions)
		}
	})
}

// TestAllNodesDown is the end of A14: without a node that answers, whether it refuses connections or is silent, Release ends
// with its context and Close in its own time, both with an error.
func TestAllNodesDown(t *testing.T) {
	for _, silent := range []bool{false, true} {
		withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
			k := connect(t, c, "one")
			ctx := context.Background()
			l, err := k.Acquire(ctx, "x")
			if err != nil {
				t.Fatal(err)
			}
			if silent {
				c.Network.Isolate("one")
			} else {
				for i := range c.Size() {
					c.Crash(i)
				}
			}
			second, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			began := time.Now()
			if err := l.Release(second); !errors.Is(err, context.DeadlineExceeded) || !silent && !errors.Is(err, client.ErrUnavailable) {
				t.Errorf("silent %t: Release: %v", silent, err)
			}
			if took := time.Since(began); took > 1200*time.Millisecond {
				t.Errorf("silent %t: Release took %v", silent, took)
			}
			began = time.Now()
			if err := k.Close(ctx); !errors.Is(err, client.ErrUnavailable) {
				t.Errorf("silent %t: Close: %v", silent, err)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("silent %t: Close took %v", silent, took)
			}
		})
	}
}

// TestConnectionChurn is D12 against a real node: calls that are granted, refused (409) and not known (404, 410) one after
// the other all use the same few connections. At full size with -long.
func TestConnectionChurn(t *testing.T) {
	rounds := 50
	if *client.Long {
		rounds = 2500
	}
	c := pawltest.New(t, pawltest.Options{Nodes: 1, TCP: true})
	defer c.Close()
	c.WaitReady()
	var opened atomic.Int64
	pool := http.DefaultTransport.(*http.Transport).Clone()
	dialer := &net.Dialer{}
	pool.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		opened.Add(1)
		return dialer.DialContext(ctx, network, address)
	}
	pool.MaxIdleConnsPerHost = 64 // as the Client's own
	defer pool.CloseIdleConnections()
	k, err := client.New([]string{c.URL(0)}, client.WithHTTPClient(&http.Client{Transport: pool}))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	held, err := k.Acquire(ctx, "held")
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	want := func(err error, code error) {
		t.Helper()
		if calls++; !errors.Is(err, code) {
			t.Fatalf("call %d: %v, want %v", calls, err, code)
		}
	}
	for range rounds {
		l, err := k.Acquire(ctx, "x")
		want(err, nil)
		want(l.Check(ctx), nil)
		want(l.Release(ctx), nil)
		_, err = k.TryAcquire(ctx, "held")
		want(err, client.ErrHeld)
		_, err = k.Calls().Acquire(ctx, transport.AcquireRequest{Name: "held", Owner: "o"}, "")
		want(err, client.ErrHeld)
		_, err = k.Calls().Release(ctx, transport.ReleaseRequest{Session: strings.Repeat("0", 32), Token: 1})
		want(err, client.ErrSessionGone)
		_, err = k.Calls().Health(ctx, "v1/nothing")
		want(err, transport.ErrNotFound)
		_, err = k.Calls().GetLock(ctx, "held")
		want(err, nil)
	}
	waiting, known := inTimeWait(t, c.URL(0))
	t.Logf("%d calls over %d connections; in TIME_WAIT %d (known: %t)", calls, opened.Load(), waiting, known)
	if opened.Load() > 5 || waiting >= 20 {
		t.Errorf("%d calls opened %d connections, %d are in TIME_WAIT", calls, opened.Load(), waiting)
	}
	if err := held.Release(ctx); err != nil {
		t.Error(err)
	}
	if err := k.Close(ctx); err != nil {
		t.Error(err)
	}
}

// inTimeWait counts this machine's connections to or from the address that are in TIME_WAIT. Only Linux tells.
func inTimeWait(t *testing.T, address string) (count int, known bool) {
	data, err := os.ReadFile("/proc/net/tcp")
	if errors.Is(err, os.ErrNotExist) {
		return 0, false
	}
	if err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(at.Port())
	if err != nil {
		t.Fatal(err)
	}
	end := fmt.Sprintf(":%04X", port)
	for line := range strings.Lines(string(data)) {
		const timeWait = "06"
		if f := strings.Fields(line); len(f) > 3 && f[3] == timeWait && (strings.HasSuffix(f[1], end) || strings.HasSuffix(f[2], end)) {
			count++
		}
	}
	return count, true
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
