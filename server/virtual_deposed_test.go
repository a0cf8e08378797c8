package server_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server/pawltest"
)

// R3: an entry under another beginning does nothing at all, though it is in the log and committed: neither does its time
// count nor are its commands carried out.
func TestEntryOfAnotherBeginningDoesNothing(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		const ttl = 5 * time.Second
		h := w.hold("a", ttl, ttl/4)
		old := w.Node(w.Leader()).Stamp()
		if old.Begin == 0 {
			t.Fatal("no beginning")
		}
		changes[0].make(w)
		leader := w.Node(w.Leader())
		if now := leader.Stamp(); now.Begin == old.Begin {
			t.Fatal("the beginning is the same")
		}
		before := leader.Clock()
		late := &fsm.Entry{
			Stamp:    fsm.Stamp{Begin: old.Begin, Elapsed: old.Elapsed + 3_600_000},
			Commands: []fsm.Command{&fsm.Acquire{ID: fsm.ID{1}, Owner: "ghost", TTL: 5000, Locks: []fsm.Want{{Name: "b", Mode: fsm.Exclusive}}}},
		}
		result, err := leader.PutEntry(context.Background(), late)
		if err != nil {
			t.Fatal(err)
		}
		if result.Applied || len(result.Outcomes) > 0 || len(result.Events) > 0 {
			t.Errorf("a late entry was applied: %+v", result)
		}
		if clock := leader.Clock(); clock != before {
			t.Errorf("a late entry moved the clock from %d to %d", before, clock)
		}
		if v, _, err := w.view(w.Leader(), "b", ""); err != nil || len(v.Holders) > 0 {
			t.Errorf("a late entry granted: %+v %v", v, err)
		}
		time.Sleep(2 * ttl)
		h.checkKept()
	})
}

// Two beginnings in one leadership: what was stamped under the first is proposed anew under the second, and nobody who
// calls notices. A leader whose beginning no longer counts begins again though nobody asks it for anything; else its clock
// would stand still.
func TestTwoBeginningsInOneLeadership(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		const ttl = 3 * time.Second
		leader := w.Leader()
		i := w.inherit("a", ttl)
		if err := w.Node(leader).PutBegin(context.Background()); err != nil {
			t.Fatal(err)
		}
		i.check(t, loss{time.Now(), 0}, loss{i.died, tickInterval(ttl)})
		if w.Leader() != leader {
			t.Error("another node leads")
		}
		for n := range 20 {
			begun := make(chan error, 1)
			go func() { begun <- w.Node(leader).PutBegin(context.Background()) }()
			w.MustPost(leader, 200, "/v1/acquire", fmt.Sprintf(`{"name":"b%d","owner":"o"}`, n))
			if err := <-begun; err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A leader is cut off with entries on their way; another one leads; then the first is back. What it had in its log
// vanishes or is committed once, and all nodes agree byte for byte (I6).
func TestDeposedLeadersEntriesInFlight(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		const ttl = 4 * time.Second
		h := w.hold("held", ttl, ttl/4)
		for round := range 5 {
			old := w.Leader()
			for i := range w.Size() {
				if i != old {
					w.Network.CutOneWay(w.Name(old), w.Name(i))
				}
			}
			results := make(chan string, 20)
			for n := range cap(results) {
				go func() {
					c := w.caller()
					ctx, cancel := context.WithTimeout(w.ctx, 20*time.Second)
					defer cancel()
					a, err := c.once(ctx, old, "/v1/acquire", fmt.Sprintf(`{"name":"flight%d/%d","owner":"o","ttl_ms":2000}`, round, n))
					results <- fmt.Sprint(a.Status, " ", problemOf(a).Code, " ", err)
				}()
			}
			w.otherLeader(old)
			time.Sleep(time.Second)
			w.Network.HealAll()
			for range cap(results) {
				switch got := <-results; got {
				case "504 unknown_outcome <nil>", "503 no_leader <nil>", "200  <nil>":
				default:
					t.Errorf("a caller of the deposed leader was told %s", got)
				}
			}
			w.WaitReady()
		}
		h.checkKept()
		w.checkAgreement()
	})
}

// checkAgreement checks that all nodes that run get to the same index and have the same state there (I6).
func (w *world) checkAgreement() {
	w.t.Helper()
	first := ""
	w.until(10*time.Second, "all nodes at one index with one state", func() bool {
		var index uint64
		var state []byte
		for i := range w.Size() {
			n := w.Node(i)
			if n == nil {
				continue
			}
			at, bytesAt := n.Snapshot()
			switch {
			case state == nil:
				index, state = at, bytesAt
			case at != index:
				return false
			case !bytes.Equal(state, bytesAt):
				first = fmt.Sprintf("%s has another state at index %d", w.Name(i), at)
				return true
			}
		}
		return true
	})
	if first != "" {
		w.t.Error(first)
	}
}
