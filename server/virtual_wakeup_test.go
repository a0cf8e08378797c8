package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// Ten thousand rounds of releases against enqueues that race with them, through every node: nobody waits longer than those
// before him hold, and no node ever has a free lock with a queue (A19).
func TestNoFreeLockHasAQueue(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		const locks, clients = 50, 3
		rounds := fewer(67) // each
		ctx, cancel := context.WithCancel(w.ctx)
		var watching sync.WaitGroup
		var seen atomic.Int64
		for node := range w.Size() {
			watching.Go(func() {
				for ; ctx.Err() == nil; time.Sleep(300 * time.Microsecond) {
					if idle := w.Node(node).Idle(); len(idle) > 0 {
						t.Errorf("%s: free with a queue: %q", w.Name(node), idle)
						return
					}
					seen.Add(1)
				}
			})
		}
		var working sync.WaitGroup
		var done, waited atomic.Int64
		for i := range locks * clients {
			s := w.session(time.Hour)
			random := rand.New(rand.NewPCG(1, uint64(i)))
			name := fmt.Sprintf("lock%02d", i%locks)
			working.Go(func() {
				for number := range uint64(rounds) {
					number++
					// Hold and pause about as long as a call takes, so that a release and an enqueue cross in every way.
					time.Sleep(time.Duration(random.IntN(3000)) * time.Microsecond)
					body := fmt.Sprintf(`{"name":%q,"session":%q,"request":%d,"done":%d,"wait_ms":5000}`, name, s.id, number, number)
					began := time.Now()
					a, err := s.once(ctx, random.IntN(w.Size()), "/v1/acquire", body)
					if err != nil || a.Status != 200 {
						t.Errorf("%s round %d: %v %d %s", name, number, err, a.Status, a.Body)
						return
					}
					if took := time.Since(began); took > 200*time.Millisecond {
						t.Errorf("%s round %d: granted after %v", name, number, took)
					} else if took > 4*time.Millisecond {
						waited.Add(1)
					}
					time.Sleep(time.Duration(random.IntN(3000)) * time.Microsecond)
					if a, err := s.once(ctx, random.IntN(w.Size()), "/v1/release", fmt.Sprintf(`{"session":%q,"request":%d}`, s.id, number)); err != nil || a.Status != 200 {
						t.Errorf("%s round %d: releasing: %v %d %s", name, number, err, a.Status, a.Body)
						return
					}
					done.Add(1)
				}
			})
		}
		working.Wait()
		cancel()
		watching.Wait()
		t.Logf("%d rounds, %d after a wait; %d looks", done.Load(), waited.Load(), seen.Load())
		if done.Load() < int64(locks*clients*rounds) || (!testing.Short() && waited.Load() < done.Load()/10) {
			t.Errorf("%d rounds, %d after a wait: the race was never close", done.Load(), waited.Load())
		}
		w.checkAgreement()
	})
}

// F10: hundreds wait and their clients vanish, half with their connections and half silently. The queues are empty on every
// node once the waits are over, nobody is left waiting at any node, and who lives is granted at once.
func TestWaitersWhoseClientsVanish(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		const locks, each, wait = 10, 30, 15 * time.Second
		holder := w.session(time.Hour)
		ctx, kill := context.WithCancel(w.ctx)
		var calls sync.WaitGroup
		gone := []*caller{w.caller(), w.caller()}
		for i := range locks {
			name := fmt.Sprintf("lock%02d", i)
			holder.mustHold(name)
			for j := range each {
				calls.Go(func() {
					c, limit := gone[j%2], ctx
					if j%2 == 1 { // silent: nobody learns that it has gone, and it learns nothing
						limit = w.ctx
					}
					body := fmt.Sprintf(`{"name":%q,"owner":"gone","ttl_ms":60000,"wait_ms":%d}`, name, wait.Milliseconds())
					if a, err := c.once(limit, (i+j)%w.Size(), "/v1/acquire", body); err == nil && a.Status == 200 {
						t.Errorf("who is gone was granted %s: %s", name, a.Body)
					}
				})
			}
			w.untilQueued(name, each)
		}
		began := time.Now()
		kill()
		w.Network.Isolate(gone[1].host)
		waiting := func() (queued int64, callers int) {
			for node := range w.Size() {
				var page transport.LocksResponse
				a, err := w.Get(w.ctx, node, "/v1/locks?consistency=stale")
				if err != nil || json.Unmarshal(a.Body, &page) != nil {
					t.Fatalf("%v %s", err, a.Body)
				}
				for _, l := range page.Locks {
					queued += l.QueueLength
				}
				callers += w.Node(node).Waiters()
			}
			return queued, callers
		}
		w.until(time.Second, "only the silent ones wait", func() bool { queued, _ := waiting(); return queued == 3*locks*each/2 })
		time.Sleep(time.Until(began.Add(wait - 500*time.Millisecond)))
		w.until(2*time.Second, "nobody waits any more", func() bool { queued, callers := waiting(); return queued == 0 && callers == 0 })
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("the last of them was in the way for %v", took)
		}
		next := w.session(time.Minute)
		granted := next.awaited("lock00")
		w.untilQueued("lock00", 1)
		released := time.Now()
		holder.post(200, "/v1/release", `{"session":%q,"request":1}`, holder.id)
		if took := (<-granted).came.Sub(released); took > slack {
			t.Errorf("who lives was granted after %v", took)
		}
		w.Network.Rejoin(gone[1].host)
		calls.Wait()
		w.checkAgreement()
	})
}
