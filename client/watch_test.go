package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// reader collects what Watch tells until its context ends.
type reader struct {
	cancel context.CancelCauseFunc
	done   chan struct{}

	mu  sync.Mutex
	got []client.Event
	err error
}

func readWatch(c *client.Client, which client.WatchQuery) *reader {
	ctx, cancel := context.WithCancelCause(context.Background())
	r := &reader{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		for event, err := range c.Watch(ctx, which) {
			r.mu.Lock()
			if err == nil {
				r.got = append(r.got, event)
			}
			r.err = err
			r.mu.Unlock()
		}
	}()
	return r
}

func (r *reader) events() []client.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.got)
}

func (r *reader) wait(t *testing.T, count int) []client.Event {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); len(r.events()) < count; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d events were told, want %d: %+v", len(r.events()), count, r.events())
		}
	}
	return r.events()
}

func (r *reader) end() error {
	r.cancel(errReadEnough)
	<-r.done
	return r.err
}

var errReadEnough = errors.New("read enough")

// oneClient is a client of some of the nodes.
func oneClient(t *testing.T, c *pawltest.Cluster, nodes ...int) *client.Client {
	t.Helper()
	var urls []string
	for _, i := range nodes {
		urls = append(urls, c.URL(i))
	}
	k, err := client.New(urls, client.WithOwner("reader"), client.WithHTTPClient(c.ClientAt("reader")))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestWatchWhileNodesGo follows events while every node in turn is stopped, crashes or is cut off: each event is told once,
// in order, and the loop ends only when its caller wants.
func TestWatchWhileNodesGo(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		worker := connect(t, c, "worker")
		defer worker.close()
		k := oneClient(t, c, 0, 1, 2)
		defer k.Close(context.Background())
		r := readWatch(k, client.WatchQuery{Prefix: "x/", After: "0.0"})
		var want []string
		work := func() {
			t.Helper()
			name := fmt.Sprint("x/", len(want))
			l, err := worker.Acquire(context.Background(), name)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Release(context.Background()); err != nil {
				t.Fatal(err)
			}
			want = append(want, "granted "+name, "released "+name)
		}
		work()
		for round := range 9 {
			node := round % c.Size()
			again := func() { c.Start(node) }
			switch round / c.Size() {
			case 0:
				c.Stop(node)
			case 1:
				c.Crash(node)
			case 2:
				c.Network.Isolate(c.Name(node))
				again = func() { c.Network.Rejoin(c.Name(node)) }
			}
			work()
			again()
			c.WaitReady()
			work()
			r.wait(t, len(want)/2) // at most a round behind, or the silence of a node that was cut off
		}
		time.Sleep(time.Minute)
		var got []string
		for _, e := range r.wait(t, len(want)) {
			got = append(got, string(e.Kind)+" "+e.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("told was\n%v, want\n%v", got, want)
		}
		if err := r.end(); !errors.Is(err, errReadEnough) {
			t.Errorf("the loop ended with %v", err)
		}
	})
}

// TestWatchEnd checks the ends of the loop: by leaving it, by Close, by a refusal.
func TestWatchEnd(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		worker := connect(t, c, "worker")
		defer worker.close()
		if _, err := worker.Acquire(context.Background(), "x"); err != nil {
			t.Fatal(err)
		}
		k := oneClient(t, c, 0, 1, 2)
		short, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for event, err := range k.Watch(short, client.WatchQuery{After: "0.0"}) {
			if err != nil || event.Kind != transport.EventSessionOpened || event.ID == "" || event.Index == 0 || event.Owner != "worker" {
				t.Errorf("told was %+v %v", event, err)
			}
			break
		}
		for _, err := range k.Watch(short, client.WatchQuery{After: "nonsense"}) {
			if !errors.Is(err, client.ErrInvalid) {
				t.Errorf("a place that is none: %v", err)
			}
		}
		r := readWatch(k, client.WatchQuery{})
		time.Sleep(time.Second)
		if err := k.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if <-r.done; !errors.Is(r.err, client.ErrClosed) {
			t.Errorf("after Close: %v", r.err)
		}
	})
}

// TestWatchLeaveASilentNode cuts the node off that tells, without so much as a broken connection: another is asked when even
// its comments have not come.
func TestWatchLeaveASilentNode(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		k := oneClient(t, c, 0, 1, 2)
		defer k.Close(context.Background())
		r := readWatch(k, client.WatchQuery{After: "0.0"})
		time.Sleep(5 * time.Second)
		c.Network.Isolate(c.Name(0))
		time.Sleep(5 * time.Second)
		c.MustPost(1, http.StatusOK, "/v1/acquire", `{"name":"x","owner":"o"}`)
		time.Sleep(45 * time.Second)
		if got := r.events(); len(got) == 0 {
			t.Error("a minute after the node fell silent nothing was told")
		}
		_ = r.end()
		c.Network.HealAll()
	})
}

// TestWatchStart checks that a first node is not looked for for ever when the caller says so, and a later one is.
func TestWatchStart(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		k := oneClient(t, c, 0)
		defer k.Close(context.Background())
		c.Network.Isolate(c.Name(0))
		began := time.Now()
		r := readWatch(k, client.WatchQuery{Start: 10 * time.Second})
		<-r.done
		if took := time.Since(began); !errors.Is(r.err, client.ErrUnavailable) || took < 10*time.Second || took > 15*time.Second {
			t.Errorf("after %v: %v", took, r.err)
		}
		c.Network.Rejoin(c.Name(0))
		r = readWatch(k, client.WatchQuery{After: "0.0", Start: 10 * time.Second})
		time.Sleep(5 * time.Second)
		c.Network.Isolate(c.Name(0))
		time.Sleep(10 * time.Minute)
		c.Network.Rejoin(c.Name(0))
		c.WaitReady()
		c.MustPost(1, http.StatusOK, "/v1/acquire", `{"name":"x","owner":"o"}`)
		r.wait(t, 1)
		_ = r.end()
	})
}

// TestWatchOfAnotherCluster puts another cluster in the place of the one that was followed: the caller is told so, not
// that cluster's events in the place of those it asked for.
func TestWatchOfAnotherCluster(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		work := func(count int) {
			for i := range count {
				c.MustPost(0, http.StatusOK, "/v1/acquire", fmt.Sprintf(`{"name":"x%d","owner":"o"}`, i))
			}
		}
		k := oneClient(t, c, 0, 1, 2)
		defer k.Close(context.Background())
		r := readWatch(k, client.WatchQuery{After: "0.0"})
		work(3)
		r.wait(t, 3)
		for i := range c.Size() {
			c.Stop(i)
			c.Wipe(i)
		}
		for i := range c.Size() {
			c.Start(i)
		}
		c.WaitReady()
		time.Sleep(10 * time.Second)
		work(5)
		got := r.wait(t, 4)[3:]
		if got[0].Kind != transport.EventReset || got[0].Reason != client.ResetCluster || got[0].ID == "" {
			t.Errorf("told was %+v", got)
		}
		if got := r.wait(t, 9)[4:]; got[0].Kind != transport.EventGranted || got[0].Name != "x0" {
			t.Errorf("and then %+v", got)
		}
		_ = r.end()
	})
}

// TestWatchAreFollowedOnOneConnection checks that a client which listens costs the cluster one stream, and nothing while it
// is quiet.
func TestWatchAreFollowedOnOneConnection(t *testing.T) {
	withCluster(t, func(t *testing.T, c *pawltest.Cluster) {
		counted := &countingTransport{RoundTripper: c.ClientAt("counted").Transport}
		k, err := client.New([]string{c.URL(1)}, client.WithHTTPClient(&http.Client{Transport: counted}))
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close(context.Background())
		r := readWatch(k, client.WatchQuery{})
		time.Sleep(10 * time.Minute)
		if paths := counted.asked(); len(paths) != 1 || !strings.HasPrefix(paths[0], "/v1/events") {
			t.Errorf("in ten minutes it asked for %v", paths)
		}
		_ = r.end()
	})
}

type countingTransport struct {
	http.RoundTripper
	mu    sync.Mutex
	paths []string
}

func (c *countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.paths = append(c.paths, r.URL.Path)
	c.mu.Unlock()
	return c.RoundTripper.RoundTrip(r)
}

func (c *countingTransport) asked() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.paths)
}
