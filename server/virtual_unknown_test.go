package server_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server/pawltest"
)

// B11, A16: 200 acquires whose answer is lost, because the leader is cut off up to 50 ms after they were sent. Whatever a
// caller was told, its repeat finds exactly one grant with one token; and what nobody renews is free after its TTL.
func TestUnknownOutcomeIsSettledByTheRepeat(t *testing.T) {
	inVirtualTime(t, pawltest.Options{Seed: 4}, func(t *testing.T, w *world) {
		const each, ttl = 10, 3 * time.Second
		rounds := fewer(20)
		random := rand.New(rand.NewPCG(4, 1))
		var mu sync.Mutex
		told := map[string]int{}
		for round := range rounds {
			leader := w.Leader()
			w.WaitReady()
			cut := time.Duration(random.IntN(50_000)) * time.Microsecond
			var calling sync.WaitGroup
			for i := range each {
				name := fmt.Sprintf("x%d/%d", round, i)
				delay := time.Duration(random.IntN(50_000)) * time.Microsecond
				var s *session
				if i%2 == 0 {
					s = w.session(ttl)
				}
				c := w.caller()
				calling.Go(func() {
					time.Sleep(delay)
					body, header := fmt.Sprintf(`{"name":%q,"owner":"o","ttl_ms":%d}`, name, ttl.Milliseconds()), []string{"Idempotency-Key", name}
					if s != nil {
						body, header = fmt.Sprintf(`{"name":%q,"session":%q,"request":1}`, name, s.id), nil
					}
					ctx, cancel := context.WithTimeout(w.ctx, time.Second)
					a, err := c.once(ctx, leader, "/v1/acquire", body, header...)
					cancel()
					mu.Lock()
					told[fmt.Sprint(a.Status, " ", problemOf(a).Code)]++
					mu.Unlock()
					var first uint64
					if err == nil && a.Status == 200 {
						g, _ := readGrant(a, time.Now())
						first = g.Token
					}
					var tokens []uint64
					for range 2 {
						a, _, err := c.repeat(w.ctx, callLimit, "/v1/acquire", body, header...)
						g, refused := readGrant(a, time.Now())
						if err != nil || refused != nil || !g.Granted {
							t.Errorf("%s: the repeat was told %v %v %+v", name, err, refused, g)
							return
						}
						tokens = append(tokens, g.Token)
					}
					if tokens[0] != tokens[1] || (first != 0 && first != tokens[0]) {
						t.Errorf("%s: first %d, then %d", name, first, tokens)
					}
					repeated := time.Now()
					if _, err := w.mustTrySession(time.Minute).acquire(w.ctx, 1, name, 20*time.Second); err != nil {
						t.Errorf("%s is stuck: %v", name, err)
					}
					if took := time.Since(repeated); took > ttl+5*time.Second {
						t.Errorf("%s was free after %v", name, took)
					}
				})
			}
			time.Sleep(cut)
			w.Network.Isolate(w.Name(leader))
			w.otherLeader(leader)
			w.Network.Rejoin(w.Name(leader))
			calling.Wait()
		}
		t.Log("first answers (status 0: none): ", told)
		w.checkAgreement()
	})
}

// mustTrySession is session for goroutines that are not the test's own.
func (w *world) mustTrySession(ttl time.Duration) *session {
	s, err := w.trySession(ttl)
	if err != nil {
		w.t.Error(err)
		return &session{caller: w.caller()}
	}
	return s
}

// A02: a caller gives up at about the moment of its grant. It has the lock and knows it, or it has neither lock nor place.
func TestCancelAtTheMomentOfGrant(t *testing.T) {
	inVirtualTime(t, pawltest.Options{Seed: 5}, func(t *testing.T, w *world) {
		const lanes = 10
		rounds := fewer(50)
		var mu sync.Mutex
		ends := map[string]int{}
		var running sync.WaitGroup
		for lane := range lanes {
			running.Go(func() {
				random := rand.New(rand.NewPCG(5, uint64(lane)))
				name := fmt.Sprint("lane", lane)
				holder, other := w.mustTrySession(time.Minute), w.mustTrySession(time.Minute)
				c := w.caller()
				for n := range uint64(rounds) {
					if _, err := holder.acquire(w.ctx, n+1, name, 5*time.Second); err != nil {
						t.Errorf("%s, round %d: the lock is not free again: %v", name, n, err)
						return
					}
					hangUp := time.Duration(10_000+random.IntN(20_000)) * time.Microsecond
					let := time.Duration(10_000+random.IntN(20_000)) * time.Microsecond
					numbered := n%2 == 0
					ended := make(chan string, 1)
					go func() {
						if numbered {
							ended <- other.waitAndCancel(n+1, name, hangUp)
						} else {
							ended <- c.waitAndHangUp(w.follower(), name, hangUp)
						}
					}()
					time.Sleep(let)
					if a, err := holder.release(n + 1); err != nil || a.Status != 200 {
						t.Errorf("%s, round %d: %v %s", name, n, err, a.Body)
					}
					end := <-ended
					mu.Lock()
					ends[end]++
					mu.Unlock()
					switch end {
					case "granted and given back", "cancelled", "released", "hung up":
					default:
						t.Errorf("%s, round %d: %s", name, n, end)
					}
					limit := time.Second
					if end == "hung up" {
						// Its grant may have been on the wire when it hung up. Without number or key nobody can take that back:
						// it ends with its TTL.
						limit = time.Second + 2*slack
					}
					if !eventually(limit, func() bool {
						time.Sleep(10 * time.Millisecond)
						v, _, err := w.view(w.follower(), name, "")
						return err == nil && len(v.Holders) == 0 && len(v.Queue) == 0
					}) {
						v, _, err := w.view(w.follower(), name, "")
						t.Errorf("%s, round %d (%s): after its time %+v %v", name, n, end, v, err)
						return
					}
				}
			})
		}
		running.Wait()
		t.Log(ends)
		if len(ends) < 3 {
			t.Error("the race was not run: ", ends)
		}
	})
}

// waitAndCancel waits for a lock and cancels the request after a time, and says what became of it.
func (s *session) waitAndCancel(number uint64, name string, after time.Duration) string {
	ctx, cancel := context.WithTimeout(s.w.ctx, after)
	defer cancel()
	g, err := s.acquire(ctx, number, name, 5*time.Second)
	switch {
	case err == nil && g.Granted:
		if a, err := s.release(number); err != nil || a.Status != 200 {
			return fmt.Sprintf("granted, but the release was told %v %s", err, a.Body)
		}
		return "granted and given back"
	case err != nil && !errors.Is(err, context.DeadlineExceeded):
		return err.Error()
	}
	a, _, err := s.repeat(s.w.ctx, callLimit, "/v1/cancel", fmt.Sprintf(`{"session":%q,"request":%d}`, s.id, number))
	state, _ := a.Field("state").(string)
	if err != nil || a.Status != 200 {
		return fmt.Sprintf("the cancel was told %v %d %s", err, a.Status, a.Body)
	}
	return state
}

// waitAndHangUp waits without number or key, and closes the connection after a time.
func (c *caller) waitAndHangUp(node int, name string, after time.Duration) string {
	ctx, cancel := context.WithTimeout(c.w.ctx, after)
	defer cancel()
	a, err := c.once(ctx, node, "/v1/acquire", fmt.Sprintf(`{"name":%q,"owner":"hasty","wait_ms":5000,"ttl_ms":1000}`, name))
	if err != nil {
		return "hung up"
	}
	g, err := readGrant(a, time.Now())
	if err != nil {
		return err.Error()
	}
	a, _, err = c.repeat(c.w.ctx, callLimit, "/v1/release", fmt.Sprintf(`{"session":%q,"token":%d}`, g.Session, g.Token))
	if err != nil || a.Status != 200 {
		return fmt.Sprintf("granted, but the release was told %v %s", err, a.Body)
	}
	return "granted and given back"
}
