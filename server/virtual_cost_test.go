package server_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server/pawltest"
)

// An idle cluster without sessions writes nothing.
func TestIdleClusterWritesNothing(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		s := w.session(time.Minute)
		s.mustHold("a")
		if a, err := s.release(1); err != nil || a.Status != 200 {
			t.Fatal(err, a.Status)
		}
		if a, err := s.once(w.ctx, 0, "/v1/session/close", fmt.Sprintf(`{"session":%q}`, s.id)); err != nil || a.Status != 200 {
			t.Fatal(err, a.Status)
		}
		leader := w.Node(w.Leader())
		before, term := leader.LastIndex(), leader.Term()
		time.Sleep(10 * time.Minute)
		if after := leader.LastIndex(); after != before || leader.Term() != term {
			t.Errorf("%d entries were written, the term went from %d to %d", after-before, term, leader.Term())
		}
	})
}

// R3: one session that nobody renews costs one entry per tick interval, and its end.
func TestIdleSessionCostsOneEntryATick(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		const ttl = 5 * time.Minute
		w.session(ttl).mustHold("a")
		leader := w.Node(w.Leader())
		before := leader.LastIndex()
		time.Sleep(ttl + time.Minute)
		entries, most := leader.LastIndex()-before, uint64(ttl/tickInterval(ttl))+2
		if entries == 0 || entries > most {
			t.Errorf("%d entries, at most %d are due", entries, most)
		}
	})
}

// R4: ten thousand sessions that only renew cost about ten entries a second.
func TestTenThousandIdleSessionsShareTheirEntries(t *testing.T) {
	if testing.Short() {
		t.Skip("ten thousand sessions")
	}
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		const count, lanes, ttl = 10_000, 100, 30 * time.Second
		const every = ttl / 3
		ids := make([]string, count)
		each := func(f func(c *caller, i int)) {
			var running sync.WaitGroup
			for lane := range lanes {
				c := w.caller()
				running.Go(func() {
					for i := lane; i < count; i += lanes {
						f(c, i)
					}
				})
			}
			running.Wait()
		}
		each(func(c *caller, i int) {
			a, err := c.once(w.ctx, w.follower(), "/v1/session", fmt.Sprintf(`{"owner":"o","ttl_ms":%d}`, ttl.Milliseconds()))
			if err != nil || a.Status != http.StatusCreated {
				t.Errorf("session %d: %v %d", i, err, a.Status)
				return
			}
			ids[i], _ = a.Field("session").(string)
		})
		leader := w.Leader()
		before, began := w.Node(leader).LastIndex(), time.Now()
		var renewing sync.WaitGroup
		for lane := range lanes {
			c := w.caller()
			random := rand.New(rand.NewPCG(7, uint64(lane)))
			renewing.Go(func() {
				time.Sleep(time.Duration(random.Int64N(int64(every / (count / lanes)))))
				for i := lane; i < count; i += lanes { // one pass: each session once, evenly over the time
					next := time.Now().Add(every / (count / lanes))
					a, err := c.once(w.ctx, leader, "/v1/renew", fmt.Sprintf(`{"session":%q}`, ids[i]))
					if err != nil || a.Status != 200 {
						t.Errorf("renewing: %v %d %s", err, a.Status, a.Body)
					}
					time.Sleep(time.Until(next))
				}
			})
		}
		renewing.Wait()
		took := time.Since(began)
		rate := float64(w.Node(leader).LastIndex()-before) / took.Seconds()
		t.Logf("%d sessions, each renewed every %v: %.1f entries a second", count, every, rate)
		if rate > 11 {
			t.Errorf("%.1f entries a second", rate)
		}
	})
}

// R4: a renewal is held for at most a fiftieth of its own TTL, also behind one that may be held for longer.
func TestRenewalIsHeldForAFiftiethOfItsOwnTTL(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		long, short := w.session(time.Minute), w.session(500*time.Millisecond)
		for range 5 {
			var renewing sync.WaitGroup
			renewing.Go(func() { _, _ = long.renew(w.ctx, callLimit) })
			time.Sleep(5 * time.Millisecond)
			began := time.Now()
			if alive, err := short.renew(w.ctx, callLimit); !alive {
				t.Fatal("the session is gone: ", err)
			}
			if took := time.Since(began); took > 20*time.Millisecond {
				t.Errorf("the short session's renewal took %v", took)
			}
			renewing.Wait()
		}
	})
}

// B08: two thousand locks are due while the leader is cut off. It does not try in vain again and again, and after the heal
// all are freed at once.
func TestExpiryDoesNotSpinWithoutQuorum(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		const lanes, ttl = 20, 5 * time.Second
		locks := fewer(2000)
		var making sync.WaitGroup
		for lane := range lanes {
			c := w.caller()
			making.Go(func() {
				for i := lane; i < locks; i += lanes {
					a, err := c.once(w.ctx, 0, "/v1/acquire", fmt.Sprintf(`{"name":"l%d","owner":"o","ttl_ms":%d}`, i, ttl.Milliseconds()))
					if err != nil || a.Status != 200 {
						t.Errorf("lock %d: %v %d", i, err, a.Status)
					}
				}
			})
		}
		making.Wait()
		leader := w.Leader()
		for i := range w.Size() { // nobody has a quorum
			for j := range i {
				w.Network.Cut(w.Name(i), w.Name(j))
			}
		}
		before := w.Node(leader).LastIndex()
		time.Sleep(30 * time.Second)
		if tried := w.Node(leader).LastIndex() - before; tried > 20 {
			t.Errorf("%d entries were tried in 30 s without a quorum", tried)
		}
		w.Network.HealAll()
		healed := time.Now()
		// The clock stood still: what was left of the TTL passes first.
		var page struct{ Locks []struct{ Name string } }
		w.until(ttl+10*time.Second, "all locks are free", func() bool {
			time.Sleep(100 * time.Millisecond)
			a, err := w.Get(w.ctx, leader, "/v1/locks?limit=10")
			if err != nil || a.Status != 200 {
				return false
			}
			page.Locks = nil
			a.Into(t, &page)
			return len(page.Locks) == 0
		})
		t.Logf("all were free %v after the heal, with %d entries in all", time.Since(healed), w.Node(w.Leader()).LastIndex()-before)
	})
}

// While leadership is being handed over Raft refuses every entry at once. What is due in that time is tried now and then; a
// loop without a pause would not even let virtual time go on.
func TestExpiryDoesNotSpinDuringAHandOver(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		leader := w.Leader()
		next := (leader + 1) % w.Size()
		began := time.Now()
		for i := range fewer(50) {
			w.session(time.Duration(1500+10*i) * time.Millisecond).mustHold(fmt.Sprint("l", i))
		}
		w.Network.SetDelay(w.Name(leader), w.Name(next), 80*time.Millisecond)
		time.Sleep(time.Until(began.Add(1500 * time.Millisecond)))
		for range 10 { // each takes a while, also those that come too late for the far node
			_, _ = w.Post(w.ctx, leader, "/v1/cluster/transfer", fmt.Sprintf(`{"to":%q}`, w.Name(next)))
		}
		w.Network.SetDelay(w.Name(leader), w.Name(next), 0)
		w.WaitReady()
		w.until(10*time.Second, "all locks are free", func() bool {
			a, err := w.Get(w.ctx, w.Leader(), "/v1/locks")
			var page struct{ Locks []struct{ Name string } }
			if err != nil || a.Status != 200 {
				return false
			}
			a.Into(t, &page)
			return len(page.Locks) == 0
		})
	})
}

// C06: leadership flaps fifty times. Afterwards there is one leader, it writes, and nothing has piled up.
func TestFlappingLeadershipLeavesNothingBehind(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		random := rand.New(rand.NewPCG(8, 1))
		h := w.hold("a", 20*time.Second, 2*time.Second)
		time.Sleep(10 * time.Second)
		before := runtime.NumGoroutine()
		for range fewer(50) {
			leader := w.Leader()
			w.Network.Isolate(w.Name(leader))
			time.Sleep(time.Duration(300+random.IntN(1700)) * time.Millisecond)
			w.Network.Rejoin(w.Name(leader))
			time.Sleep(time.Duration(random.IntN(300)) * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		leaders := 0
		for i := range w.Size() {
			if w.Node(i).Leads() {
				leaders++
			}
		}
		if leaders != 1 {
			t.Errorf("there are %d leaders", leaders)
		}
		w.session(time.Minute).mustHold("b")
		time.Sleep(2 * time.Minute) // idle connections are closed
		if after := runtime.NumGoroutine(); after > before+50 {
			t.Errorf("there were %d goroutines and are %d", before, after)
		}
		h.checkKept()
		w.checkAgreement()
	})
}
