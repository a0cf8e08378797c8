package server_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

var long = flag.Bool("long", false, "run also what takes minutes: whole storms on real disks, a million names")

// F08: fifty thousand locks whose holders have all gone are due together, under a leader that has only just begun. Those
// who live and renew lose nothing and wait for nothing.
func TestMassExpiry(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		s := &expiryStorm{world: w, locks: fewer(50_000), holders: fewer(200)}
		s.run()
	})
}

// F08 in real time: on sockets and disks, where the work of an entry and its flush keep renewals waiting.
func TestMassExpiryOnRealDisks(t *testing.T) {
	if !*long {
		t.Skip("takes half a minute of real time: go test ./server -run MassExpiry -long")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	w := &world{Cluster: pawltest.New(t, pawltest.Options{TCP: true}), t: t, ctx: ctx}
	defer w.Close()
	w.WaitReady()
	s := &expiryStorm{world: w, locks: 50_000, holders: 200}
	s.run()
}

// expiryStorm is F08 on any cluster.
type expiryStorm struct {
	*world
	locks, holders int

	mu     sync.Mutex
	renews []renewal
}

// renewal is how long one took, with all its repeats.
type renewal struct {
	began time.Time
	took  time.Duration
}

func (s *expiryStorm) run() {
	const abandonedTTL, ttl, killed = 10 * time.Second, 5 * time.Second, 3 * time.Second
	t, leader := s.t, s.Leader()
	living, stop := context.WithCancel(s.ctx)
	defer stop()
	var renewing sync.WaitGroup
	var held []*session
	for i := range s.holders {
		h := s.session(ttl)
		held = append(held, h)
		renewing.Go(func() { s.keep(living, h, ttl/3) })
		if g := h.mustHold(fmt.Sprint("live", i)); g.Token == 0 {
			t.Fatalf("live%d: %+v", i, g)
		}
	}
	tokens := s.tokens(leader)

	began := time.Now()
	var abandoning sync.WaitGroup
	for lane := range 4 {
		abandoning.Go(func() {
			for left := s.locks / 4; left > 0; left -= 250 {
				if err := abandonAt(s.Node(leader), min(left, 250), abandonedTTL, func(fsm.ID) string { return fmt.Sprint("dead", lane) }); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	abandoning.Wait()
	abandoned := time.Now()
	if took := abandoned.Sub(began); took > abandonedTTL/2 {
		t.Fatalf("it took %v to abandon the locks: this machine is too busy to tell anything", took)
	}
	if got := scrape(t, s.Cluster, leader)["pawl_locks"]; got != float64(s.locks/4*4+s.holders) {
		t.Fatalf("%v locks are held", got)
	}
	time.Sleep(time.Until(abandoned.Add(killed)))
	s.Crash(leader)
	crashed := time.Now()
	next := s.otherLeader(leader)
	gap, term := time.Since(crashed), s.Node(next).Term()
	_, state := s.Node(next).Snapshot()

	// The clock stood still for the gap, and a change of leaders may lose one tick interval besides.
	due := abandoned.Add(abandonedTTL + gap + tickInterval(ttl))
	time.Sleep(time.Until(began.Add(abandonedTTL))) // nothing is due before
	if got := scrape(t, s.Cluster, next)["pawl_locks"]; got != float64(s.locks/4*4+s.holders) {
		t.Errorf("%v locks are held before any is due", got)
	}
	before, storm := s.Node(next).LastIndex(), time.Now()
	var freed time.Time
	if !eventually(time.Until(due.Add(30*time.Second)), func() bool {
		time.Sleep(20 * time.Millisecond)
		freed = time.Now()
		return scrape(t, s.Cluster, next)["pawl_locks"] == float64(s.holders)
	}) {
		t.Errorf("%v locks are left", scrape(t, s.Cluster, next)["pawl_locks"])
	}
	entries := s.Node(next).LastIndex() - before
	time.Sleep(ttl) // whoever was lost in the storm is told now
	stop()
	renewing.Wait()

	if late := freed.Sub(due); late > 15*time.Second {
		t.Errorf("all were freed %v after they were due", late)
	}
	if entries > 500 {
		t.Errorf("%d entries", entries)
	}
	if now := s.Node(next).Term(); now != term {
		t.Errorf("the term went from %d to %d: an election that nobody caused", term, now)
	}
	for name, token := range s.tokens(next) {
		if tokens[name] != token {
			t.Errorf("%s has token %d, was %d", name, token, tokens[name])
		}
		delete(tokens, name)
	}
	if len(tokens) > 0 {
		t.Errorf("%d of %d live holders have lost their lock", len(tokens), len(held))
	}
	whole, stormy := s.latencies(began, freed), s.latencies(storm, freed.Add(time.Second))
	if len(stormy) < s.holders/2 || stormy[len(stormy)*99/100] > time.Second {
		t.Errorf("%d renewals during the storm, the slowest %v", len(stormy), stormy)
	}
	apply, applied := applyInRealTime(t, state)
	t.Logf("%d locks were freed within %v (%v after the latest that R3 allows), with %d entries of the whole cluster, by a leader that came after %v; %d renewals meanwhile: p50 %v, p99 %v, longest %v; "+
		"from the beginning, change of leaders included: %d, p99 %v; longest entry of %d in real time: %v", s.locks, freed.Sub(storm), freed.Sub(due), entries, gap, len(stormy),
		stormy[len(stormy)/2], stormy[len(stormy)*99/100], stormy[len(stormy)-1], len(whole), whole[len(whole)*99/100], applied, apply)
	if s.Network == nil { // else these took no time
		figures := scrape(t, s.Cluster, next)
		for _, name := range []string{`pawl_apply_seconds_bucket{le="%s"}`, `pawl_write_seconds_bucket{what="append",le="%s"}`} {
			line := name
			for _, bound := range []string{"0.0025", "0.01", "0.05", "0.1", "0.25", "0.5", "+Inf"} {
				if count, there := figures[fmt.Sprintf(name, bound)]; there {
					line += fmt.Sprintf(" %s: %v", bound, count)
				}
			}
			t.Log(line)
		}
	}
}

// keep renews until ctx ends.
func (s *expiryStorm) keep(ctx context.Context, h *session, every time.Duration) {
	time.Sleep(time.Duration(s.clients.Load()%100) * every / 100) // they do not renew in step
	for ctx.Err() == nil {
		began := time.Now()
		alive, err := h.renew(ctx, time.Second)
		if err == nil && !alive {
			s.t.Errorf("%s renewed and is gone", h.host)
			return
		}
		if err == nil {
			s.mu.Lock()
			s.renews = append(s.renews, renewal{began, time.Since(began)})
			s.mu.Unlock()
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
		}
	}
}

// latencies are sorted.
func (s *expiryStorm) latencies(from, to time.Time) (out []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.renews {
		if !r.began.Before(from) && r.began.Before(to) {
			out = append(out, r.took)
		}
	}
	slices.Sort(out)
	return out
}

// tokens are those of the live holders' locks.
func (s *expiryStorm) tokens(node int) map[string]uint64 {
	s.t.Helper()
	var page transport.LocksResponse
	s.MustGet(node, "/v1/locks?prefix=live&held=true&limit=1000").Into(s.t, &page)
	out := map[string]uint64{}
	for _, l := range page.Locks {
		out[l.Name] = uint64(l.Holders[0].Token)
	}
	return out
}

// applyInRealTime has a state machine of its own end everything in a state that is due, and measures its longest entry: in
// virtual time work takes no time.
func applyInRealTime(t *testing.T, state []byte) (longest time.Duration, entries int) {
	t.Helper()
	m := fsm.NewMachine(func(*fsm.Result) {}, func(err error) { t.Error(err) })
	if err := m.Restore(io.NopCloser(bytes.NewReader(state))); err != nil {
		t.Fatal(err)
	}
	for more := true; more; entries++ {
		var e fsm.Entry
		var index, term uint64
		m.Read(func(s *fsm.State) {
			need := s.Schedule()
			e.Stamp = fsm.Stamp{Begin: need.Begin, Elapsed: need.Elapsed}
			if entries == 0 {
				e.Stamp.Elapsed += uint64(time.Minute.Milliseconds())
			}
			index, term = s.Index()+1, s.Term()
		})
		data, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		began := wall()
		if r, ok := m.Apply(&raft.Log{Index: index, Term: term, Data: data}).(*fsm.Result); !ok || r == nil || !r.Applied {
			t.Fatal("the entry was not applied")
		}
		longest = max(longest, wall()-began)
		m.Read(func(s *fsm.State) { more = s.Schedule().Backlog })
	}
	return longest, entries
}

// F09, R11: locks that are taken once under a name of their own and abandoned leave nothing behind.
func TestAbandonedNamesLeaveNothing(t *testing.T) {
	names := fewer(150_000)
	if *long {
		names = 1_000_000
	}
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		leader := w.Leader()
		last := uint64(0)
		// What a node remembers on purpose, events and past holders, is full before it is measured.
		w.nameOnce(leader, "warm", 20_000)
		start := w.settleMemory(leader)
		began := wall()
		last = w.nameOnce(leader, "name", names)
		took := wall() - began
		time.Sleep(60 * time.Second)
		for i := range w.Size() {
			s := scrape(t, w.Cluster, i)
			for _, left := range []string{"pawl_locks", "pawl_holds", "pawl_waits", "pawl_sessions"} {
				if s[left] != 0 {
					t.Errorf("%s: %s is %v", w.Name(i), left, s[left])
				}
			}
			if _, state := w.Node(i).Snapshot(); len(state) > 1<<20 {
				t.Errorf("%s: a snapshot has %d bytes", w.Name(i), len(state))
			}
			if due, backlog := w.Node(i).Due(); due || backlog {
				t.Errorf("%s: something is still due (%v) or left to do (%v)", w.Name(i), due, backlog)
			}
		}
		index := w.Node(leader).LastIndex()
		time.Sleep(60 * time.Second)
		if more := w.Node(leader).LastIndex() - index; more > 0 {
			t.Errorf("%d entries in a minute in which nothing happened", more)
		}
		end := w.settleMemory(leader)
		_, state := w.Node(leader).Snapshot()
		t.Logf("%d names in %v: heap %d KiB before, %d KiB after, a snapshot has %d bytes", names, took.Round(time.Millisecond), start>>10, end>>10, len(state))
		if float64(end) > 1.3*float64(start) {
			t.Errorf("the heap went from %d to %d KiB", start>>10, end>>10)
		}
		again := w.MustPost(leader, 200, "/v1/acquire", `{"name":"name-0-0","owner":"o"}`)
		if token := uint64(again.Field("token").(float64)); token <= last {
			t.Errorf("the token of a name that was used before is %d, after %d", token, last)
		}
	})
}

// nameOnce acquires so many names, many to a request, for a second each, and returns the largest token.
func (w *world) nameOnce(leader int, prefix string, names int) (last uint64) {
	w.t.Helper()
	const lanes = 16
	var mu sync.Mutex
	var naming sync.WaitGroup
	for lane := range lanes {
		c := w.caller()
		naming.Go(func() {
			for i := lane; i*transport.MaxLocks < names; i += lanes {
				var body strings.Builder
				fmt.Fprintf(&body, `{"owner":"o","ttl_ms":1000,"locks":[`)
				for k := range transport.MaxLocks {
					fmt.Fprintf(&body, `%s{"name":"%s-%d-%d"}`, strings.Repeat(",", min(k, 1)), prefix, i, k)
				}
				a, err := c.once(w.ctx, leader, "/v1/acquire", body.String()+"]}")
				if err != nil || a.Status != http.StatusOK {
					w.t.Errorf("request %d: %v %d %s", i, err, a.Status, a.Body)
					return
				}
				var g transport.AcquireResponse
				a.Into(w.t, &g)
				mu.Lock()
				last = max(last, uint64(g.Locks[0].Token))
				mu.Unlock()
			}
		})
	}
	naming.Wait()
	return last
}

// settleMemory lets everything end, fills what remembers the newest entries with small ones, and returns the bytes in use.
func (w *world) settleMemory(leader int) uint64 {
	w.t.Helper()
	time.Sleep(2 * time.Minute)     // idle connections are closed, too
	const entries, lanes = 1200, 60 // more than Raft's cache of entries has
	var filling sync.WaitGroup
	for range lanes {
		filling.Go(func() {
			for range entries / lanes {
				if _, err := w.Node(leader).PutEntry(w.ctx, &fsm.Entry{Stamp: w.Node(leader).Stamp()}); err != nil {
					w.t.Error(err)
				}
			}
		})
	}
	filling.Wait()
	time.Sleep(time.Second)
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A20: five hundred wait for one lock, and each holds it for a moment. Each release grants it to the next in the order of
// the log, to nobody else and at no further cost.
func TestHerdIsServedInOrder(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		const hold = 10 * time.Millisecond
		waiters := fewer(500)
		leader := w.Leader()
		first := w.MustPost(leader, 200, "/v1/acquire", `{"name":"x","owner":"first","ttl_ms":60000}`)
		type served struct {
			owner          string
			token          uint64
			granted, ended time.Time // ended: when its release was sent
		}
		var (
			mu      sync.Mutex
			all     []served
			running sync.WaitGroup
			failed  error
		)
		for i := range waiters {
			c, node := w.caller(), i%w.Size()
			running.Go(func() {
				owner := fmt.Sprint("w", i)
				a, err := c.once(w.ctx, node, "/v1/acquire", fmt.Sprintf(`{"name":"x","owner":%q,"ttl_ms":60000,"wait_ms":120000}`, owner))
				granted := time.Now()
				if err == nil && a.Status != http.StatusOK {
					err = fmt.Errorf("%s: %d %s", owner, a.Status, a.Body)
				}
				if err != nil {
					mu.Lock()
					failed = errors.Join(failed, err)
					mu.Unlock()
					return
				}
				time.Sleep(hold)
				s := served{owner, uint64(a.Field("token").(float64)), granted, time.Now()}
				b, err := c.once(w.ctx, node, "/v1/release", released(a))
				mu.Lock()
				defer mu.Unlock()
				if all = append(all, s); err != nil || b.Status != http.StatusOK {
					failed = errors.Join(failed, fmt.Errorf("%s: releasing: %w %d", owner, err, b.Status))
				}
			})
		}
		var queue []string
		w.until(20*time.Second, "all stand in the queue", func() bool {
			v, _, err := w.view(leader, "x", "")
			queue = nil
			for _, q := range v.Queue {
				queue = append(queue, q.Owner)
			}
			return err == nil && len(queue) == waiters
		})
		before, index, began := scrape(t, w.Cluster, leader), w.Node(leader).LastIndex(), time.Now()
		w.MustPost(leader, 200, "/v1/release", released(first))
		running.Wait()
		took, entries := time.Since(began), w.Node(leader).LastIndex()-index
		if failed != nil {
			t.Fatal(failed)
		}
		slices.SortFunc(all, func(a, b served) int { return int(a.token) - int(b.token) })
		for i, s := range all {
			if s.owner != queue[i] {
				t.Fatalf("grant %d went to %s, in the queue was %s", i, s.owner, queue[i])
			}
			if i > 0 && (s.token == all[i-1].token || s.granted.Before(all[i-1].ended)) {
				t.Errorf("%s with token %d held it together with %s with token %d", s.owner, s.token, all[i-1].owner, all[i-1].token)
			}
		}
		after := scrape(t, w.Cluster, leader)
		grants := after[`pawl_grants_total{mode="exclusive"}`] - before[`pawl_grants_total{mode="exclusive"}`]
		releases := after[`pawl_ends_total{how="released"}`] - before[`pawl_ends_total{how="released"}`]
		t.Logf("%d waiters: %v grants, %v releases, %d entries, all in %v", waiters, grants, releases, entries, took)
		if grants != float64(waiters) || releases != float64(waiters+1) || len(all) != waiters {
			t.Errorf("%v grants and %v releases for %d waiters", grants, releases, waiters)
		}
		if entries > uint64(3*waiters) {
			t.Errorf("%d entries for %d hand-overs", entries, waiters)
		}
		if took > time.Duration(waiters)*hold+10*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}
