package server_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server"
	"github.com/pawl-lock/pawl/server/pawltest"
)

// stopWithin stops a node and checks how long that takes.
func (w *world) stopWithin(node int, limit time.Duration) {
	w.t.Helper()
	began := time.Now()
	w.Stop(node)
	if took := time.Since(began); took > limit {
		w.t.Errorf("%s took %v to stop, allowed are %v", w.Name(node), took, limit)
	}
}

// waiter is a call that waits, and how it ended.
type waiterEnd struct {
	status int
	code   string
	err    error
	after  time.Duration
}

// waitInLine has one caller wait for a lock at a node.
func (w *world) waitInLine(node int, name, key string) <-chan waiterEnd {
	end := make(chan waiterEnd, 1)
	c := w.caller()
	go func() {
		began := time.Now()
		var header []string
		if key != "" {
			header = []string{"Idempotency-Key", key}
		}
		a, err := c.once(w.ctx, node, "/v1/acquire", fmt.Sprintf(`{"name":%q,"owner":%q,"wait_ms":60000,"ttl_ms":10000}`, name, c.host), header...)
		end <- waiterEnd{a.Status, problemOf(a).Code, err, time.Since(began)}
	}()
	return end
}

func (w *world) untilQueued(name string, count int) {
	w.t.Helper()
	w.until(callLimit, fmt.Sprint(count, " in the queue of ", name), func() bool {
		v, _, err := w.view(w.Leader(), name, "")
		return err == nil && len(v.Queue) == count
	})
}

// F03, R14: a leader that stops tells those who can repeat to do so, at once, and their places are kept; the waits of the
// others are taken back; another node leads before it goes silent.
func TestStoppingLeaderLetsItsWaitersGo(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		holder := w.hold("a", 10*time.Second, time.Second)
		leader := w.Leader()
		var keyed, keyless []<-chan waiterEnd
		for i := range 25 {
			keyed = append(keyed, w.waitInLine(leader, "a", fmt.Sprintf("key-%d", i)))
			w.untilQueued("a", 2*i+1)
			keyless = append(keyless, w.waitInLine(leader, "a", ""))
			w.untilQueued("a", 2*i+2)
		}
		gap := w.writeGap()
		began := time.Now()
		w.stopWithin(leader, 10*time.Second)
		for _, end := range keyed {
			if e := <-end; e.err != nil || e.code != "unknown_outcome" {
				t.Errorf("a waiter with a key was told %+v", e)
			}
		}
		for _, end := range keyless {
			if e := <-end; e.err != nil || e.code != "held" {
				t.Errorf("a waiter without a key was told %+v", e)
			}
		}
		t.Logf("stopped after %v", time.Since(began))
		v, _, err := w.view(w.Leader(), "a", "")
		if err != nil || len(v.Queue) != 25 {
			t.Errorf("25 places are kept, and the queue has %d %v", len(v.Queue), err)
		}
		if most := gap(); most > time.Second {
			t.Errorf("nothing could be written for %v", most)
		}
		holder.checkKept()
	})
}

// writeGap writes through a follower's client at 200 a second until the function it returns is called, which tells the
// longest time without a write that was acknowledged. Only answers that say that nothing happened may fail.
func (w *world) writeGap() (longest func() time.Duration) {
	ctx, cancel := context.WithCancel(w.ctx)
	most := make(chan time.Duration, 1)
	s := w.session(30 * time.Second)
	go func() {
		var gap time.Duration
		last := time.Now()
		for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
			if g, err := s.acquire(ctx, s.number.Add(1), fmt.Sprint("write", s.number.Load()), 0); err == nil && g.Granted {
				gap = max(gap, time.Since(last))
				last = time.Now()
			}
		}
		most <- gap
	}()
	return func() time.Duration {
		time.Sleep(time.Second)
		cancel()
		return <-most
	}
}

// A follower that stops has callers whose waiting it only passes on: they get an answer too, not a broken connection.
func TestStoppingFollowerLetsItsWaitersGo(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		holder := w.hold("a", 10*time.Second, time.Second)
		follower := w.follower()
		keyed := w.waitInLine(follower, "a", "k")
		w.untilQueued("a", 1)
		keyless := w.waitInLine(follower, "a", "")
		w.untilQueued("a", 2)
		w.stopWithin(follower, 10*time.Second)
		for name, end := range map[string]<-chan waiterEnd{"keyed": keyed, "keyless": keyless} {
			if e := <-end; e.err != nil || e.code != "unknown_outcome" {
				t.Errorf("the %s waiter was told %+v", name, e)
			}
		}
		w.untilQueued("a", 1) // nobody waits for the caller without a key
		holder.checkKept()
	})
}

// Also without a quorum, with callers that hang, a node is stopped in time, and stopping again changes nothing.
func TestStopWithoutQuorum(t *testing.T) {
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprintf("cut off %v", cut), func(t *testing.T) {
			inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
				w.hold("a", 10*time.Second, time.Second).stop()
				leader := w.Leader()
				var ends []<-chan waiterEnd
				for range 5 {
					ends = append(ends, w.waitInLine(leader, "a", ""))
				}
				w.untilQueued("a", 5)
				for i := range w.Size() {
					switch {
					case i == leader:
					case cut:
						w.Network.Cut(w.Name(i), w.Name(leader))
					default:
						w.Crash(i)
					}
				}
				node := w.Node(leader)
				w.stopWithin(leader, 10*time.Second)
				if err := node.Stop(context.Background()); err != nil {
					t.Error("stopping again:", err)
				}
				for _, end := range ends {
					if e := <-end; e.err != nil || e.code != "unknown_outcome" {
						t.Errorf("a waiter was told %+v", e)
					}
				}
			})
		})
	}
}

func TestStopDuringForming(t *testing.T) {
	inVirtualTimeUnready(t, pawltest.Options{}, func(t *testing.T, w *world) {
		for step := range 20 {
			time.Sleep(time.Duration(step) * 40 * time.Millisecond)
			w.stopWithin(step%3, 10*time.Second)
			w.Start(step % 3)
		}
		w.WaitReady()
	})
}

// In an idle cluster a node that is down is as far in the log as the others: a leader that stops must hand over to one
// that is there.
func TestLeadershipIsHandedToANodeThatAnswers(t *testing.T) {
	for seed := range uint64(3) {
		inVirtualTime(t, pawltest.Options{Nodes: 5, Seed: seed + 1}, func(t *testing.T, w *world) {
			leader := w.Leader()
			for down, i := 0, 0; down < 2; i++ {
				if i != leader {
					w.Network.Isolate(w.Name(i)) // it does not even refuse
					down++
				}
			}
			leads := w.leads()
			old := w.Node(leader)
			var gap time.Duration
			watched := make(chan struct{})
			go func() { // until the next one leads, and no longer: with three of five gone it loses its quorum again
				defer close(watched)
				led := time.Now()
				eventually(5*time.Second, func() bool {
					if leads() {
						led = time.Now()
					}
					gap = max(gap, time.Since(led))
					return !old.Leads() && leads()
				})
			}()
			w.stopWithin(leader, 10*time.Second)
			<-watched
			if gap > 100*time.Millisecond {
				t.Errorf("seed %d: nobody led for %v", seed+1, gap)
			}
		})
	}
}

// leads returns a function that says whether any of the nodes that run now is at work as leader.
func (w *world) leads() func() bool {
	var nodes []*server.Node
	for i := range w.Size() {
		if n := w.Node(i); n != nil {
			nodes = append(nodes, n)
		}
	}
	return func() bool { return slices.ContainsFunc(nodes, (*server.Node).Leads) }
}

func TestStopTwiceAtOnce(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		leader := w.Leader()
		n := w.Node(leader)
		ended := make(chan error, 2)
		for range cap(ended) {
			go func(n *server.Node) { ended <- n.Stop(context.Background()) }(n)
		}
		for range cap(ended) {
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if a, err := w.Get(context.Background(), leader, "/livez"); err == nil && a.Status == http.StatusOK {
				t.Error("Stop has returned, and the node answers")
			}
		}
		w.Stop(leader)
	})
}
