package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server/pawltest"
)

// slack is what the network, reading pauses and rounding add to a bound in these tests, in virtual time.
const slack = 50 * time.Millisecond

// tickInterval is R3's: how much time one change of leaders may lose besides the gap.
func tickInterval(shortest time.Duration) time.Duration {
	return min(max(shortest/10, time.Second), time.Minute)
}

// inheritance has one session hold a lock and die, and another wait for it, and knows when which may have it.
type inheritance struct {
	name   string
	ttl    time.Duration
	dead   *session
	heir   *session
	result chan grant
	died   time.Time // when the answer to the last renew came
}

func (w *world) inherit(name string, ttl time.Duration) *inheritance {
	w.t.Helper()
	i := &inheritance{name: name, ttl: ttl, dead: w.session(ttl), heir: w.session(10 * time.Minute), result: make(chan grant, 1)}
	i.dead.mustHold(name)
	go func() {
		g, err := i.heir.acquire(w.ctx, 1, name, 20*time.Second)
		if err != nil {
			w.t.Errorf("waiting for %s: %v", name, err)
		}
		i.result <- g
	}()
	w.until(callLimit, "queued", func() bool {
		v, _, err := w.view(w.Leader(), name, "")
		return err == nil && len(v.Queue) == 1
	})
	if alive, err := i.dead.renew(context.Background(), callLimit); !alive {
		w.t.Fatal("the session is gone at once: ", err)
	}
	i.died = time.Now()
	return i
}

// loss is what one change of leaders may cost those whose time runs meanwhile.
type loss struct {
	at   time.Time
	most time.Duration
}

// check waits for the grant, and checks that it came no earlier than the TTL after the last acknowledged renew was sent
// (I3) and no later than the losses before it allow (I5).
func (i *inheritance) check(t *testing.T, losses ...loss) {
	t.Helper()
	g := <-i.result
	if since := g.came.Sub(time.Unix(0, i.dead.renewed.Load())); since < i.ttl {
		t.Errorf("%s: granted %v after the last acknowledged renew was sent, TTL %v", i.name, since, i.ttl)
	}
	allowed := slack
	for _, l := range losses {
		if !l.at.Before(i.died) && l.at.Before(g.came) {
			allowed += l.most
		}
	}
	late := g.came.Sub(i.died) - i.ttl
	if late > allowed {
		t.Errorf("%s: granted %v after the TTL, allowed are %v", i.name, late, allowed)
	}
	t.Logf("%s: TTL %v, granted %v after it, allowed %v", i.name, i.ttl, late.Round(time.Millisecond), allowed.Round(time.Millisecond))
}

func TestExpiryIsExactWithoutLeaderChange(t *testing.T) {
	for _, ttl := range []time.Duration{500 * time.Millisecond, 4 * time.Second, 30 * time.Second, 4 * time.Minute} {
		t.Run(ttl.String(), func(t *testing.T) {
			inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
				w.inherit("a", ttl).check(t)
			})
		})
	}
}

func TestExpiryAfterOneChangeIsLateByTheGapAndOneTick(t *testing.T) {
	const ttl = 12 * time.Second
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
				i := w.inherit("a", ttl)
				time.Sleep(6 * time.Second) // which only ticks put into the log
				at := time.Now()
				i.check(t, loss{at, c.make(w) + tickInterval(ttl)})
			})
		})
	}
}

// Twenty changes of leader in a row, of every kind: those who renew lose nothing, the dead ones' locks are freed neither
// before their TTL nor later than what the gaps and one tick a change allow, and nobody ever sees an absurd time (B04).
func TestExpiryThroughTwentyLeaderChanges(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint("seed ", seed+1), func(t *testing.T) {
			inVirtualTime(t, pawltest.Options{Seed: seed + 1}, func(t *testing.T, w *world) {
				random := rand.New(rand.NewPCG(seed, 1))
				const shortest = 6 * time.Second
				var live []*holding
				for i := range 10 {
					live = append(live, w.hold(fmt.Sprint("live", i), shortest, 1500*time.Millisecond))
				}
				check := func(*testing.T) {}
				if seed == 0 {
					check = w.watchTimes("live0", 20*time.Millisecond)
				}
				var dying []*inheritance
				var losses []loss
				for n := range fewer(20) {
					dying = append(dying, w.inherit(fmt.Sprint("dead", n), time.Duration(6+random.IntN(20))*time.Second))
					at := time.Now()
					gap := changes[random.IntN(len(changes))].make(w)
					losses = append(losses, loss{at, gap + tickInterval(shortest)})
					time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
				}
				for _, d := range dying {
					d.check(t, losses...)
				}
				for _, h := range live {
					h.checkKept()
				}
				check(t)
			})
		})
	}
}

// watchTimes reads a lock on every node at this pace, and a fifth as often linearizably; the times shown must be possible.
func (w *world) watchTimes(name string, pace time.Duration) (check func(*testing.T)) {
	ctx, cancel := context.WithCancel(w.ctx)
	var watching sync.WaitGroup
	var mu sync.Mutex
	var wrong []string
	reads := 0
	c := w.caller()
	for node := range w.Size() {
		for query, pace := range map[string]time.Duration{"": 5 * pace, "&consistency=stale": pace} {
			watching.Go(func() {
				for ; ctx.Err() == nil; time.Sleep(pace) {
					limited, done := context.WithTimeout(ctx, callLimit)
					a, err := w.Do(limited, c.http, http.MethodGet, w.URL(node)+"/v1/lock?name="+name+query, "")
					done()
					if err != nil {
						continue
					}
					var v struct {
						Holders []struct {
							Held      int64 `json:"held_ms"`
							Remaining int64 `json:"remaining_ms"`
						} `json:"holders"`
					}
					bad := a.Status != http.StatusServiceUnavailable && a.Status != http.StatusOK
					if a.Status == http.StatusOK {
						bad = json.Unmarshal(a.Body, &v) != nil
						for _, h := range v.Holders {
							bad = bad || h.Remaining < 0 || h.Remaining > 6000 || h.Held < 0 || h.Held > 3_600_000
						}
					}
					mu.Lock()
					reads++
					if bad {
						wrong = append(wrong, fmt.Sprintf("%s: %d %s", w.Name(node), a.Status, a.Body))
					}
					mu.Unlock()
				}
			})
		}
	}
	return func(t *testing.T) {
		t.Helper()
		cancel()
		watching.Wait()
		for _, text := range wrong {
			t.Errorf("absurd answer: %s", text)
		}
		t.Logf("%d reads", reads)
	}
}
