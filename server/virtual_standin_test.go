package server_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// keyless has one caller without number or key wait for a lock at a node.
func (c *caller) keyless(ctx context.Context, node int, name string, ttl, wait time.Duration) (grant, error) {
	sent := time.Now()
	a, err := c.once(ctx, node, "/v1/acquire", fmt.Sprintf(`{"name":%q,"owner":%q,"ttl_ms":%d,"wait_ms":%d}`, name, c.host, ttl.Milliseconds(), wait.Milliseconds()))
	if err != nil {
		return grant{}, err
	}
	return readGrant(a, sent)
}

// giveBack releases a grant of a caller without number or key.
func (c *caller) giveBack(g grant) error {
	a, _, err := c.repeat(c.w.ctx, callLimit, "/v1/release", fmt.Sprintf(`{"session":%q,"token":%d}`, g.Session, g.Token))
	if err == nil && a.Status != 200 {
		err = fmt.Errorf("releasing: %d %s", a.Status, a.Body)
	}
	return err
}

// Callers without number or key wait at nodes that survive a change of leaders. They learn nothing of it: they are granted in
// the order in which they came, each with a lease that counts from when it sent its call and ends with the hold.
func TestKeylessWaitersKeepTheirOrderThroughFailover(t *testing.T) {
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
				const count, ttl = 20, 5 * time.Second
				holder := w.hold("a", 10*time.Second, time.Second)
				leader := w.Leader()
				var mu sync.Mutex
				var order, want []int
				var waiting sync.WaitGroup
				for i := range count {
					want = append(want, i)
					waiting.Go(func() {
						c := w.caller()
						g, err := c.keyless(w.ctx, (leader+1+i%2)%3, "a", ttl, time.Minute)
						if err != nil {
							t.Errorf("waiter %d: %v", i, err)
							return
						}
						mu.Lock()
						order = append(order, i)
						mu.Unlock()
						ends := g.sent.Add(time.Duration(g.Lease) * time.Millisecond)
						if left := time.Until(ends); left > ttl || left < ttl-time.Second {
							t.Errorf("waiter %d was granted a lease of which %v are left", i, left)
						}
						if err := c.giveBack(g); err != nil {
							t.Errorf("waiter %d: %v", i, err)
						}
					})
					w.untilQueued("a", i+1)
				}
				c.make(w)
				time.Sleep(5 * time.Second) // more than the patience with those whom nobody stands in for
				w.untilQueued("a", count)
				if a, err := holder.release(1); err != nil || a.Status != 200 {
					t.Fatalf("releasing: %v %s", err, a.Body)
				}
				waiting.Wait()
				holder.stop()
				if !slices.Equal(order, want) {
					t.Errorf("granted in the order %v", order)
				}
				w.checkAgreement()
			})
		})
	}
}

// A01: the node that was asked vanishes, as leader or as follower, with its callers or cut off from all others. Nobody can be told
// of what they are granted, so they are taken out of the queue, and who lives is granted long before their TTL.
func TestWaitsOfANodeThatVanished(t *testing.T) {
	const count, ttl = 10, 5 * time.Minute
	for _, c := range []struct {
		name    string
		leads   bool
		vanish  func(w *world, node int)
		noticed time.Duration
	}{
		// An election, and the patience with those whom nobody stands in for.
		{"leader crashes", true, func(w *world, node int) { w.Crash(node) }, 5 * time.Second},
		{"leader is cut off", true, func(w *world, node int) { w.Network.Isolate(w.Name(node)) }, 5 * time.Second},
		{"follower crashes", false, func(w *world, node int) { w.Crash(node) }, time.Second},
		// The pings between nodes.
		{"follower is cut off", false, func(w *world, node int) { w.Network.Isolate(w.Name(node)) }, 7 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
				holder := w.hold("a", 10*time.Second, time.Second)
				node := w.follower()
				if c.leads {
					node = w.Leader()
				}
				ctx, end := context.WithCancel(w.ctx)
				defer end()
				for i := range count {
					go func() {
						if g, err := w.caller().keyless(ctx, node, "a", ttl, time.Minute); err == nil {
							t.Errorf("a caller of the node that vanished was granted %+v", g)
						}
					}()
					w.untilQueued("a", i+1)
				}
				last := make(chan grant, 1)
				living := w.caller()
				go func() {
					g, err := living.keyless(w.ctx, (node+1)%3, "a", ttl, time.Minute)
					if err != nil {
						t.Error(err)
					}
					last <- g
				}()
				w.untilQueued("a", count+1)
				began := time.Now()
				c.vanish(w, node)
				if c.leads {
					w.otherLeader(node)
				}
				w.until(10*time.Second, "only who lives is in the queue", func() bool {
					v, _, err := w.view(w.Leader(), "a", "")
					return err == nil && len(v.Queue) == 1
				})
				if took := time.Since(began); took > c.noticed {
					t.Errorf("their waits stood for %v", took)
				}
				released := time.Now()
				if a, err := holder.release(1); err != nil || a.Status != 200 {
					t.Fatalf("releasing: %v %s", err, a.Body)
				}
				if took := (<-last).came.Sub(released); took > time.Second {
					t.Errorf("who lives was granted after %v", took)
				}
				holder.stop()
				end()
			})
		})
	}
}

// A01: the lock becomes free before the new leader has lost its patience: what was granted to nobody meanwhile is taken back.
func TestGrantsToNobodyAreTakenBack(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		const count = 10
		holder := w.hold("a", 10*time.Second, time.Second)
		leader := w.Leader()
		for i := range count {
			go func() { _, _ = w.caller().keyless(w.ctx, leader, "a", 5*time.Minute, time.Minute) }()
			w.untilQueued("a", i+1)
		}
		last := make(chan grant, 1)
		living := w.session(time.Minute)
		keep := living.keepAlive(5 * time.Second)
		go func() {
			g, err := living.acquire(w.ctx, 1, "a", time.Minute)
			if err != nil {
				t.Error(err)
			}
			last <- g
		}()
		w.untilQueued("a", count+1)
		w.Crash(leader)
		w.otherLeader(leader)
		released := time.Now()
		if a, err := holder.release(1); err != nil || a.Status != 200 {
			t.Fatalf("releasing: %v %s", err, a.Body)
		}
		if took := (<-last).came.Sub(released); took > 3*time.Second {
			t.Errorf("who lives was granted after %v", took)
		}
		holder.stop()
		if keep() {
			t.Error("the session of the last is gone")
		}
	})
}

// Callers without number or key contend through all nodes while leaders change and nodes are cut off for moments. No two hold
// a lock at once, as each counts its lease; nobody loses a hold before its lease ends; and tokens go up.
func TestKeylessExclusionThroughFaults(t *testing.T) {
	for seed := range uint64(fewer(2)) {
		inVirtualTime(t, pawltest.Options{Seed: seed + 1}, func(t *testing.T, w *world) {
			const locks, each, lasts = 4, 6, time.Minute
			r := &referee{tenures: map[string][]tenure{}}
			ctx, end := context.WithTimeout(w.ctx, lasts)
			defer end()
			var running sync.WaitGroup
			var mu sync.Mutex
			told := map[string]int{}
			for i := range locks * each {
				random := rand.New(rand.NewPCG(seed, uint64(i)))
				running.Go(func() {
					for ctx.Err() == nil {
						c := w.caller()
						name := fmt.Sprint("lock", i%locks)
						limited, hangUp := context.WithTimeout(w.ctx, time.Duration(random.IntN(20_000))*time.Millisecond)
						g, err := c.keyless(limited, random.IntN(w.Size()), name, 10*time.Second, time.Duration(1+random.IntN(20_000))*time.Millisecond)
						hangUp()
						if err != nil {
							mu.Lock()
							told[kindOf(err)]++
							mu.Unlock()
							time.Sleep(50 * time.Millisecond)
							continue
						}
						held := tenure{client: c.host, token: g.Token, from: g.came, to: g.sent.Add(time.Duration(g.Lease) * time.Millisecond * 998 / 1000)}
						if random.IntN(4) > 0 {
							time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
							if now := time.Now(); now.Before(held.to) {
								held.to = now
								limited, stop := context.WithTimeout(w.ctx, time.Until(g.sent.Add(time.Duration(g.Lease)*time.Millisecond*998/1000)))
								a, _, err := c.repeat(limited, time.Second, "/v1/release", fmt.Sprintf(`{"session":%q,"token":%d}`, g.Session, g.Token))
								stop()
								// A release whose first answer was lost finds the session gone when it is repeated.
								if err == nil && a.Status != 200 && time.Since(now) < 100*time.Millisecond {
									t.Errorf("%s: %s was granted token %d for %d ms after %v, and its release is told: %s", name, c.host, g.Token, g.Lease, g.came.Sub(g.sent), a.Body)
								}
							}
						}
						r.record(name, held)
					}
				})
			}
			random := rand.New(rand.NewPCG(seed, 1<<32))
			for ctx.Err() == nil {
				time.Sleep(time.Duration(1000+random.IntN(6000)) * time.Millisecond)
				switch node := random.IntN(w.Size()); random.IntN(4) {
				case 0:
					_, _ = w.Post(w.ctx, w.Leader(), "/v1/cluster/transfer", `{}`)
				case 1:
					w.Network.Isolate(w.Name(node))
					time.Sleep(time.Duration(random.IntN(8000)) * time.Millisecond)
					w.Network.Rejoin(w.Name(node))
				case 2:
					other := (node + 1) % w.Size()
					w.Network.Cut(w.Name(node), w.Name(other))
					time.Sleep(time.Duration(random.IntN(8000)) * time.Millisecond)
					w.Network.Heal(w.Name(node), w.Name(other))
				case 3:
					w.Crash(node)
					time.Sleep(time.Duration(random.IntN(3000)) * time.Millisecond)
					w.Start(node)
				}
			}
			running.Wait()
			if grants := r.judge(t); grants < 30 {
				t.Errorf("only %d grants", grants)
			} else {
				t.Log(grants, "grants")
			}
			t.Log("others: ", told)
			w.checkAgreement()
		})
	}
}

// Leaders change sooner than one of them learns whom nobody stands in for. The node whose caller vanished knows it, so a lock
// is granted to nobody only if the grant was on its way already.
func TestVanishedCallersUnderQuickSuccession(t *testing.T) {
	for seed := range uint64(fewer(2)) {
		inVirtualTime(t, pawltest.Options{Seed: seed + 1}, func(t *testing.T, w *world) {
			const callers, lasts, often = 10, 30 * time.Second, 1500 * time.Millisecond
			const onItsWay = 50 * time.Millisecond // and as often as is looked
			ctx, end := context.WithTimeout(w.ctx, lasts)
			defer end()
			var mu sync.Mutex
			left := map[string]time.Time{} // when a caller vanished, by its name
			var grants atomic.Int64
			var running sync.WaitGroup
			for i := range callers {
				random := rand.New(rand.NewPCG(seed, uint64(i)))
				running.Go(func() {
					for ctx.Err() == nil {
						c, patience := w.caller(), 30*time.Second
						if random.IntN(10) < 3 {
							patience = time.Duration(20+random.IntN(150)) * time.Millisecond
						}
						limited, hangUp := context.WithTimeout(w.ctx, patience)
						g, err := c.keyless(limited, random.IntN(w.Size()), "a", time.Minute, 20*time.Second)
						hangUp()
						switch {
						case errors.Is(err, context.DeadlineExceeded):
							mu.Lock()
							left[c.host] = time.Now()
							mu.Unlock()
						case err == nil:
							grants.Add(1)
							time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
							if err := c.giveBack(g); err != nil {
								t.Error(err)
							}
						}
						c.http.CloseIdleConnections()
					}
				})
			}
			running.Go(func() {
				for pause := time.NewTicker(often); ctx.Err() == nil; <-pause.C {
					_, _ = w.Post(w.ctx, w.Leader(), "/v1/cluster/transfer", `{}`)
				}
			})
			running.Go(func() {
				// On the test's clock: the lease clock stands still while leadership moves.
				seen, told := map[uint64]time.Time{}, map[uint64]bool{}
				for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
					v, _, err := w.view(0, "a", "&consistency=stale")
					if err != nil || len(v.Holders) == 0 {
						continue
					}
					h := v.Holders[0]
					if seen[h.Token].IsZero() {
						seen[h.Token] = time.Now()
					}
					held := time.Since(seen[h.Token])
					mu.Lock()
					vanished, gone := left[h.Owner]
					mu.Unlock()
					if !gone || held < 500*time.Millisecond || told[h.Token] {
						continue
					}
					told[h.Token] = true
					late := seen[h.Token].Sub(vanished)
					t.Logf("%s was granted %v after it vanished, and holds for %v", h.Owner, late, held)
					if late > onItsWay {
						t.Errorf("%s was granted the lock %v after it had vanished, and held it for %v", h.Owner, late, held)
					}
					_, _ = w.Post(w.ctx, 0, "/v1/force-release", fmt.Sprintf(`{"name":"a","token":%d,"reason":"its caller vanished"}`, h.Token))
				}
			})
			running.Wait()
			t.Logf("%d grants, %d callers vanished", grants.Load(), len(left))
			if grants.Load() < 100 || len(left) < 20 {
				t.Error("too little happened")
			}
		})
	}
}

// kindOf says in one word how a caller failed to be granted.
func kindOf(err error) string {
	for _, code := range []string{"held", "unknown_outcome", "no_leader", "shutting_down", "session_gone", "finished"} {
		if strings.Contains(err.Error(), `"code":"`+code+`"`) {
			return code
		}
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "hung up"
	case errors.Is(err, errRefused):
		return err.Error()
	}
	return "no answer"
}

// A thousand callers without number or key wait for half a minute. That costs the entries that brought them, and no more than
// an idle cluster with a session writes anyway; and when they have gone nothing is left of them.
func TestKeylessWaitsAreQuiet(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		const count, quiet = 1000, 25 * time.Second
		holder := w.session(time.Hour)
		holder.mustHold("a")
		leader := w.Node(w.Leader())
		idle := leader.LastIndex()
		time.Sleep(quiet)
		idle = leader.LastIndex() - idle
		_, before := leader.Snapshot()
		first := leader.LastIndex()
		var waiting sync.WaitGroup
		c := w.caller()
		for i := range count {
			waiting.Go(func() {
				if _, err := c.keyless(w.ctx, i%w.Size(), "a", 10*time.Second, 30*time.Second); !errors.Is(err, errRefused) {
					t.Error(err)
				}
			})
		}
		w.untilQueued("a", count)
		standing := leader.LastIndex()
		time.Sleep(quiet)
		after := leader.LastIndex()
		t.Logf("%d waits were brought by %d entries; in %v while they wait there were %d, and without them %d", count, standing-first, quiet, after-standing, idle)
		if after-standing > idle+1 {
			t.Errorf("%d entries in %v in which nothing happened, and %d without anybody who waits", after-standing, quiet, idle)
		}
		waiting.Wait()
		if _, left := leader.Snapshot(); len(left) > len(before)+16 {
			t.Errorf("the state has %d bytes, and had %d before", len(left), len(before))
		}
		holder.post(200, "/v1/release", `{"session":%q,"request":1}`, holder.id)
	})
}

// Callers without number or key wait, are granted and release, or hang up, also in the moment in which their wait ends; and
// leadership changes hands. When all is over no tombstone and nothing else is left of them (R11).
func TestKeylessWaitsLeaveNothing(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		const lanes = 20
		w.session(time.Hour) // what is left of this one is there before and after
		_, before := w.Node(w.Leader()).Snapshot()
		ends := [3]atomic.Int64{}
		var running sync.WaitGroup
		for lane := range lanes {
			running.Go(func() {
				random := rand.New(rand.NewPCG(1, uint64(lane)))
				c := w.caller()
				for range fewer(20) {
					wait := time.Duration(1+random.IntN(100)) * time.Millisecond
					ctx, hangUp := context.WithTimeout(w.ctx, wait+time.Duration(random.IntN(5000)-500)*time.Microsecond)
					g, err := c.keyless(ctx, random.IntN(w.Size()), fmt.Sprint("lock", lane%4), 5*time.Second, wait)
					hangUp()
					switch {
					case err == nil:
						ends[0].Add(1)
						time.Sleep(time.Duration(random.IntN(40)) * time.Millisecond)
						if err := c.giveBack(g); err != nil {
							t.Error(err)
						}
					case errors.Is(err, errRefused):
						ends[1].Add(1)
					default:
						ends[2].Add(1)
					}
				}
			})
		}
		time.Sleep(time.Second)
		_, _ = w.Post(w.ctx, w.Leader(), "/v1/cluster/transfer", `{}`)
		running.Wait()
		time.Sleep(10 * time.Second) // what was granted to who had just hung up ends with its TTL
		t.Logf("%d granted, %d refused, %d hung up", ends[0].Load(), ends[1].Load(), ends[2].Load())
		if _, after := w.Node(w.Leader()).Snapshot(); len(after) > len(before)+16 {
			t.Errorf("the state has %d bytes, and had %d before", len(after), len(before))
		}
	})
}

// On the API port nobody can name a wait of somebody else's.
func TestClientsCannotNameWaits(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		holder := w.session(time.Hour)
		holder.mustHold("a")
		for node := range w.Size() {
			const id = "00112233445566778899aabbccddeeff"
			a, err := w.Post(w.ctx, node, "/v1/acquire", `{"name":"b","owner":"o","wait_ms":1000}`, "Pawl-Wait", id+" 0", "Pawl-Forwarded", "n1")
			if err != nil || a.Status != 200 || a.Field("session") == id {
				t.Errorf("%v %d %s", err, a.Status, a.Body)
			}
			if g, err := readGrant(a, time.Now()); err != nil || w.caller().giveBack(g) != nil {
				t.Error(err)
			}
		}
	})
}

// A node sees the grant of a wait that it claimed as leader, but another leadership has begun by then, for which nobody has
// claimed it: that one may take it back, so nobody is told of it.
func TestGrantOfAnotherLeadershipIsNotTold(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		leader := w.Node(w.Leader())
		began := leader.Stamp()
		acquire := &fsm.Acquire{ID: fsm.ID{1}, Owner: "o", TTL: 60_000, Wait: 60_000, Locks: []fsm.Want{{Name: "a", Mode: fsm.Exclusive}}}
		result, err := leader.PutEntry(w.ctx, &fsm.Entry{Stamp: began, Commands: []fsm.Command{acquire}})
		if err != nil || result.Outcomes[0].Grant == nil {
			t.Fatalf("%+v %v", result, err)
		}
		request := result.Outcomes[0].Request
		if err := leader.AwaitClaimed(w.ctx, began.Begin, request); err != nil {
			t.Errorf("under its own leadership: %v", err)
		}
		if err := leader.PutBegin(w.ctx); err != nil {
			t.Fatal(err)
		}
		if err := leader.AwaitClaimed(w.ctx, began.Begin, request); !errors.Is(err, transport.ErrUnknownOutcome) {
			t.Errorf("under another: %v", err)
		}
	})
}
