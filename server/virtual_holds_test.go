package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// post sends a call that can be repeated, through all nodes, until one answers it, and checks the status.
func (s *session) post(status int, path, format string, args ...any) pawltest.Answer {
	s.w.t.Helper()
	a, _, err := s.repeat(s.w.ctx, callLimit, path, fmt.Sprintf(format, args...))
	if err != nil || a.Status != status {
		s.w.t.Fatalf("%s %s: %v %d %s, want %d", path, fmt.Sprintf(format, args...), err, a.Status, a.Body, status)
	}
	return a
}

// awaited is when a waiter that goes on asking was granted the lock.
func (s *session) awaited(name string) <-chan grant {
	granted := make(chan grant, 1)
	number := s.number.Add(1)
	go func() {
		g, err := s.acquire(s.w.ctx, number, name, 20*time.Second)
		if err != nil {
			s.w.t.Errorf("waiting for %s: %v", name, err)
		}
		granted <- g
	}()
	return granted
}

// A hold with a maximum ends then, whatever the renewals and repeats of its session, and its session lives on: exactly
// without a change of leaders, and with one late by no more than the gap and one tick.
func TestMaxHoldEndsOnTime(t *testing.T) {
	const most, ttl = 12 * time.Second, 6 * time.Second
	for _, c := range append(changes[:len(changes):len(changes)], struct {
		name string
		make change
	}{"none", nil}) {
		t.Run(c.name, func(t *testing.T) {
			inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
				holder := w.session(ttl)
				body := fmt.Sprintf(`{"name":"a","session":%q,"request":1,"max_hold_ms":%d}`, holder.id, most.Milliseconds())
				began := time.Now()
				holder.post(200, "/v1/acquire", "%s", body)
				held := time.Now()
				stop := holder.keepAlive(time.Second)
				next := w.session(time.Minute).awaited("a")
				allowed := slack
				if c.make != nil {
					time.Sleep(2 * time.Second)
					allowed += c.make(w) + tickInterval(ttl)
				}
				// Told again it ends no later.
				var again struct {
					Hold int64 `json:"hold_ms"`
				}
				asked := time.Now()
				holder.post(200, "/v1/acquire", "%s", body).Into(t, &again)
				if ends := asked.Add(time.Duration(again.Hold) * time.Millisecond); ends.Sub(held) > most+allowed {
					t.Errorf("told again it ends %v after it began", ends.Sub(held))
				}
				g := <-next
				if early := g.came.Sub(began); early < most {
					t.Errorf("another has the lock %v after the acquire was sent, the maximum is %v", early, most)
				}
				if late := g.came.Sub(held) - most; late > allowed {
					t.Errorf("another has the lock %v after the maximum, allowed are %v", late, allowed)
				}
				if stop() {
					t.Error("the session is gone with its hold")
				}
				w.checkAgreement()
			})
		})
	}
}

// A lock-delay runs on the lease clock: it begins when the hold has ended uncleanly, and no change of leaders makes it
// shorter, or longer than by the gap and one tick.
func TestLockDelayThroughLeaderChanges(t *testing.T) {
	const ttl, delay = 3 * time.Second, 10 * time.Second
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
				dead := w.session(ttl)
				began := time.Now()
				dead.post(200, "/v1/acquire", `{"name":"a","session":%q,"request":1,"lock_delay_ms":%d}`, dead.id, delay.Milliseconds())
				granted := time.Now()
				next := w.session(time.Minute)
				waiting := next.awaited("a")
				time.Sleep(ttl + time.Second)
				next.post(409, "/v1/acquire", `{"name":"a","session":%q,"request":100}`, next.id)
				gap := c.make(w)
				g := <-waiting
				if early := g.came.Sub(began); early < ttl+delay {
					t.Errorf("granted %v after the holder was last heard of, the TTL and the delay are %v", early, ttl+delay)
				}
				if late := g.came.Sub(granted) - ttl - delay; late > gap+tickInterval(time.Minute)+slack {
					t.Errorf("granted %v after the delay, the gap was %v", late, gap)
				}
				w.checkAgreement()
			})
		})
	}
}

// A conversion that waits keeps its place, before everybody who waits for the lock, through a change of leaders.
func TestConversionWaitsThroughLeaderChange(t *testing.T) {
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
				readers := []*session{w.session(time.Minute), w.session(time.Minute)}
				var token float64
				for _, r := range readers {
					token = r.post(200, "/v1/acquire", `{"name":"a","mode":"shared","session":%q,"request":1}`, r.id).Field("token").(float64)
				}
				writer := w.session(time.Minute).awaited("a")
				w.untilQueued("a", 1)
				convert := fmt.Sprintf(`{"session":%q,"request":2,"of":1,"token":%d,"name":"a","mode":"exclusive","wait_ms":20000}`, readers[0].id, int64(token))
				converted := make(chan grant, 1)
				go func() {
					for {
						a, sent, err := readers[0].repeat(w.ctx, 20*time.Second+callLimit, "/v1/convert", convert)
						if err == nil && a.Status == http.StatusAccepted {
							continue
						}
						g, readErr := readGrant(a, sent)
						if err != nil || readErr != nil {
							t.Errorf("converting: %v %v", err, readErr)
						}
						converted <- g
						return
					}
				}()
				w.untilQueued("a", 2)
				c.make(w)
				w.untilQueued("a", 2)
				if v, _, err := w.view(w.Leader(), "a", ""); err != nil || v.Queue[0].Owner != readers[0].host || len(v.Holders) != 2 {
					t.Errorf("after the change: %+v %v", v, err)
				}
				released := time.Now()
				readers[1].post(200, "/v1/release", `{"session":%q,"request":1}`, readers[1].id)
				g := <-converted
				if took := g.came.Sub(released); took > slack {
					t.Errorf("converted %v after the other reader had gone", took)
				}
				if g.Token <= uint64(token) {
					t.Errorf("token %d after %v", g.Token, token)
				}
				readers[0].post(200, "/v1/check", `{"name":"a","token":%d}`, g.Token)
				readers[0].post(412, "/v1/check", `{"name":"a","token":%d}`, int64(token))
				select {
				case g := <-writer:
					t.Errorf("the writer was granted beside the converted hold: %+v", g)
				default:
				}
				readers[0].post(200, "/v1/release", `{"session":%q,"request":1}`, readers[0].id)
				if next := <-writer; next.Token <= g.Token {
					t.Errorf("token %d after %d", next.Token, g.Token)
				}
				w.checkAgreement()
			})
		})
	}
}

// Whoever is forced out learns of it from any leader, also one that came later, until it shows that it knows.
func TestForcedOutIsToldThroughLeaderChange(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		for _, c := range changes {
			holder, operator := w.session(30*time.Second), w.session(30*time.Second)
			g := holder.mustHold(c.name)
			operator.post(200, "/v1/force-release", `{"name":%q,"token":%d,"reason":"stuck"}`, c.name, g.Token)
			c.make(w)
			if p := problemOf(holder.post(410, "/v1/release", `{"session":%q,"request":1}`, holder.id)); p.Code != "not_held" {
				t.Errorf("%s: the release says %+v", c.name, p)
			}
			for _, done := range []int{1, 1, 2} {
				var renewed transport.RenewResponse
				holder.post(200, "/v1/renew", `{"session":%q,"done":%d}`, holder.id, done).Into(t, &renewed)
				told := len(renewed.Lost) == 1 && renewed.Lost[0] == transport.LostHold{
					Name: c.name, Token: transport.Token(g.Token), Reason: "stuck", By: "operator at " + operator.host}
				if (done == 1 && !told) || (done == 2 && len(renewed.Lost) != 0) {
					t.Errorf("%s: a renewal with done %d says %+v", c.name, done, renewed.Lost)
				}
			}
		}
	})
}

// held_ms, waited_ms and remaining_ms are possible at every moment, read 50 times a second on every node, around 20 changes
// of leaders: no more than the time that passed, no more than the TTL, and in the end no less than the time that passed
// without the gaps.
func TestShownTimesThroughTwentyLeaderChanges(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		const ttl = 6 * time.Second
		began := time.Now()
		holder := w.hold("a", ttl, 1500*time.Millisecond)
		waiter := w.session(10 * time.Minute)
		granted := waiter.awaited("a")
		w.untilQueued("a", 1)
		queued := time.Now()

		ctx, cancel := context.WithCancel(w.ctx)
		var watching sync.WaitGroup
		var mu sync.Mutex
		reads, refused := 0, 0
		look := func(c *caller, node int, query string) {
			limited, done := context.WithTimeout(ctx, callLimit)
			defer done()
			a, err := w.Do(limited, c.http, http.MethodGet, w.URL(node)+"/v1/lock?name=a"+query, "")
			passed := time.Since(began).Milliseconds()
			if err != nil {
				return
			}
			var v transport.LockResponse
			wrong := ""
			switch {
			case a.Status == http.StatusServiceUnavailable:
			case a.Status != http.StatusOK:
				wrong = "status"
			case json.Unmarshal(a.Body, &v) != nil:
				wrong = "body"
			case query == "" && (len(v.Holders) != 1 || len(v.Queue) != 1):
				wrong = "holders and waiters"
			}
			for _, h := range v.Holders {
				if h.HeldMS < 0 || h.HeldMS > passed || h.RemainingMS < 0 || h.RemainingMS > ttl.Milliseconds() {
					wrong = "a hold's times"
				}
			}
			for _, q := range v.Queue {
				if q.WaitedMS < 0 || q.WaitedMS > passed {
					wrong = "a wait's time"
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if reads++; a.Status != http.StatusOK {
				refused++
			}
			if wrong != "" {
				t.Errorf("%s after %d ms at %s: %d %s", wrong, passed, w.Name(node), a.Status, a.Body)
			}
		}
		for node := range w.Size() {
			for _, query := range []string{"", "&consistency=stale"} {
				c := w.caller()
				watching.Go(func() {
					for ; ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
						look(c, node, query)
					}
				})
			}
		}
		var lost time.Duration
		for n := range 20 {
			lost += changes[n%len(changes)].make(w) + tickInterval(ttl)
			time.Sleep(500 * time.Millisecond)
		}
		cancel()
		watching.Wait()
		var v transport.LockResponse
		w.MustGet(w.Leader(), "/v1/lock?name=a").Into(t, &v)
		if short := time.Since(began).Milliseconds() - v.Holders[0].HeldMS; short > (lost + slack).Milliseconds() {
			t.Errorf("held_ms is %d ms short, the gaps allow %v", short, lost)
		}
		if short := time.Since(queued).Milliseconds() - v.Queue[0].WaitedMS; short > (lost + slack).Milliseconds() {
			t.Errorf("waited_ms is %d ms short, the gaps allow %v", short, lost)
		}
		t.Logf("%d reads, %d refused; %v passed, held_ms %d, waited_ms %d", reads, refused, time.Since(began), v.Holders[0].HeldMS, v.Queue[0].WaitedMS)
		holder.checkKept()
		if a, err := holder.release(1); err != nil || a.Status != 200 {
			t.Fatalf("%v %s", err, a.Body)
		}
		<-granted
	})
}

// A check that is passed on to a leader that was just cut off is a read: it is given up soon, and says that nothing happened
// (D01). A change in its place is waited for, and its outcome is unknown.
func TestCheckOfACutOffLeaderIsGivenUp(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		g := w.session(time.Minute).mustHold("a")
		c, follower, leader := w.caller(), w.follower(), w.Leader()
		body := fmt.Sprintf(`{"name":"a","token":%d}`, g.Token)
		if a, err := c.once(w.ctx, follower, "/v1/check", body); err != nil || a.Status != 200 {
			t.Fatalf("%v %s", err, a.Body) // and now there is a connection, which will hang
		}
		w.Network.Isolate(w.Name(leader))
		began := time.Now()
		a, err := c.once(w.ctx, follower, "/v1/check", body)
		if p := problemOf(a); err != nil || p.Code != "no_leader" || p.Applied != "no" {
			t.Errorf("%v %d %s", err, a.Status, a.Body)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("given up after %v", took)
		}
		w.otherLeader(leader)
		w.Network.Rejoin(w.Name(leader))
		w.WaitNodeReady(leader)
		// The leader cut off cannot answer it either: its memory is no evidence.
		for node := range w.Size() {
			if a, err := c.once(w.ctx, node, "/v1/check", body); err != nil || a.Status != 200 {
				t.Errorf("%s: %v %d %s", w.Name(node), err, a.Status, a.Body)
			}
		}
	})
}
