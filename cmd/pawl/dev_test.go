package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

// What a newcomer does, over real processes: start, lock, look, wait, release, stop, and find the locks again.
func TestDev(t *testing.T) {
	const nodes = 3
	data, base := t.TempDir(), devPorts(t, 6) // five nodes, and three one port further on, are tried too
	all := endpointsFlag(base, nodes)
	second := fmt.Sprintf("--endpoints=http://%s", loopbackAddress(base+1))
	third := fmt.Sprintf("--endpoints=http://%s", loopbackAddress(base+2))
	arguments := []string{"dev", "--data", data, "--port", strconv.Itoa(base)}

	dev := startPawl(t, nil, arguments...)
	if line := dev.await(t, "ready"); !strings.Contains(line, "3 nodes are ready after") {
		t.Errorf("said %q", line)
	}
	if line := dev.await(t, "curl"); !strings.Contains(line, fmt.Sprintf("http://127.0.0.1:%d/v1/acquire", base)) {
		t.Errorf("the curl line is %q", line)
	}

	// Through one node it is granted, through another it is held.
	held := answered[transport.AcquireResponse](t, "acquire", "nightly-report", "--owner", "ann", "--ttl", "1h", second)
	if !held.Granted || held.Token == 0 {
		t.Fatalf("got %+v", held)
	}
	refused := pawl(t.Context(), "acquire", "nightly-report", third)
	if refused.code != exitNotGranted || !strings.Contains(refused.stderr, "held by ann (token "+held.Token.String()) || refused.stdout != "" {
		t.Errorf("a held lock: %+v", refused)
	}
	for command, want := range map[string]string{
		"locks":               "nightly-report  exclusive  ann",
		"lock nightly-report": "nightly-report: exclusive",
		"lock other":          "other: free",
		"sessions":            "ann",
		"cluster":             "Needs 2 of 3 voters, survives the loss of 1 more node",
		"health":              "ok",
		"health --ready":      "ok",
		"transfer n2":         "n2 leads",
	} {
		if out := must(t, append(strings.Fields(command), third)...); !strings.Contains(out, want) {
			t.Errorf("pawl %s wrote %q, want %q in it", command, out, want)
		}
	}

	// A waiting acquire is granted the moment the holder releases, with a higher token.
	waiting := make(chan result, 1)
	go func() {
		waiting <- pawl(t.Context(), "acquire", "nightly-report", "--owner", "ben", "--wait", "30s", "--ttl", "1h", third)
	}()
	awaitQueue(t, "nightly-report", 1, all)
	must(t, "release", "--session", held.Session, "--token", held.Token.String(), second)
	granted := <-waiting
	if granted.code != exitOK || !strings.Contains(granted.stdout, "nightly-report") {
		t.Fatalf("the waiting acquire: %+v", granted)
	}
	next := answered[transport.LockResponse](t, "lock", "nightly-report", all)
	if len(next.Holders) != 1 || next.Holders[0].Owner != "ben" || next.Holders[0].Token <= held.Token {
		t.Errorf("after token %d got %+v", held.Token, next.Holders)
	}
	if r := pawl(t.Context(), "release", "--session", held.Session, "--token", held.Token.String(), all); r.code != exitLost {
		t.Errorf("releasing again: %+v", r)
	}
	if r := pawl(t.Context(), "renew", "--session", held.Session, all); r.code != exitLost {
		t.Errorf("renewing an ended session: %+v", r)
	}

	// It stops in time, and after that as after a crash the locks are there.
	if code, took := dev.end(t, syscall.SIGTERM); code != exitOK || took > stopWithin {
		t.Errorf("stopping: exit code %d after %v; stderr: %s", code, took, dev.errors())
	}
	for _, signal := range []os.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		dev = startPawl(t, nil, arguments...)
		dev.await(t, "ready")
		if again := answered[transport.LockResponse](t, "lock", "nightly-report", all); len(again.Holders) != 1 || again.Holders[0].Token != next.Holders[0].Token {
			t.Errorf("after a restart got %+v, want the holder with token %d", again.Holders, next.Holders[0].Token)
		}
		dev.end(t, signal)
	}

	// The data are of three nodes at these ports, and stay that.
	for _, other := range [][]string{{"--nodes", "5", "--port", strconv.Itoa(base)}, {"--port", strconv.Itoa(base + 1)}} {
		r := pawl(t.Context(), append([]string{"dev", "--data", data}, other...)...)
		if r.code != exitUsage || !strings.Contains(r.stderr, "or choose another --data") {
			t.Errorf("pawl dev %v on the data of another cluster: %+v", other, r)
		}
	}
}

// awaitQueue returns when so many wait for the lock. Each look goes through the cluster, so this is no busy loop.
func awaitQueue(t *testing.T, name string, length int, endpoints string) {
	t.Helper()
	for began := time.Now(); time.Since(began) < patience; {
		if lock := answered[transport.LockResponse](t, "lock", name, endpoints); len(lock.Queue) == length {
			return
		}
	}
	t.Fatalf("there were never %d requests waiting for %s", length, name)
}

// Who presses Ctrl-C while waiting has left the queue, and is not granted the lock later.
func TestInterruptedAcquireLeavesTheQueue(t *testing.T) {
	base := devPorts(t, 1)
	endpoint := endpointsFlag(base, 1)
	dev := startPawl(t, nil, "dev", "--nodes", "1", "--data", t.TempDir(), "--port", strconv.Itoa(base))
	dev.await(t, "ready")
	must(t, "acquire", "door", "--ttl", "1h", endpoint)
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan result, 1)
	go func() { ended <- pawl(ctx, "acquire", "door", "--wait", "60s", endpoint) }()
	awaitQueue(t, "door", 1, endpoint)
	interrupt()
	if r := <-ended; r.code != exitFailure || r.stdout != "" || !strings.Contains(r.stderr, "interrupted") {
		t.Errorf("the interrupted acquire: %+v", r)
	}
	awaitQueue(t, "door", 0, endpoint)
}

func TestDevRefuses(t *testing.T) {
	foreign := t.TempDir()
	if err := os.WriteFile(filepath.Join(foreign, "letter.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	base := devPorts(t, 3)
	taken, err := net.Listen("tcp", loopbackAddress(base+peerOffset+2))
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	fresh := filepath.Join(t.TempDir(), "fresh")
	if r := pawl(t.Context(), "dev", "--data", fresh, "--port", strconv.Itoa(base)); r.code != exitFailure || !strings.Contains(r.stderr, "is another pawl dev running?") {
		t.Errorf("a port in use: %+v", r)
	}
	if _, err := os.Stat(fresh); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory was made for ports that are in use: %v", err)
	}
	for _, test := range []struct{ name, arguments, want string }{
		{"two nodes", "--nodes 2", "is 1, 3 or 5, not 2"},
		{"a port without room", "--port 65500", "leaves no room"},
		{"a bad word", "--profile quick", "must be one of"},
		{"a folder with something else in it", "--nodes 1 --port " + strconv.Itoa(base) + " --data " + foreign, "is not empty and not the data of pawl dev (there is letter.txt)"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := pawl(t.Context(), append([]string{"dev"}, strings.Fields(test.arguments)...)...)
			if r.code != exitUsage || !strings.Contains(r.stderr, test.want) {
				t.Errorf("got %+v, want %q", r, test.want)
			}
		})
	}
	if entries, err := os.ReadDir(foreign); err != nil || len(entries) != 1 {
		t.Errorf("the foreign folder has %v, %v", entries, err)
	}
}
