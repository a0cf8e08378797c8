package client_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

var (
	randomRuns = flag.Int("runs", 0, "random runs of TestRandomRuns; 0 is 25, or 5 with -short")
	randomSeed = flag.Uint64("seed", 0, "seed of the first of them; 0 is another one each time")
)

// TestRandomRuns has clients contend for locks while they and the nodes are cut off, slowed down, paused, and lose their
// leader, with clocks at the ends of what is allowed. In each run:
//   - no lock's context outlives what the server allows: by the time that the server's event of the next grant shows, it has
//     ended;
//   - every lock that a client has was granted with that token, and none is refused as a deadlock;
//   - when all is over nothing is held and nothing is queued, no session is left, and no goroutine (the bubble sees to that).
func TestRandomRuns(t *testing.T) {
	runs := *randomRuns
	if runs == 0 {
		runs = 25
		if testing.Short() {
			runs = 5
		}
	}
	first := *randomSeed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	var total tally
	for i := range runs {
		seed := first + uint64(i)
		synctest.Test(t, func(t *testing.T) {
			r := &randomRun{t: t, random: rand.New(rand.NewPCG(seed, 0)), granted: map[hold]time.Time{}}
			defer func() {
				if total.add(r.tally); t.Failed() {
					t.Errorf("repeat it with -run TestRandomRuns -runs 1 -seed %d", seed)
				}
			}()
			r.run(seed)
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d runs from seed %d: %+v", runs, first, total)
	if total.Held == 0 || total.Lost == 0 || total.Handed == 0 || total.Refused == 0 {
		t.Errorf("this shows nothing: %+v", total)
	}
}

// tally counts what the runs met.
type tally struct {
	Held    int // locks that clients had
	Lost    int // those of them that were lost
	Handed  int // those after which another was granted the lock
	Refused int // acquires that failed
	Missed  int // grants whose event could not be told
	Faults  int
}

func (a *tally) add(b tally) {
	a.Held, a.Lost, a.Handed, a.Refused, a.Missed, a.Faults = a.Held+b.Held, a.Lost+b.Lost, a.Handed+b.Handed, a.Refused+b.Refused, a.Missed+b.Missed, a.Faults+b.Faults
}

// hold is one lock of one grant.
type hold struct {
	name  string
	token transport.Token
}

// held is what a client knew of a hold.
type held struct {
	hold
	ended time.Time // of its context
}

type randomRun struct {
	t       *testing.T
	cluster *pawltest.Cluster
	clients []testClient
	tally   tally

	mu      sync.Mutex
	random  *rand.Rand
	known   []*held
	granted map[hold]time.Time // as the server's events have it
	resets  int
}

var randomNames = []string{"a", "b", "c"}

func (r *randomRun) run(seed uint64) {
	t := r.t
	c := pawltest.New(t, pawltest.Options{Seed: seed})
	defer c.Close()
	r.cluster = c
	c.WaitReady()
	watcher := oneClient(t, c, 0, 1, 2)
	events := readWatch(watcher, client.WatchQuery{After: "0.0"})
	for i := range 3 {
		rate := 1 + (r.float()*2-1)/1000
		if r.one(3) {
			rate = 0.999 // the slowest that is allowed: a lease seems shorter than it is
		}
		began := time.Now()
		r.clients = append(r.clients, connect(t, c, fmt.Sprintf("client%d", i),
			client.WithTTL(r.duration(time.Second, 6*time.Second).Truncate(time.Millisecond)),
			client.WithClock(func() time.Duration { return time.Duration(float64(time.Since(began)) * rate) })))
	}
	ctx, stop := context.WithCancel(context.Background())
	var workers sync.WaitGroup
	for _, k := range r.clients {
		for range 2 {
			workers.Go(func() { r.work(ctx, k) })
		}
	}
	for range 8 {
		r.fault()
		r.pause(0, 2*time.Second)
	}
	r.heal()
	r.pause(0, 2*time.Second)
	stop()
	workers.Wait()
	r.nothingIsLeft(func() string {
		for _, name := range randomNames {
			if now := lockState(t, c, name); len(now.Holders)+len(now.Queue) > 0 {
				return fmt.Sprintf("%s is held or waited for: %+v", name, now)
			}
		}
		return ""
	})
	for _, k := range r.clients {
		k.close()
	}
	r.nothingIsLeft(func() string {
		var sessions transport.SessionsResponse
		c.MustGet(c.Leader(), "/v1/sessions").Into(t, &sessions)
		if len(sessions.Sessions) > 0 {
			return fmt.Sprintf("sessions are left: %+v", sessions.Sessions)
		}
		return ""
	})
	time.Sleep(5 * time.Second) // for the last events
	_ = events.end()
	if err := watcher.Close(context.Background()); err != nil {
		t.Error(err)
	}
	for _, e := range events.events() {
		switch e.Kind {
		case transport.EventReset:
			r.resets++
		case transport.EventGranted:
			at, err := time.Parse(time.RFC3339, e.Time)
			if err != nil {
				t.Fatal(err)
			}
			r.granted[hold{e.Name, e.Token}] = at
		}
	}
	r.check()
}

// work acquires and releases until ctx ends.
func (r *randomRun) work(ctx context.Context, k testClient) {
	for ctx.Err() == nil {
		waiting, cancel := context.WithTimeout(ctx, r.duration(100*time.Millisecond, 10*time.Second))
		name := randomNames[r.n(len(randomNames))]
		var options []client.AcquireOption
		if r.one(8) {
			options = append(options, client.MaxHold(r.duration(500*time.Millisecond, 4*time.Second).Truncate(time.Millisecond)))
		}
		var lock *client.Lock
		var err error
		switch {
		case r.one(8):
			lock, err = k.AcquireAll(waiting, []string{"b", "a"}, options...)
		case r.one(4):
			lock, err = k.TryAcquire(waiting, name, options...)
		case r.one(4):
			err = k.Do(waiting, name, func(inner context.Context) error {
				r.pause(0, time.Second)
				return nil
			}, options...)
		default:
			lock, err = k.Acquire(waiting, name, options...)
		}
		if err != nil {
			r.mu.Lock()
			r.tally.Refused++
			r.mu.Unlock()
			if errors.Is(err, client.ErrDeadlock) || errors.Is(err, client.ErrInvalid) || errors.Is(err, transport.ErrFinished) || errors.Is(err, transport.ErrRequestMismatch) {
				var problem *transport.Error
				_ = errors.As(err, &problem)
				r.t.Errorf("%v: an acquire ended with %v: %+v", time.Now().UTC(), err, problem)
			}
			r.pause(time.Millisecond, 200*time.Millisecond)
		}
		if lock != nil {
			r.hold(lock)
		}
		cancel()
	}
}

// hold has a lock for a while, longer than it lasts now and then, and releases it.
func (r *randomRun) hold(lock *client.Lock) {
	var all []*held
	r.mu.Lock()
	for _, name := range lock.Names() {
		all = append(all, &held{hold: hold{name, lock.TokenOf(name)}})
	}
	r.known = append(r.known, all...)
	r.mu.Unlock()
	ctx := lock.Context()
	recorded := make(chan struct{})
	context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, h := range all {
			h.ended = time.Now()
		}
		close(recorded)
	})
	timer := time.NewTimer(r.duration(0, 3*time.Second))
	defer timer.Stop()
	if r.one(2) {
		<-timer.C // the work does not look at its context
	} else {
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	if r.one(10) { // work that goes on as long as it may
		select {
		case <-time.After(10 * time.Second):
		case <-ctx.Done():
		}
	}
	bounded, cancel := context.WithTimeout(context.Background(), r.duration(0, 2*time.Second))
	defer cancel()
	_ = lock.Release(bounded) // what was not confirmed the client settles by itself
	<-recorded
	if lock.State() == client.StateLost {
		r.mu.Lock()
		r.tally.Lost++
		r.mu.Unlock()
	}
}

// fault does one thing to a client, a node or the way between them, and undoes it after a while.
func (r *randomRun) fault() {
	c, network := r.cluster, r.cluster.Network
	who, node := r.n(len(r.clients)), r.n(c.Size())
	if r.one(2) {
		for i := range c.Size() { // not c.Leader, which would wait for one
			if n := c.Node(i); n != nil && n.Leads() {
				node = i
			}
		}
	}
	host, name := fmt.Sprintf("client%d", who), c.Name(node)
	r.tally.Faults++
	switch r.n(8) {
	case 0, 1: // a partition, or a process that is paused: what was on its way arrives late
		network.Isolate(host)
		r.pause(0, 8*time.Second)
	case 2: // requests arrive, answers are lost until later
		for i := range c.Size() {
			network.CutOneWay(c.Name(i), host)
		}
		r.pause(0, 4*time.Second)
	case 3:
		network.Cut(host, name)
		r.pause(0, 4*time.Second)
	case 4: // slow, to half of a short TTL and more
		for i := range c.Size() {
			network.SetDelay(host, c.Name(i), r.duration(time.Millisecond, 800*time.Millisecond))
		}
		r.pause(0, 8*time.Second)
	case 5:
		network.Isolate(name)
		r.pause(0, 5*time.Second)
	case 6:
		if r.one(2) {
			c.Stop(node)
		} else {
			c.Crash(node)
		}
		r.pause(0, 3*time.Second)
		c.Start(node)
	case 7:
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, _ = c.Post(ctx, node, "/v1/cluster/transfer", `{}`) // whether it works is no matter here
		cancel()
	}
	if r.one(3) {
		return // and the next fault beside it
	}
	r.heal()
}

func (r *randomRun) heal() {
	r.cluster.Network.HealAll()
	for who := range r.clients {
		for i := range r.cluster.Size() {
			r.cluster.Network.SetDelay(fmt.Sprintf("client%d", who), r.cluster.Name(i), 0)
		}
	}
	r.cluster.WaitReady()
}

// nothingIsLeft waits until look finds nothing, for as long as the longest TTL here and a little more.
func (r *randomRun) nothingIsLeft(look func() string) {
	r.t.Helper()
	found := ""
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if found = look(); found == "" {
			return
		}
	}
	r.t.Error(found)
}

// check compares what clients knew with what the server's events say.
func (r *randomRun) check() {
	for _, h := range r.known {
		r.tally.Held++
		if _, told := r.granted[h.hold]; !told {
			if r.tally.Missed++; r.resets == 0 {
				r.t.Errorf("a client had %s with token %d, which the server never granted", h.name, h.token)
			}
		}
		if h.ended.IsZero() {
			r.t.Errorf("the context of %s with token %d never ended", h.name, h.token)
			continue
		}
		var next time.Time
		for g, at := range r.granted {
			if g.name == h.name && g.token > h.token && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
		if next.IsZero() {
			continue
		}
		r.tally.Handed++
		// The server's times are whole milliseconds, cut off.
		if h.ended.Truncate(time.Millisecond).After(next) {
			r.t.Errorf("%s with token %d: its context ended at %v, the next was granted it at %v, %v earlier", h.name, h.token,
				h.ended.UTC(), next, h.ended.Sub(next))
		}
	}
}

// What is random is drawn under the lock, since several goroutines draw.

func (r *randomRun) n(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.random.IntN(n)
}

func (r *randomRun) one(in int) bool { return r.n(in) == 0 }

func (r *randomRun) float() float64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.random.Float64()
}

func (r *randomRun) duration(least, most time.Duration) time.Duration {
	return least + time.Duration(r.float()*float64(most-least))
}

func (r *randomRun) pause(least, most time.Duration) { time.Sleep(r.duration(least, most)) }
