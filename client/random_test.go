package client_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

var (
	randomRuns = flag.Int("runs", 0, "random runs of TestRandomRuns; 0 is 10, or 3 with -short")
	randomSeed = flag.Uint64("seed", 0, "seed of the first of them; 0 is another one each time")
)

// TestRandomRuns has clients contend for locks while they and the nodes are cut off, slowed down, paused, and lose their
// leader, with clocks at the ends of what is allowed. In each run:
//   - no lock's context outlives what the server allows: by the time that the server's event of the next grant shows, it has
//     ended, and no more permits of a semaphore are in use than there are;
//   - every lock that a client has was granted with that token. In every other run all who nest take their locks in the order
//     of names: then no acquire is refused as a deadlock. In the others only nested ones may be;
//   - when all is over nothing is held and nothing is queued, no session is left, and no goroutine (the bubble sees to that).
//
// Locks are taken alone, nested, several at once, shared, as permits and as elections, and are converted.
func TestRandomRuns(t *testing.T) {
	runs := *randomRuns
	if runs == 0 {
		runs = 10
		if testing.Short() {
			runs = 3
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
			r := &randomRun{t: t, random: rand.New(rand.NewPCG(seed, 0)), granted: map[hold]grant{}, crossed: seed%2 == 0}
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
	t.Logf("%d runs from seed %d: %v", runs, first, total)
	if runs >= 10 && slices.Contains(total[:seldom], 0) || runs >= 100 && slices.Contains(total[:], 0) {
		t.Errorf("this shows nothing: %v", total)
	}
}

// What the runs met is counted by kind.
type kind int

const (
	holdsHad     kind = iota // locks that clients had
	holdsLost                // those of them that were lost
	handedOn                 // those after which another was granted the lock
	sharedHad                // in the shared mode
	permitsHad               // of the semaphore
	severalHad               // taken with others at once
	nestedHad                // under another's context
	ledHad                   // won elections
	convertedHad             // conversions that were made
	notAcquired              // acquires that failed
	faultsMade
	handedOver     // leaderships handed over to a named candidate
	notConverted   // conversions that were not made
	refusedAsCycle // acquires that were refused as a deadlock
	kinds

	seldom = handedOver // from here on what a few runs need not meet
)

var kindNames = [kinds]string{"held", "lost", "handed on", "shared", "permits", "several", "nested", "elections won", "converted",
	"not acquired", "faults", "handed over", "not converted", "deadlocks"}

type tally [kinds]int

func (a *tally) add(b tally) {
	for i := range a {
		a[i] += b[i]
	}
}

func (a tally) String() string {
	var text []string
	for i, n := range a {
		text = append(text, fmt.Sprint(n, " ", kindNames[i]))
	}
	return strings.Join(text, ", ")
}

// hold is one lock of one grant.
type hold struct {
	name  string
	token transport.Token
}

// held is what a client knew of a hold.
type held struct {
	hold
	owner      string
	began      time.Time
	ended      time.Time // of its context, or when its mode was asked to be less
	converting bool      // to exclusive: its own conversion is no grant to another
}

// grant is what the server's events say of a token: the first of a shared period.
type grant struct {
	at    time.Time
	owner string // whose conversion it was; "" of an acquire
}

type randomRun struct {
	t       *testing.T
	cluster *pawltest.Cluster
	clients []testClient
	crossed bool // nests take locks in any order

	mu      sync.Mutex
	tally   tally
	random  *rand.Rand
	known   []*held
	granted map[hold]grant // as the server's events have it
	resets  int
}

func (r *randomRun) count(k kind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tally[k]++
}

// Of the locks, some are only taken exclusively, one also shared, one in permits, and one is an election.
var randomNames = []string{"a", "b", "c", sharedName, permitsName}

const (
	sharedName   = "s"
	permitsName  = "u" // behind s: of what is converted nothing is nested below
	permits      = 2
	electionName = "e"
)

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
	for i, k := range r.clients {
		for j := range 2 {
			workers.Go(func() { r.work(ctx, worker{k, fmt.Sprint("client", i), fmt.Sprint(i, ".", j)}) })
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
		for _, name := range append([]string{electionName, electionName + "/hand-over"}, randomNames...) {
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
		case transport.EventGranted, transport.EventConverted:
			at, err := time.Parse(time.RFC3339, e.Time)
			if err != nil {
				t.Fatal(err)
			}
			h, g := hold{e.Name, e.Token}, grant{at: at}
			if e.Kind == transport.EventConverted {
				g.owner = e.Owner
			}
			if first, told := r.granted[h]; !told || at.Before(first.at) {
				r.granted[h] = g
			}
		}
	}
	r.check()
}

// worker is one goroutine of a client.
type worker struct {
	testClient
	owner     string
	candidate string
}

// work acquires and releases until ctx ends.
func (r *randomRun) work(ctx context.Context, k worker) {
	for ctx.Err() == nil {
		if r.one(5) {
			r.campaign(ctx, k)
		} else {
			r.acquire(ctx, ctx, k, randomNames)
		}
	}
}

// acquire takes one of the names, in one of the ways there are, and gives it back. The wait is bounded by ctx, and what it
// asks for is nested where under is a lock's context.
func (r *randomRun) acquire(ctx, under context.Context, k worker, names []string) {
	waiting, cancel := context.WithTimeout(under, r.duration(100*time.Millisecond, 10*time.Second))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	name := names[r.n(len(names))]
	var options []client.AcquireOption
	had := []kind{holdsHad}
	if under != ctx {
		had = append(had, nestedHad)
	}
	switch {
	case name == sharedName && !r.one(3):
		had, options = append(had, sharedHad), append(options, client.Shared())
	case name == permitsName:
		had, options = append(had, permitsHad), append(options, client.Semaphore(permits))
	}
	if r.one(8) {
		options = append(options, client.MaxHold(r.duration(500*time.Millisecond, 4*time.Second).Truncate(time.Millisecond)))
	}
	var lock *client.Lock
	var err error
	switch {
	case under == ctx && r.one(8):
		several := []string{"b", "a"}
		if options = nil; r.one(2) {
			several, options = []string{sharedName, "c"}, []client.AcquireOption{client.Shared()}
		}
		had = []kind{holdsHad, severalHad}
		lock, err = k.AcquireAll(waiting, several, options...)
	case r.one(4):
		lock, err = k.TryAcquire(waiting, name, options...)
	case under == ctx && r.one(4):
		err = k.Do(waiting, name, func(inner context.Context) error {
			r.pause(0, time.Second)
			return nil
		}, options...)
	default:
		lock, err = k.Acquire(waiting, name, options...)
	}
	if err != nil {
		r.failed(err, under != ctx && r.crossed)
	}
	if lock != nil {
		for _, what := range had {
			r.count(what)
		}
		r.hold(ctx, lock, k)
	}
}

// failed judges why a lock was not acquired.
func (r *randomRun) failed(err error, mayBeCycle bool) {
	r.count(notAcquired)
	cycle := errors.Is(err, client.ErrDeadlock)
	if cycle {
		r.count(refusedAsCycle)
	}
	if cycle && !mayBeCycle || errors.Is(err, client.ErrInvalid) || errors.Is(err, transport.ErrFinished) || errors.Is(err, transport.ErrRequestMismatch) ||
		errors.Is(err, transport.ErrModeConflict) {
		var problem *transport.Error
		_ = errors.As(err, &problem)
		r.t.Errorf("%v: an acquire ended with %v: %+v", time.Now().UTC(), err, problem)
	}
	r.pause(time.Millisecond, 200*time.Millisecond)
}

// campaign stands for election, leads for a while, and hands over or resigns.
func (r *randomRun) campaign(ctx context.Context, k worker) {
	waiting, cancel := context.WithTimeout(ctx, r.duration(100*time.Millisecond, 10*time.Second))
	defer cancel()
	led, err := k.Election(electionName, k.candidate).Campaign(waiting, "first")
	if err != nil {
		r.failed(err, false)
		return
	}
	r.count(holdsHad)
	r.count(ledHad)
	f := r.follow(led.Lock, k)
	r.use(led.Context())
	bounded, cancel := context.WithTimeout(context.Background(), r.duration(0, 3*time.Second))
	defer cancel()
	switch r.n(3) {
	case 0, 1:
		if now, err := k.Calls().GetLock(bounded, electionName); err == nil && len(now.Queue) > 0 {
			candidate, _, _ := strings.Cut(now.Queue[len(now.Queue)-1].Task, "#")
			if err := led.HandOver(bounded, candidate); err == nil {
				r.count(handedOver)
			}
		}
	case 2:
		_ = led.Proclaim(bounded, "second")
	}
	_ = led.Resign(bounded)
	f.end()
}

// following notes what a client has.
type following struct {
	r    *randomRun
	lock *client.Lock
	now  []*held // guarded by r.mu, as over is
	over bool
	told chan struct{} // closed when the lock has ended
}

func (r *randomRun) follow(lock *client.Lock, k worker) *following {
	f := &following{r: r, lock: lock, told: make(chan struct{})}
	r.mu.Lock()
	for _, name := range lock.Names() {
		f.now = append(f.now, &held{hold: hold{name, lock.TokenOf(name)}, owner: k.owner, began: time.Now()})
	}
	r.known = append(r.known, f.now...)
	r.mu.Unlock()
	context.AfterFunc(lock.Context(), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, h := range f.now {
			if h.ended.IsZero() { // not yet by a conversion to shared, whatever became of that
				h.ended = time.Now()
			}
		}
		f.over = true
		close(f.told)
	})
	return f
}

// end waits for the end of the lock.
func (f *following) end() {
	<-f.told
	if f.lock.State() == client.StateLost {
		f.r.count(holdsLost)
	}
}

// convert changes the mode of a lock of one name.
func (f *following) convert(ctx context.Context) {
	r := f.r
	before := f.lock.GrantOf(f.lock.Name())
	var options []client.AcquireOption
	r.mu.Lock()
	h := f.now[0]
	if before.Mode == transport.ModeShared {
		h.converting = true
	} else {
		options = append(options, client.Shared())
		if !f.over {
			h.ended = time.Now() // from here on others may be granted it as well
		}
	}
	r.mu.Unlock()
	err := f.lock.Convert(ctx, options...)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.tally[notConverted]++
		if f.lock.Err() == nil && !f.over { // it is as it was
			h.ended, h.converting = time.Time{}, false
		}
		return
	}
	r.tally[convertedHad]++
	next := &held{hold: hold{h.name, f.lock.TokenOf(h.name)}, owner: h.owner, began: time.Now()}
	if h.ended.IsZero() {
		h.ended = next.began
	}
	if f.over {
		next.ended = next.began
	}
	f.now = []*held{next}
	r.known = append(r.known, next)
}

// hold has a lock for a while, longer than it lasts now and then, and releases it.
func (r *randomRun) hold(ctx context.Context, lock *client.Lock, k worker) {
	f := r.follow(lock, k)
	if lock.Name() == sharedName && len(lock.Names()) == 1 && r.one(2) {
		converting, cancel := context.WithTimeout(ctx, r.duration(10*time.Millisecond, 3*time.Second))
		f.convert(converting)
		cancel()
	}
	if below := r.below(lock); len(below) > 0 && r.one(3) {
		r.acquire(ctx, lock.Context(), k, below)
	}
	r.use(lock.Context())
	bounded, cancel := context.WithTimeout(context.Background(), r.duration(0, 2*time.Second))
	defer cancel()
	_ = lock.Release(bounded) // what was not confirmed the client settles by itself
	f.end()
}

// below gives what may be nested in a lock.
func (r *randomRun) below(lock *client.Lock) (names []string) {
	last := slices.Max(lock.Names())
	for _, name := range randomNames {
		if name > last || r.crossed && !slices.Contains(lock.Names(), name) {
			names = append(names, name)
		}
	}
	return names
}

// use is work under a lock.
func (r *randomRun) use(ctx context.Context) {
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
	r.count(faultsMade)
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
	var users []*held
	for _, h := range r.known {
		if _, told := r.granted[h.hold]; !told && r.resets == 0 {
			r.t.Errorf("a client had %s with token %d, which the server never granted", h.name, h.token)
		}
		if h.ended.IsZero() {
			r.t.Errorf("the context of %s with token %d never ended", h.name, h.token)
			continue
		}
		if h.name == permitsName {
			users = append(users, h)
		}
		// A later token is granted only when the holds of all earlier ones have ended, also shared ones (R6).
		var next time.Time
		for g, of := range r.granted {
			if g.name == h.name && g.token > h.token && (next.IsZero() || of.at.Before(next)) && !(h.converting && of.owner == h.owner) {
				next = of.at
			}
		}
		if next.IsZero() {
			continue
		}
		r.tally[handedOn]++
		// The server's times are whole milliseconds, cut off.
		if h.ended.Truncate(time.Millisecond).After(next) {
			r.t.Errorf("%s with token %d of %s (converting: %t): its context ended at %v, the next was granted it at %v, %v earlier", h.name, h.token,
				h.owner, h.converting, h.ended.UTC(), next, h.ended.Sub(next))
		}
	}
	for _, h := range users {
		beside := 0
		for _, other := range users {
			if !other.began.After(h.began) && other.ended.After(h.began) {
				beside++
			}
		}
		if beside > permits {
			r.t.Errorf("at %v %d permits of %d are in use", h.began.UTC(), beside, permits)
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
