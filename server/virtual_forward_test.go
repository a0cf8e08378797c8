package server_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server/pawltest"
)

// D01: a follower takes another follower for the leader. What it passes on is answered there and goes no further, in less
// than 2 s; when the node that was taken for the leader gets to lead meanwhile, it is carried out.
func TestWhatIsPassedOnGoesNoFurther(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		leader := w.Leader()
		first, second := w.Node((leader+1)%3), w.Node((leader+2)%3)
		before := w.Node(leader).LastIndex()
		for _, pair := range [][2]int{{1, 2}, {2, 1}} {
			from, to := w.Node((leader+pair[0])%3), w.Node((leader+pair[1])%3)
			began := time.Now()
			status, code, err := from.PostForwarded(w.ctx, to, "/v1/acquire", `{"name":"a","owner":"o"}`)
			if err != nil || status != http.StatusServiceUnavailable || code != "no_leader" {
				t.Errorf("%d %s %v", status, code, err)
			}
			if took := time.Since(began); took > 2*time.Second {
				t.Errorf("answered after %v", took)
			}
		}
		if now := w.Node(leader).LastIndex(); now != before {
			t.Errorf("%d entries were written", now-before)
		}
		next := w.Name((leader + 2) % 3)
		go func() {
			time.Sleep(500 * time.Millisecond)
			_, _ = w.Post(w.ctx, leader, "/v1/cluster/transfer", fmt.Sprintf(`{"to":%q}`, next))
		}()
		if status, code, err := first.PostForwarded(w.ctx, second, "/v1/acquire", `{"name":"a","owner":"o"}`); err != nil || status != http.StatusOK {
			t.Errorf("%d %s %v", status, code, err)
		}
	})
}

// A change was passed on to a leader that has just been cut off. Who asked is told that nobody knows as soon as another leads,
// not only when the connection is known to be dead, and a repeat settles it.
func TestChangeAtAVanishedLeaderIsGivenUp(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		for round := range 8 {
			leader := w.Leader()
			w.WaitReady()
			c, key := w.caller(), fmt.Sprint("key", round)
			body := fmt.Sprintf(`{"name":"a%d","owner":"o","ttl_ms":60000}`, round)
			w.Network.Isolate(w.Name(leader))
			time.Sleep(time.Duration(round*20) * time.Millisecond)
			began := time.Now()
			a, err := c.once(w.ctx, (leader+1)%3, "/v1/acquire", body, "Idempotency-Key", key)
			if err != nil || problemOf(a).Code != "unknown_outcome" {
				t.Errorf("%v %d %s", err, a.Status, a.Body)
			}
			if took := time.Since(began); took > 3*time.Second {
				t.Errorf("answered after %v", took)
			}
			if a, _, err := c.repeat(w.ctx, callLimit, "/v1/acquire", body, "Idempotency-Key", key); err != nil || a.Status != 200 {
				t.Errorf("the repeat: %v %d %s", err, a.Status, a.Body)
			}
			w.Network.HealAll()
		}
	})
}

// D01: the leader has vanished, or there is none at all. Reads and changes at a follower get an answer, and a change that was
// on its way is not called undone.
func TestVanishedLeaderIsNotWaitedFor(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		for round := range 8 {
			leader := w.Leader()
			w.WaitReady()
			w.Network.Isolate(w.Name(leader))
			time.Sleep(time.Duration(round*100) * time.Millisecond)
			for _, node := range []int{(leader + 1) % 3, (leader + 2) % 3} {
				began := time.Now()
				a, err := w.Get(w.ctx, node, "/v1/lock?name=a")
				if err != nil || (a.Status != 200 && (problemOf(a).Code != "no_leader" || a.Header.Get("Retry-After") == "")) {
					t.Errorf("a read: %v %d %s", err, a.Status, a.Body)
				}
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("a read was answered after %v", took)
				}
			}
			w.Network.HealAll()
		}
		for i := range w.Size() {
			for j := range i {
				w.Network.Cut(w.Name(i), w.Name(j))
			}
		}
		time.Sleep(2 * time.Second)
		for node := range w.Size() {
			for path, body := range map[string]string{"/v1/acquire": `{"name":"a","owner":"o"}`, "/v1/session": `{"owner":"o"}`} {
				began := time.Now()
				ctx, cancel := context.WithTimeout(w.ctx, callLimit)
				a, err := w.Post(ctx, node, path, body)
				cancel()
				if err != nil || problemOf(a).Code != "no_leader" || a.Header.Get("Retry-After") == "" || time.Since(began) > 2*time.Second {
					t.Errorf("%s at %s: %v %d %s after %v", path, w.Name(node), err, a.Status, a.Body, time.Since(began))
				}
			}
		}
	})
}
