package process

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/jepsen/cluster"
	"github.com/pawl-lock/pawl/transport"
)

// TestMain runs the tests inside namespaces of their own. Where that cannot be they are skipped, or fail when PAWL_CI says
// that nothing may be skipped. A client of the tests is this program, too.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "be-a-client" {
		beClient()
		return
	}
	if len(os.Args) > 2 && os.Args[1] == "be-a-holder" {
		if err := beHolder(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	if testing.Short() { // real processes take seconds
		os.Exit(m.Run())
	}
	var remove func()
	if !Isolated() {
		remove = build()
	}
	code, isolated, err := Isolate()
	if remove != nil {
		remove()
	}
	switch {
	case isolated && err == nil:
		code = m.Run()
	case err != nil:
		fmt.Fprintln(os.Stderr, "no cluster of processes on this machine:", err)
		if os.Getenv("PAWL_CI") == "1" {
			code = 1
		}
	}
	os.Exit(code)
}

// beClient prints the time every 10 ms until its input ends.
func beClient() {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var b [100]byte
		for {
			if _, err := os.Stdin.Read(b[:]); err != nil {
				return
			}
		}
	}()
	for {
		fmt.Println(int64(client.Now()))
		select {
		case <-ended:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// world is a cluster for one test, with all three nodes ready.
type world struct {
	*Cluster
	t *testing.T
}

func newWorld(t *testing.T, nodes, clients int) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("real processes take seconds: skipped by -short")
	}
	c, err := New(Options{Nodes: nodes, Clients: clients, Pawl: os.Getenv(program), Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{c, t}
	t.Cleanup(func() {
		if t.Failed() {
			for name, log := range c.Logs() {
				t.Logf("%s: %.3000s", name, log[max(0, len(log)-3000):])
			}
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	w.ready()
	return w
}

// program is the variable that names the program that nodes run.
const program = "PAWL_JEPSEN_TEST_PROGRAM"

// build builds it, where there is a network.
func build() (remove func()) {
	dir, err := os.MkdirTemp("", "pawl-jepsen-test")
	if err != nil {
		panic(err)
	}
	path := filepath.Join(dir, "pawl")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", path, "github.com/pawl-lock/pawl/cmd/pawl").CombinedOutput(); err != nil {
		panic(fmt.Sprintf("building pawl: %v\n%s", err, out))
	}
	if err := os.Setenv(program, path); err != nil {
		panic(err)
	}
	return func() { _ = os.RemoveAll(dir) }
}

// do is for faults that must succeed.
func (w *world) do(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) within(limit time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	w.t.Cleanup(cancel)
	return ctx
}

func (w *world) ready() {
	w.t.Helper()
	w.do(w.Ready(w.within(60 * time.Second)))
}

// acquire tries to take a free lock from client 0, through one node.
func (w *world) acquire(through int, name string, limit time.Duration) error {
	at := w.Client(0)
	c, err := client.New(at.Endpoints[through:through+1], client.WithHTTPClient(at.HTTP))
	if err != nil {
		return err
	}
	_, err = c.Calls().Acquire(w.within(limit), transport.AcquireRequest{Name: name, Owner: "o", TTLMS: 60_000}, "")
	return err
}

// eventually waits until something is so.
func (w *world) eventually(what string, limit time.Duration, so func() bool) {
	w.t.Helper()
	for ctx := w.within(limit); !so(); {
		if w.Sleep(ctx, 20*time.Millisecond) != nil {
			w.t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// leader waits for one.
func (w *world) leader() (leader int) {
	w.t.Helper()
	w.eventually("a leader", 20*time.Second, func() bool { leader = w.Leader(); return leader >= 0 })
	return leader
}

// otherLeader waits for one that is not this node.
func (w *world) otherLeader(old int) {
	w.t.Helper()
	w.eventually("another leader", 20*time.Second, func() bool { l := w.Leader(); return l >= 0 && l != old })
}

func TestNodesAreKilledStoppedAndWiped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, 1)
	leader := w.leader()
	w.do(w.Kill(leader))
	if w.Runs(leader) || !errors.Is(w.Kill(leader), errNotRunning) {
		t.Error("a node that was killed runs")
	}
	w.otherLeader(leader)
	w.do(w.acquire((leader+1)%3, "a", 10*time.Second))
	w.do(w.Start(leader))
	w.do(w.Start(leader)) // a node that runs is left alone
	w.ready()
	victim := (leader + 1) % 3
	w.do(w.Stop(victim))
	if !errors.Is(w.Wipe(leader), errRunning) {
		t.Error("the data of a node that runs can be wiped")
	}
	w.do(w.Wipe(victim))
	w.do(w.Start(victim))
	w.ready() // with a vote of its new incarnation
	w.eventually("equal states", 20*time.Second, func() bool {
		index, digest, err := w.Digest(t.Context(), 0)
		for i := 1; i < 3 && err == nil; i++ {
			other, same, otherErr := w.Digest(t.Context(), i)
			if err = otherErr; other == index && same != digest {
				t.Fatalf("at index %d n1 and n%d have different states", index, i+1)
			}
			if other != index {
				return false
			}
		}
		return err == nil
	})
	if log := w.Logs()[w.nodes[victim].name]; strings.Count(log, "--- harness: starting") != 2 || !strings.Contains(log, "ended: exit status 0") {
		t.Errorf("the log does not tell of two lives and an orderly end: %s", log)
	}
}

func TestACutLeaderIsDeposedAndNobodyIsTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, 1)
	leader := w.leader()
	for i := range 3 {
		if i != leader {
			w.do(errors.Join(w.Cut(leader, i), w.Cut(i, leader)))
		}
	}
	w.otherLeader(leader)
	w.do(w.Heal())
	w.ready()
	// A client that is cut off waits: no reset, no refusal.
	w.do(w.acquire(0, "before", 10*time.Second))
	for i := range 3 {
		w.do(w.Cut(3, i))
	}
	began := time.Now()
	if err := w.acquire(0, "during", time.Second); err == nil || time.Since(began) < 900*time.Millisecond {
		t.Errorf("a cut client got %v after %v", err, time.Since(began))
	}
	w.do(w.Heal())
	w.do(w.acquire(0, "after", 20*time.Second))
}

func TestOneWayCutsAndDelays(t *testing.T) {
	w := newWorld(t, 3, 1)
	took := func() time.Duration {
		began := time.Now()
		if err := w.acquire(1, fmt.Sprint(began.UnixNano()), 10*time.Second); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	took() // connects
	before := took()
	w.do(w.Delay(3, 1, 300*time.Millisecond, 50*time.Millisecond))
	w.do(w.Delay(1, 3, 300*time.Millisecond, 50*time.Millisecond))
	if d := took(); d < before+450*time.Millisecond { // at least there and back: a new connection takes more
		t.Errorf("with 300 ms ± 50 ms on both ways a call took %v, without %v", d, before)
	}
	w.do(w.Heal())
	took()
	if d := took(); d > 400*time.Millisecond {
		t.Errorf("healed, a call took %v", d)
	}
	// What comes from the leader is lost, what goes to it arrives.
	leader := w.leader()
	for i := range 3 {
		if i != leader {
			w.do(w.Cut(leader, i))
		}
	}
	w.otherLeader(leader)
	w.do(w.Heal())
	w.ready()
}

func TestLostPackets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, 1)
	var there net.PacketConn
	w.do(w.hosts[1].inside(func() (err error) {
		there, err = net.ListenPacket("udp", w.hosts[1].address+":0")
		return err
	}))
	defer there.Close()
	from, err := w.hosts[3].dial(t.Context(), "udp", there.LocalAddr().String())
	w.do(err)
	defer from.Close()
	const packets = 200 // a socket's buffer has room for them
	arrived := func() (which []byte) {
		for i := range packets {
			_, err := from.Write([]byte{byte(i)})
			w.do(err)
		}
		for b := []byte{0}; ; which = append(which, b[0]) {
			w.do(there.SetReadDeadline(time.Now().Add(300 * time.Millisecond)))
			if _, _, err := there.ReadFrom(b); err != nil {
				return which
			}
		}
	}
	lossy := func(seed uint64) []byte {
		w.do(w.Lose(3, 1, 0.2, seed))
		which := arrived()
		w.do(w.acquire(1, fmt.Sprint(time.Now().UnixNano()), 20*time.Second)) // sent again until it is there
		w.do(w.Heal())
		return which
	}
	one, again, other := lossy(1), lossy(1), lossy(2)
	if lost := packets - len(one); lost < packets/10 || lost > packets*3/10 {
		t.Errorf("of %d packets a fifth was to be lost, and %d were", packets, lost)
	}
	if !slices.Equal(one, again) || slices.Equal(one, other) {
		t.Errorf("which packets are lost does not come from the seed: %d, %d and %d arrived", len(one), len(again), len(other))
	}
	if n := len(arrived()); n != packets {
		t.Errorf("healed, %d of %d packets arrived", n, packets)
	}
}

func TestPausedNodesAndClients(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, 1)
	leader := w.leader()
	w.do(w.Pause(leader))
	w.otherLeader(leader)
	w.do(w.Resume(leader))
	w.ready()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Spawn(ctx, 0, []string{"be-a-client"}, []byte("work\n")) }()
	log := filepath.Join(w.options.Dir, "client0.log")
	lines := func() []string {
		b, _ := os.ReadFile(log)
		return strings.Split(strings.TrimSpace(string(b)), "\n")
	}
	w.eventually("a client that works", 10*time.Second, func() bool { return len(lines()) > 10 })
	w.do(w.PauseClient(0))
	pausedAt := client.Now()
	w.do(w.Sleep(t.Context(), time.Second))
	w.do(w.ResumeClient(0))
	resumedAt := client.Now()
	w.eventually("a client that works again", 10*time.Second, func() bool {
		var last int64
		all := lines()
		return json.Unmarshal([]byte(all[len(all)-1]), &last) == nil && last > int64(resumedAt)
	})
	stop()
	w.do(<-ended)
	for _, line := range lines() {
		var at int64
		if json.Unmarshal([]byte(line), &at) == nil && at > int64(pausedAt+50*time.Millisecond) && at < int64(resumedAt-50*time.Millisecond) {
			t.Errorf("a paused client worked %v after its pause", time.Duration(at)-pausedAt)
		}
	}
	if err := w.PauseClient(0); !errors.Is(err, errNotRunning) {
		t.Errorf("pausing a client that has ended: %v", err)
	}
}

func TestDisks(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		if os.Getenv("PAWL_CI") == "1" {
			t.Fatal("strace is missing")
		}
		t.Skip("needs strace")
	}
	w := newWorld(t, 3, 1)
	took := func() time.Duration {
		began := time.Now()
		if err := w.acquire(w.leader(), fmt.Sprint(began.UnixNano()), 10*time.Second); err != nil {
			t.Logf("%v after %v", err, time.Since(began))
		}
		return time.Since(began)
	}
	took()
	for i := range 3 {
		w.do(w.Disk(i, cluster.DiskSlow, 100*time.Millisecond))
	}
	if d := took(); d < 100*time.Millisecond {
		t.Errorf("with 100 ms for an fsync a write took %v", d)
	}
	for i := range 3 {
		w.do(w.Disk(i, cluster.DiskFine, 0))
	}
	w.ready()
	// The leader hangs: another one takes over. Afterwards it serves, or it has ended itself.
	leader := w.leader()
	w.do(w.Disk(leader, cluster.DiskHangs, 0))
	w.otherLeader(leader)
	w.do(w.Disk(leader, cluster.DiskFine, 0))
	w.do(w.Start(leader))
	w.ready()
	for _, bad := range []cluster.Disk{cluster.DiskFails, cluster.DiskFull} {
		leader = w.leader()
		w.do(w.Disk(leader, bad, 0))
		for i := 0; w.Runs(leader) && i < 200; i++ { // a full disk has room in files that are there
			_ = w.acquire((leader+1)%3, fmt.Sprint(bad, i), 5*time.Second)
		}
		if w.Runs(leader) {
			t.Errorf("disk %d did not end the leader", bad)
		}
		w.do(w.Disk(leader, cluster.DiskFine, 0))
		w.do(w.Start(leader))
		w.ready()
	}
}
