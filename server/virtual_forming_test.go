package server_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/server/replica"
	"github.com/pawl-lock/pawl/transport"
)

// quiet checks that for a minute no node that runs is at work as leader.
func (w *world) quiet(why string) {
	w.t.Helper()
	leads := w.leads()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if leads() {
			w.t.Fatal("there is a leader, although ", why)
		}
	}
}

// oneCluster checks that all nodes are ready and of one cluster, and returns its id.
func (w *world) oneCluster() string {
	w.t.Helper()
	w.WaitReady()
	first := w.MustGet(0, "/livez").Header.Get("Pawl-Cluster")
	for i := range w.Size() {
		if id := w.MustGet(i, "/livez").Header.Get("Pawl-Cluster"); id != first || id == "" {
			w.t.Errorf("%s is of cluster %q, %s of %q", w.Name(i), id, w.Name(0), first)
		}
	}
	if members := w.members(0); len(members) != w.Size() {
		w.t.Errorf("the members are %v", members)
	}
	w.session(time.Minute).mustHold(fmt.Sprint("formed", time.Now().UnixNano()))
	return first
}

// A cluster is formed when all of its list have promised, not by a majority: with one or two missing nobody leads.
func TestFormingWaitsForAll(t *testing.T) {
	inVirtualTimeUnready(t, pawltest.Options{}, func(t *testing.T, w *world) {
		w.Crash(1)
		w.Crash(2)
		w.quiet("two nodes have never been there")
		w.Start(1)
		w.quiet("one node has never been there")
		w.Start(2)
		w.oneCluster()
	})
}

// The forming node crashes after each part of a millisecond of forming, is cut off, or loses its peers; it goes on from its
// record, and there is one cluster.
func TestFormingGoesOnAfterACrashAtAnyPoint(t *testing.T) {
	for step := range 12 {
		inVirtualTimeUnready(t, pawltest.Options{Seed: uint64(step + 1)}, func(t *testing.T, w *world) {
			time.Sleep(time.Duration(step) * 300 * time.Microsecond)
			w.Crash(step % 3)
			time.Sleep(time.Second)
			w.Start(step % 3)
			first := w.oneCluster()
			for i := range w.Size() {
				w.Crash(i)
			}
			for i := range w.Size() {
				w.Start(i)
			}
			if again := w.oneCluster(); again != first {
				t.Errorf("step %d: cluster %s became %s", step, first, again)
			}
		})
	}
}

// Nodes that were not started with the same list do not form a cluster, and say why.
func TestDifferentListsFormNothing(t *testing.T) {
	other := false
	configure := func(i int, config *server.Config) {
		if i == 2 && !other {
			config.Peers = append(config.Peers, server.Peer{Name: "n4", Address: "n4:7800"})
		}
	}
	inVirtualTimeUnready(t, pawltest.Options{Configure: configure}, func(t *testing.T, w *world) {
		w.quiet("the third node was started with another list")
		w.Stop(2)
		other = true
		w.Start(2)
		w.oneCluster()
	})
}

// The forming node was lost after it had been promised to. Nobody forms a second cluster until the promises are forgotten
// by hand.
func TestPromiseBindsUntilItIsForgotten(t *testing.T) {
	inVirtualTimeUnready(t, pawltest.Options{}, func(t *testing.T, w *world) {
		w.Crash(2) // so that forming stops half-way
		time.Sleep(2 * time.Second)
		w.Crash(0)
		w.Wipe(0)
		w.Start(0)
		w.Start(2)
		w.quiet("n2 has promised to form another cluster")
		if err := server.ForgetPromise(w.Dir(2), w.Name(2)); err == nil {
			t.Error("n3 has promised nothing that could be forgotten")
		}
		if err := server.ForgetPromise(w.Dir(1), w.Name(1)); !errors.Is(err, replica.ErrInUse) {
			t.Errorf("the promise of a node that runs: %v", err)
		}
		w.Stop(1)
		if err := server.ForgetPromise(w.Dir(1), w.Name(1)); err != nil {
			t.Fatal(err)
		}
		w.Start(1)
		w.until(30*time.Second, "an entry in the log of n2", func() bool { return w.Node(1).LastIndex() > 0 })
		w.Crash(1) // before it has written down whose it is
		if err := server.ForgetPromise(w.Dir(1), w.Name(1)); err == nil {
			t.Error("a member could forget its promise")
		}
		w.Start(1)
		w.oneCluster()
	})
}

// A second process with the name and list of a member, at another address, gets nothing and takes nothing.
func TestNameInUseIsRefused(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		before := w.members(0)
		config := server.Config{
			Name: "n2", DataDir: w.Dir(1) + "-twin", APIListen: "twin:7700", PeerListen: "twin:7800", Insecure: true,
			Network: w.Network.Host("twin"),
		}
		for i := range w.Size() {
			config.Peers = append(config.Peers, server.Peer{Name: w.Name(i), Address: w.Name(i) + ":7800"})
		}
		twin, err := server.Start(config)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if len(twin.Voters()) > 0 || twin.Leads() {
			t.Errorf("the twin knows the voters %v", twin.Voters())
		}
		if err := twin.Stop(w.ctx); err != nil {
			t.Error(err)
		}
		if after := w.members(0); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("the members were %v and are %v", before, after)
		}
		w.oneCluster()
	})
}

// C08 a: a node that was cut off for a minute comes back without an election.
func TestIsolatedNodeDisturbsNobodyWhenItComesBack(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		leader, isolated := w.Leader(), w.follower()
		term := w.Node(leader).Term()
		w.Network.Isolate(w.Name(isolated))
		time.Sleep(time.Minute)
		gap := w.writeGap()
		w.Network.Rejoin(w.Name(isolated))
		w.WaitNodeReady(isolated)
		time.Sleep(3 * time.Second)
		if most := gap(); most > 500*time.Millisecond {
			t.Errorf("nothing could be written for %v", most)
		}
		if now := w.Node(leader).Term(); now != term || w.Leader() != leader {
			t.Errorf("the term was %d and is %d, the leader n%d and n%d", term, now, leader+1, w.Leader()+1)
		}
	})
}

// C08 b: a node that was removed while it was cut off does not know it. It disturbs nobody, and is not ready.
func TestRemovedNodeDisturbsNobodyWhenItComesBack(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		leader, removed := w.Leader(), w.follower()
		w.Network.Isolate(w.Name(removed))
		time.Sleep(5 * time.Second)
		w.MustPost(leader, http.StatusOK, "/v1/cluster/remove", fmt.Sprintf(`{"name":%q}`, w.Name(removed)))
		term := w.Node(leader).Term()
		w.Network.Rejoin(w.Name(removed))
		gap := w.writeGap()
		time.Sleep(5 * time.Second)
		if most := gap(); most > 500*time.Millisecond {
			t.Errorf("nothing could be written for %v", most)
		}
		time.Sleep(time.Minute)
		if now := w.Node(leader).Term(); now != term || w.Leader() != leader {
			t.Errorf("the term was %d and is %d, the leader n%d and n%d", term, now, leader+1, w.Leader()+1)
		}
		a, err := w.Get(w.ctx, removed, "/readyz")
		if err != nil || a.Status != http.StatusServiceUnavailable {
			t.Errorf("the removed node says %v %d %s", err, a.Status, a.Body)
		}
		reason, _ := a.Field("reason").(string)
		t.Logf("the removed node says: %s", reason)
		if !strings.Contains(reason, "removed") && !strings.Contains(reason, "no leader") {
			t.Errorf("the removed node's reason is %q", reason)
		}
		for node := range w.Size() {
			if node == removed {
				continue
			}
			if m := w.members(node); len(m) != 2 {
				t.Errorf("%s knows the voters %v", w.Name(node), m)
			}
		}
	})
}

// The leader is removed: it hands over first, and writes go on.
func TestLeaderIsRemoved(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		holder := w.hold("a", 10*time.Second, time.Second)
		leader := w.Leader()
		gap := w.writeGap()
		w.MustPost(leader, http.StatusOK, "/v1/cluster/remove", fmt.Sprintf(`{"name":%q}`, w.Name(leader)))
		if most := gap(); most > time.Second {
			t.Errorf("nothing could be written for %v", most)
		}
		if m := w.members(w.otherLeader(leader)); len(m) != 2 {
			t.Errorf("the voters are %v", m)
		}
		holder.checkKept()
	})
}

// Two of five nodes lose their data and find each other first: one promises the other to form a new cluster. When the three
// that have the old one come back, both give that up and take their places again.
func TestPromiseToAnAbandonedClusterIsGivenUp(t *testing.T) {
	inVirtualTime(t, pawltest.Options{Nodes: 5}, func(t *testing.T, w *world) {
		token := w.session(time.Hour).mustHold("kept").Token
		for i := range w.Size() {
			w.Crash(i)
		}
		w.Wipe(0)
		w.Wipe(1)
		w.Start(1)
		w.Start(0)
		time.Sleep(10 * time.Second)
		for i := 2; i < w.Size(); i++ {
			w.Start(i)
		}
		began := time.Now()
		w.WaitReady()
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("all are ready after %v", took)
		}
		for i := range w.Size() {
			var now transport.LockResponse
			w.MustGet(i, "/v1/lock?name=kept").Into(t, &now)
			if len(now.Holders) != 1 || uint64(now.Holders[0].Token) != token {
				t.Errorf("%s: %+v, want token %d", w.Name(i), now, token)
			}
		}
	})
}
