package server_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server/pawltest"
)

// B05: each node in turn is down for three seconds, and nobody who renews loses anything.
func TestRollingRestartLosesNothing(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		const ttl = 10 * time.Second
		held := w.holdMany(100, ttl, ttl/3)
		for i := range w.Size() {
			w.Stop(i)
			time.Sleep(3 * time.Second)
			w.Start(i)
			w.WaitNodeReady(i)
		}
		time.Sleep(ttl)
		for _, h := range held {
			h.checkKept()
		}
	})
}

func (w *world) holdMany(count int, ttl, every time.Duration) []*holding {
	w.t.Helper()
	held := make([]*holding, count)
	for i := range held {
		held[i] = w.hold(fmt.Sprint("many", i), ttl, every)
	}
	return held
}

// B01: the leader is suspended, as far as the others can tell, for longer than the leases of those who renew through the
// others; what it says when it is back changes nothing. A renewal at the old leader is acknowledged only by the new term.
func TestSuspendedLeaderTakesNothingWhenItComesBack(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		const ttl = 4 * time.Second
		held := w.holdMany(50, ttl, time.Second)
		leader := w.Leader()
		w.Network.Isolate(w.Name(leader))
		time.Sleep(7 * time.Second)
		w.Network.Rejoin(w.Name(leader))
		for range fewer(20) {
			sent := time.Now()
			a, err := held[0].once(context.Background(), leader, "/v1/renew", fmt.Sprintf(`{"session":%q}`, held[0].id))
			if err == nil && a.Status != 200 && !again(a, err) {
				t.Errorf("a renew at the old leader %v after its return: %d %s", time.Since(sent), a.Status, a.Body)
			}
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(2 * ttl)
		for _, h := range held {
			h.checkKept()
		}
	})
}

// Cut off in its own minority, a leader frees nothing: neither in its own state nor, after the heal, in that of the others.
func TestLeaderCutOffFromTheMajorityFreesNothing(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		const ttl = 2 * time.Second
		h := w.hold("a", ttl, ttl/4)
		leader := w.Leader()
		for i := range w.Size() {
			if i != leader {
				w.Network.Cut(w.Name(leader), w.Name(i))
			}
		}
		for end := time.Now().Add(5 * ttl); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			v, _, err := w.view(leader, "a", "&consistency=stale")
			if err != nil || len(v.Holders) != 1 || v.Holders[0].Token != h.token {
				t.Fatalf("the cut-off leader shows %+v %v", v, err)
			}
		}
		w.Network.HealAll()
		time.Sleep(2 * ttl)
		h.checkKept()
	})
}

// B15: everything is down for five TTLs. The lease clock stands still meanwhile; then the dead holders are freed within
// their TTL, those who wait in vain are purged, and no time is ever absurd.
func TestLongFullOutage(t *testing.T) {
	for _, crash := range []bool{false, true} {
		t.Run(fmt.Sprintf("crash %v", crash), func(t *testing.T) {
			inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
				const ttl = 6 * time.Second
				locks := fewer(100)
				ctx, hangUp := context.WithCancel(w.ctx)
				var waiting sync.WaitGroup
				for i := range locks {
					w.session(ttl).mustHold(fmt.Sprint("lock", i))
					s := w.session(ttl)
					waiting.Go(func() { _, _ = s.acquire(ctx, 1, fmt.Sprint("lock", i), 5*time.Second) })
				}
				time.Sleep(500 * time.Millisecond)
				hangUp()
				waiting.Wait()
				if v, _, err := w.view(w.Leader(), "lock0", ""); err != nil || len(v.Holders) != 1 || len(v.Queue) != 1 {
					t.Fatalf("before the outage: %+v %v", v, err)
				}
				for i := range w.Size() {
					if crash {
						w.Crash(i)
					} else {
						w.Stop(i)
					}
				}
				time.Sleep(5 * ttl)
				for i := range w.Size() {
					w.Start(i)
				}
				w.Leader()
				back := time.Now()
				w.WaitReady()
				// Who waits is granted when the holder is freed, and dies one TTL later or is purged before.
				sawHeld := false
				for time.Since(back) < 2*ttl+5*time.Second {
					for i := range w.Size() {
						v, _, err := w.view(i, "lock0", "&consistency=stale")
						if err != nil {
							continue
						}
						for _, h := range v.Holders {
							sawHeld = true
							if h.Remaining < 0 || h.Remaining > ttl.Milliseconds() {
								t.Fatalf("%s shows %d ms remaining of %v", w.Name(i), h.Remaining, ttl)
							}
						}
					}
					time.Sleep(100 * time.Millisecond)
				}
				if !sawHeld {
					t.Error("the locks did not outlive the outage")
				}
				var left struct{ Locks []struct{ Name string } }
				w.MustGet(w.Leader(), "/v1/locks?limit=1000").Into(t, &left)
				if len(left.Locks) > 0 {
					t.Errorf("%d locks are left, %+v …", len(left.Locks), left.Locks[0])
				}
			})
		})
	}
}
