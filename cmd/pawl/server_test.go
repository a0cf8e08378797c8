package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A server that is configured three ways, logs JSON where nobody reads, and stops when told to.
func TestServerProcess(t *testing.T) {
	base := devPorts(t, 1)
	data := t.TempDir()
	file := filepath.Join(t.TempDir(), "pawl.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "name: wrong\ndata: %s\npeers: [n1=%s]\n", data, loopbackAddress(base+peerOffset)), 0o600); err != nil {
		t.Fatal(err)
	}
	arguments := []string{"server", "--config", file, "--api", loopbackAddress(base)}
	node := startPawl(t, []string{"PAWL_NAME=n1"}, arguments...)
	endpoint := endpointsFlag(base, 1)
	awaitReady(t, endpoint)
	must(t, "acquire", "door", endpoint)
	if code, took := node.end(t, syscall.SIGTERM); code != exitOK || took > stopWithin {
		t.Errorf("stopping: exit code %d after %v", code, took)
	}
	lines := strings.Split(strings.TrimSpace(node.errors()), "\n")
	for _, line := range lines {
		if !json.Valid([]byte(line)) {
			t.Errorf("a line of the log is no JSON: %q", line)
		}
	}
	if !strings.Contains(node.errors(), `"@message":"serving"`) {
		t.Errorf("the log does not say where it serves: %s", node.errors())
	}

	// The data belong to n1 (C11).
	other := startPawl(t, []string{"PAWL_NAME=n2"}, append(arguments, "--peers", "n2="+loopbackAddress(base+peerOffset))...)
	if code, _ := other.end(t, nil); code != exitFailure || !strings.Contains(other.errors(), `belongs to node "n1", this node is "n2"`) {
		t.Errorf("data of another node: exit code %d, %s", code, other.errors())
	}
}

// awaitReady returns when the node is ready. Each look takes a round trip and more, so this is no busy loop.
func awaitReady(t *testing.T, endpoint string) {
	t.Helper()
	for range 100_000 {
		if pawl(t.Context(), "health", "--ready", endpoint).code == exitOK {
			return
		}
	}
	t.Fatal("the node was never ready")
}

func TestServerRefusesToStart(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	base := devPorts(t, 1)
	peers := "--peers=n1=" + loopbackAddress(base+peerOffset)
	for _, test := range []struct {
		name      string
		arguments []string
		code      int
		want      string
	}{
		{"nothing said", nil, exitUsage, "name: is required"},
		{"an argument", []string{"now"}, exitUsage, `unknown command "now"`},
		{"an unknown flag", []string{"--nmae=n1"}, exitUsage, "unknown flag: --nmae"},
		{"a missing file", []string{"--config=/nonexistent/pawl.yaml"}, exitUsage, "reading the configuration"},
		{"beyond this machine", []string{"--name=n1", "--data=/nonexistent/x", peers, "--api=0.0.0.0:7700"}, exitUsage, "insecure"},
		{"port in use", []string{"--name=n1", "--data=" + t.TempDir(), peers, "--api=" + taken.Addr().String()}, exitFailure, "address already in use"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := pawl(t.Context(), append([]string{"server"}, test.arguments...)...)
			if r.code != test.code || !strings.Contains(r.stderr, test.want) {
				t.Errorf("got %+v, want code %d and %q", r, test.code, test.want)
			}
		})
	}
}

func TestPrintConfig(t *testing.T) {
	t.Setenv("PAWL_PROFILE", "fast")
	out := must(t, "server", "--print-config", "--name", "n1")
	for _, want := range []string{"# --name", "profile: fast", "# PAWL_PROFILE", "# default"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in:\n%s", want, out)
		}
	}
}

// A node that must not go on says why in one line, and the process is gone at once.
func TestFailStop(t *testing.T) {
	var stderr strings.Builder
	code := -1
	p := &program{stderr: &stderr, exit: func(c int) { code = c }}
	p.failStop(fmt.Errorf("the disk failed"))
	if code != exitFailure || stderr.String() != "pawl: stopped because it must not go on: the disk failed\n" {
		t.Errorf("exit code %d, %q", code, stderr.String())
	}
}
