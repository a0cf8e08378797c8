package server_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server/pawltest"
)

// Twenty wait when the leader crashes, or hands over, or is cut off. Those who repeat find their places: they are granted in
// the order in which they came.
func TestWaitersKeepTheirOrderThroughFailover(t *testing.T) {
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
				const count = 20
				holder := w.hold("a", 10*time.Second, time.Second)
				var mu sync.Mutex
				var order, want []int
				var waiting sync.WaitGroup
				for i := range count {
					s := w.session(30 * time.Second)
					want = append(want, i)
					waiting.Go(func() {
						g, err := s.acquire(w.ctx, 1, "a", 30*time.Second)
						if err != nil {
							t.Errorf("waiter %d: %v", i, err)
							return
						}
						mu.Lock()
						order = append(order, i)
						mu.Unlock()
						if left := time.Duration(g.Lease)*time.Millisecond - time.Since(g.sent); left <= 0 {
							t.Errorf("waiter %d was granted a lease that ended %v ago", i, -left)
						}
						if a, err := s.release(1); err != nil || a.Status != 200 {
							t.Errorf("waiter %d cannot release: %v %s", i, err, a.Body)
						}
					})
					w.untilQueued("a", i+1)
				}
				c.make(w)
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

// Callers that can repeat are sent away at once by a leader that has lost its majority; for the others it
// waits on.
func TestDeposedLeaderSendsAwayWhoCanRepeat(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		holder := w.hold("a", 10*time.Second, time.Second)
		leader := w.Leader()
		keyed := w.waitInLine(leader, "a", "k")
		w.untilQueued("a", 1)
		keyless := w.waitInLine(leader, "a", "")
		w.untilQueued("a", 2)
		for i := range w.Size() {
			if i != leader {
				w.Network.Cut(w.Name(leader), w.Name(i))
			}
		}
		cut := time.Now()
		if e := <-keyed; e.code != "unknown_outcome" || time.Since(cut) > time.Second {
			t.Errorf("after %v the waiter with a key was told %+v", time.Since(cut), e)
		}
		time.Sleep(5 * time.Second)
		if len(keyless) > 0 {
			t.Fatalf("the waiter without a key was told %+v", <-keyless)
		}
		w.Network.HealAll()
		w.WaitReady()
		if a, _, err := w.caller().repeat(w.ctx, callLimit, "/v1/cancel", "", "Idempotency-Key", "k"); err != nil || a.Status != 200 {
			t.Errorf("%v %s", err, a.Body)
		}
		if a, err := holder.release(1); err != nil || a.Status != 200 {
			t.Errorf("%v %s", err, a.Body)
		}
		if e := <-keyless; e.status != 200 {
			t.Errorf("the waiter without a key was told %+v", e)
		}
		holder.stop()
	})
}

// A deposed leader still has a caller without number or key, whose grant it learns of only from a snapshot: the others cut
// their logs meanwhile. The caller is told all the same.
func TestWaiterLearnsOfItsGrantFromASnapshot(t *testing.T) {
	inVirtualTime(t, pawltest.Options{Configure: smallSnapshots}, func(t *testing.T, w *world) {
		holder := w.hold("a", 10*time.Second, time.Second)
		old := w.Leader()
		c := w.caller()
		answer := make(chan pawltest.Answer, 1)
		go func() {
			a, err := c.once(w.ctx, old, "/v1/acquire", `{"name":"a","owner":"patient","wait_ms":60000,"ttl_ms":60000}`)
			if err != nil {
				t.Error(err)
			}
			answer <- a
		}()
		w.untilQueued("a", 1)
		for i := range w.Size() {
			if i != old {
				w.Network.Cut(w.Name(old), w.Name(i))
			}
		}
		w.otherLeader(old)
		if a, err := holder.release(1); err != nil || a.Status != 200 {
			t.Fatal(err, a.Status)
		}
		s := w.session(time.Minute)
		for n := range uint64(300) {
			if _, err := s.acquire(w.ctx, n+1, fmt.Sprint("n", n), 0); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(3 * time.Second)
		for i := range w.Size() {
			if i != old {
				if err := w.Node(i).CutSnapshot(w.ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
		if len(answer) > 0 {
			t.Fatalf("answered too early: %s", (<-answer).Body)
		}
		w.Network.HealAll()
		healed := time.Now()
		a := <-answer
		g, err := readGrant(a, healed)
		if err != nil || time.Since(healed) > 5*time.Second {
			t.Fatalf("%v after %v", err, time.Since(healed))
		}
		v, _, err := w.view(w.Leader(), "a", "")
		if err != nil || len(v.Holders) != 1 || v.Holders[0].Token != g.Token {
			t.Errorf("told token %d, and the lock has %+v %v", g.Token, v, err)
		}
		holder.stop()
	})
}

// A01, etcd#11456: a waiter whose session ends while it waits is never granted.
func TestDeadWaiterIsNeverGranted(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		holder := w.session(6 * time.Second)
		holder.mustHold("a")
		began := time.Now()
		dead := w.session(2 * time.Second)
		ctx, kill := context.WithCancel(w.ctx)
		go func() { _, _ = dead.acquire(ctx, 1, "a", 30*time.Second) }()
		w.untilQueued("a", 1)
		kill()
		silent := w.caller() // its messages vanish, so nobody learns that it has gone
		go func() {
			a, err := silent.once(w.ctx, w.follower(), "/v1/acquire", `{"name":"a","owner":"silent","wait_ms":3000,"ttl_ms":2000}`)
			if err == nil && a.Status == 200 {
				t.Errorf("the silent one was granted: %s", a.Body)
			}
		}()
		w.untilQueued("a", 2)
		w.Network.Isolate(silent.host)
		next := w.session(5 * time.Second)
		stop := next.keepAlive(time.Second)
		granted := make(chan grant, 1)
		go func() {
			g, err := next.acquire(w.ctx, 1, "a", 30*time.Second)
			if err != nil {
				t.Error(err)
			}
			granted <- g
		}()
		for done := false; !done; {
			select {
			case g := <-granted:
				if after := g.came.Sub(began); after > 7500*time.Millisecond {
					t.Errorf("the living waiter was granted after %v", after)
				}
				done = true
			case <-time.After(5 * time.Millisecond):
			}
			for i := range w.Size() {
				v, _, err := w.view(i, "a", "&consistency=stale")
				if err != nil {
					t.Fatal(err)
				}
				if len(v.Holders) > 0 && (v.Holders[0].Owner == dead.host || v.Holders[0].Owner == "silent") {
					t.Fatalf("%s shows that the dead %s holds the lock", w.Name(i), v.Holders[0].Owner)
				}
			}
		}
		stop()
	})
}

// A wait that nobody repeats leaves the queue after its time and the grace, though its session lives; one that is repeated
// stays.
func TestWaiterHasADeadline(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		const wait, grace = 2 * time.Second, 10 * time.Second
		holder := w.hold("a", 10*time.Second, time.Second)
		s := w.session(20 * time.Second)
		keep := s.keepAlive(time.Second)
		g, err := s.try(1, "a", wait)
		if err != nil || g.Granted || len(g.Queue) != 1 || g.Queue[0].Position != 1 {
			t.Fatalf("%+v %v", g, err)
		}
		if g, err = s.try(1, "a", wait); err != nil || g.Granted {
			t.Fatalf("%+v %v", g, err)
		}
		repeated := g.sent
		time.Sleep(time.Until(repeated.Add(wait + grace - 500*time.Millisecond)))
		w.untilQueued("a", 1)
		time.Sleep(time.Second)
		w.untilQueued("a", 0)
		if keep() {
			t.Error("the session is gone with its wait")
		}
		holder.checkKept()
	})
}

// try makes one call only.
func (s *session) try(number uint64, name string, wait time.Duration) (grant, error) {
	body := fmt.Sprintf(`{"name":%q,"session":%q,"request":%d,"wait_ms":%d}`, name, s.id, number, wait.Milliseconds())
	a, sent, err := s.repeat(s.w.ctx, wait+callLimit, "/v1/acquire", body)
	if err != nil {
		return grant{}, err
	}
	return readGrant(a, sent)
}

// A29: an expired lock is free at once, for who comes later and for who has waited.
func TestExpiredLockNeedsNoSecondLease(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		w.session(3 * time.Second).mustHold("a")
		w.session(3 * time.Second).mustHold("b")
		began := time.Now()
		if _, err := w.session(time.Minute).acquire(w.ctx, 1, "b", 10*time.Second); err != nil {
			t.Fatal(err)
		}
		if after := time.Since(began); after < 2900*time.Millisecond || after > 3*time.Second+slack {
			t.Errorf("the waiter was granted after %v", after)
		}
		time.Sleep(57 * time.Second)
		began = time.Now()
		w.session(time.Minute).mustHold("a")
		if took := time.Since(began); took > 200*time.Millisecond {
			t.Errorf("the newcomer waited for %v", took)
		}
	})
}

// A05, A06: what an expired holder still says changes nothing: neither its successor's lease nor a free lock.
func TestExpiredHolderChangesNothing(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		late := w.session(2 * time.Second)
		late.mustHold("a")
		next := w.session(10 * time.Second)
		g, err := next.acquire(w.ctx, 1, "a", 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		index := w.Node(w.Leader()).LastIndex()
		before, _, _ := w.view(w.Leader(), "a", "")
		began := time.Now()
		for node := range w.Size() {
			for path, body := range map[string]string{
				"/v1/release": fmt.Sprintf(`{"session":%q,"request":1}`, late.id), "/v1/renew": fmt.Sprintf(`{"session":%q}`, late.id),
				"/v1/session/close": fmt.Sprintf(`{"session":%q}`, late.id),
			} {
				a, err := late.once(w.ctx, node, path, body)
				if err != nil || problemOf(a).Code != "session_gone" {
					t.Errorf("%s at %s: %v %d %s", path, w.Name(node), err, a.Status, a.Body)
				}
			}
		}
		after, _, err := w.view(w.Leader(), "a", "")
		if err != nil || len(after.Holders) != 1 || after.Holders[0].Token != g.Token {
			t.Fatalf("%+v %v", after, err)
		}
		if lost := time.Duration(before.Holders[0].Remaining-after.Holders[0].Remaining)*time.Millisecond - time.Since(began); lost > slack || lost < -slack {
			t.Errorf("the successor's lease changed by %v", lost)
		}
		if now := w.Node(w.Leader()).LastIndex(); now != index {
			t.Errorf("%d entries were written for a session that is gone", now-index)
		}
		if a, err := next.release(1); err != nil || a.Status != 200 {
			t.Fatalf("%v %s", err, a.Body)
		}
		if alive, err := late.renew(w.ctx, callLimit); alive || err != nil {
			t.Errorf("a renew brought an expired session back: %v", err)
		}
		if v, _, err := w.view(w.Leader(), "a", ""); err != nil || len(v.Holders) > 0 {
			t.Errorf("the free lock has %+v %v", v, err)
		}
	})
}
