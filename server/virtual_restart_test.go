package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/server/replica"
)

// smallSnapshots has the log cut all the time.
func smallSnapshots(_ int, config *server.Config) {
	config.Snapshots = replica.SnapshotPolicy{Interval: time.Second, Threshold: 100, Trailing: 100}
}

// oddName is one of the oddest names that are accepted.
func oddName(i int) string {
	n := fmt.Sprint(i)
	switch i % 8 {
	case 0:
		return n + strings.Repeat("x", 512-len(n))
	case 1:
		return "schloß/😀/" + n
	case 2:
		return n + strings.Repeat("\U0010FFFF", (512-len(n))/4)
	case 3:
		return "../%2e%2e//" + n
	case 4:
		return " " + n + " "
	case 5:
		return "\u202e" + n + "\u0301"
	case 6:
		return `"\` + n + `'<&>`
	}
	return n
}

// listed is every lock as GET /v1/locks shows it, with its queue, without what time changes.
func (w *world) listed(node int) map[string]string {
	w.t.Helper()
	out := map[string]string{}
	for after := ""; ; {
		var page struct {
			Locks []struct {
				Name    string           `json:"name"`
				Mode    string           `json:"mode"`
				Queue   int              `json:"queue_length"`
				Holders []map[string]any `json:"holders"`
			} `json:"locks"`
			Next string `json:"next"`
		}
		w.MustGet(node, "/v1/locks?limit=500&after="+url.QueryEscape(after)).Into(w.t, &page)
		for _, l := range page.Locks {
			for _, h := range l.Holders {
				delete(h, "held_ms")
				if left := h["remaining_ms"].(float64); left < 0 || left > 24*3600*1000 {
					w.t.Errorf("%q has %v ms remaining", l.Name, left)
				}
				delete(h, "remaining_ms")
			}
			text, _ := json.Marshal(l)
			if l.Queue > 0 {
				v, _, err := w.view(node, url.QueryEscape(l.Name), "")
				if err != nil {
					w.t.Fatal(err)
				}
				text = fmt.Appendf(text, " queue %v", v.Queue)
			}
			out[l.Name] = string(text)
		}
		if after = page.Next; after == "" {
			return out
		}
	}
}

// B07: two thousand locks with the oddest names, owners and TTLs, with queues, survive the crash and the stop of all nodes at
// once, out of snapshots and the log.
func TestEverythingSurvivesARestartOfAllNodes(t *testing.T) {
	inVirtualTime(t, pawltest.Options{Configure: smallSnapshots}, func(t *testing.T, w *world) {
		const locks, lanes = 2000, 20
		var making sync.WaitGroup
		for lane := range lanes {
			making.Go(func() {
				c := w.caller()
				for i := lane; i < locks; i += lanes {
					name, _ := json.Marshal(oddName(i))
					owner, _ := json.Marshal(strings.Repeat("ö", 1+i%128))
					// The shortest that lives through this test, and the longest.
					ttl := []int64{60_000, 86_400_000}[i%2]
					body := fmt.Sprintf(`{"name":%s,"owner":%s,"ttl_ms":%d}`, name, owner, ttl)
					a, _, err := c.repeat(w.ctx, callLimit, "/v1/acquire", body, "Idempotency-Key", fmt.Sprint("k", i))
					if err != nil || a.Status != 200 {
						t.Errorf("lock %d: %v %d %s", i, err, a.Status, a.Body)
					}
				}
			})
		}
		making.Wait()
		waiters := w.session(24 * time.Hour)
		second := w.session(24 * time.Hour)
		for i := range 20 {
			for _, s := range []*session{waiters, second} {
				body := fmt.Sprintf(`{"name":%q,"session":%q,"request":%d,"wait_ms":300000}`, fmt.Sprint(8*i+7), s.id, i+1)
				ctx, cancel := context.WithTimeout(w.ctx, 100*time.Millisecond)
				_, _ = s.once(ctx, 0, "/v1/acquire", body) // its place is kept when its caller goes
				cancel()
			}
		}
		time.Sleep(3 * time.Second)
		before := w.listed(w.Leader())
		if len(before) != locks {
			t.Fatalf("%d locks are listed, %d were made", len(before), locks)
		}
		queues := 0
		for _, text := range before {
			if strings.Contains(text, " queue ") {
				queues++
			}
		}
		if queues != 20 {
			t.Fatalf("%d locks have queues, 20 were given one", queues)
		}
		for i, crash := range []bool{true, false} {
			for node := range w.Size() {
				if crash {
					w.Crash(node)
				} else {
					w.Stop(node)
				}
			}
			time.Sleep(5 * time.Second)
			for node := range w.Size() {
				w.Start(node)
			}
			w.WaitReady()
			after := w.listed(w.Leader())
			for name, was := range before {
				if after[name] != was {
					t.Fatalf("restart %d: %.40q was %s and is %s", i+1, name, was, after[name])
				}
			}
			if !maps.Equal(before, after) {
				t.Fatalf("restart %d: %d locks were listed, now %d", i+1, len(before), len(after))
			}
		}
		w.checkAgreement()
	})
}

// A node that was down while the others cut their logs catches up from a snapshot, and its waiters' grants come through.
func TestNodeBehindTheLogCatchesUp(t *testing.T) {
	inVirtualTime(t, pawltest.Options{Configure: smallSnapshots}, func(t *testing.T, w *world) {
		holder := w.hold("a", 10*time.Second, time.Second)
		behind := w.follower()
		w.Network.Isolate(w.Name(behind))
		s := w.session(time.Minute)
		for n := range uint64(600) {
			name := fmt.Sprint("n", n%7)
			if _, err := s.acquire(w.ctx, n+1, name, 0); err != nil {
				t.Fatal(err)
			}
			if a, err := s.release(n + 1); err != nil || a.Status != 200 {
				t.Fatal(err, a.Status)
			}
		}
		for i := range w.Size() {
			if i != behind {
				if err := w.Node(i).CutSnapshot(w.ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.Network.Rejoin(w.Name(behind))
		w.WaitReady()
		w.checkAgreement()
		holder.checkKept()
	})
}

// members are the voters by name, with their incarnations, as a node knows them.
func (w *world) members(node int) map[string]string {
	out := map[string]string{}
	for _, id := range w.Node(node).Voters() {
		name, incarnation, _ := strings.Cut(id, ".")
		out[name] = incarnation
	}
	return out
}

// A node that lost its data comes back as a newcomer in the place of its former self: without a vote until it has caught
// up, and then the cluster lives through the loss of another node. It was the forming node, which must not form a second cluster.
func TestWipedNodeTakesItsPlaceAgain(t *testing.T) {
	for _, wiped := range []int{0, 2} { // the node that formed the cluster, and another
		t.Run(fmt.Sprintf("n%d", wiped+1), func(t *testing.T) {
			inVirtualTime(t, pawltest.Options{Configure: smallSnapshots}, func(t *testing.T, w *world) {
				holder := w.hold("a", 10*time.Second, time.Second)
				cluster := w.MustGet(0, "/livez").Header.Get("Pawl-Cluster")
				before := w.members(1)
				w.Crash(wiped)
				w.Wipe(wiped)
				w.Start(wiped)
				if err := w.Node(wiped).Ready(w.ctx); err != nil {
					t.Fatal(err)
				}
				after := w.members(1)
				if len(after) != 3 || after[w.Name(wiped)] == before[w.Name(wiped)] {
					t.Fatalf("the voters were %v and are %v", before, after)
				}
				if now := w.MustGet(wiped, "/livez").Header.Get("Pawl-Cluster"); now != cluster || cluster == "" {
					t.Errorf("the wiped node is of cluster %q, it was %q", now, cluster)
				}
				other := (wiped + 1) % 3
				w.Crash(other)
				w.session(time.Minute).mustHold("b")
				w.Start(other)
				w.WaitReady()
				holder.checkKept()
				w.checkAgreement()
			})
		})
	}
}

// Without the majority of the former members a wiped node is nobody: it has no vote, so what a lost node has acknowledged
// cannot be voted away.
func TestWipedNodeCannotVote(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		w.hold("a", time.Minute, time.Second).stop()
		leader := w.Leader()
		follower := w.follower()
		other := 3 - leader - follower
		w.Crash(leader)
		w.Crash(other)
		w.Wipe(other)
		w.Start(other)
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if w.Node(follower).Leads() || w.Node(other).Leads() {
				t.Fatal("a leader was elected with the vote of a node that lost its data")
			}
		}
		w.Start(leader)
		w.WaitReady()
		w.checkAgreement()
	})
}

// Two of three wiped: the third alone cannot go on, and the two do not form a new cluster beside it.
func TestWipedMajorityFormsNoSecondCluster(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		w.hold("a", time.Minute, time.Second).stop()
		for _, i := range []int{0, 1} {
			w.Crash(i)
			w.Wipe(i)
		}
		for _, i := range []int{0, 1} {
			w.Start(i)
		}
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			for i := range w.Size() {
				if w.Node(i).Leads() {
					t.Fatalf("%s leads", w.Name(i))
				}
			}
		}
	})
}
