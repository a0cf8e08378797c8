package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/examples/local"
)

// asCommand makes this test binary the program itself.
const asCommand = "PAWL_JEPSEN_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// The program runs in virtual time although it is no test, and keeps what came of it.
func TestRunInVirtualTime(t *testing.T) {
	dir := t.TempDir()
	out, err := command(t, "run", "--workload", "mutex,rw", "--fault", "kill-one", "--time", "40s", "--count", "2", "--seed", "1", "--dir", dir, "--keep")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, want := range []string{"mutex under kill-one, seed 1: valid", "rw under kill-one, seed 2: valid"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q does not say %q", out, want)
		}
	}
	for _, name := range []string{"virtual-mutex-kill-one-1/index.html", "virtual-rw-kill-one-2/history.jsonl"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	table, err := command(t, "table", filepath.Join(dir, resultsFile))
	if err != nil || !strings.Contains(table, "| virtual, 3 nodes | rw | kill-one | 1 |") || !strings.Contains(table, "| 2 valid |") {
		t.Errorf("%v: %s", err, table)
	}
}

// written is a write that was acknowledged, in a history.
var written = regexp.MustCompile(`"type":"ok","f":"write"`)

// What a signal breaks off leaves nothing behind but its report.
func TestASignalEndsARun(t *testing.T) {
	t.Run("virtual", func(t *testing.T) {
		t.Parallel()
		breakOff(t, syscall.SIGINT, 130, func(string) bool { return true }, "run", "--time", "24h", "--rate", "0.1", "--clients", "1")
	})
	t.Run("processes", func(t *testing.T) {
		t.Parallel()
		needsProcesses(t)
		dir, pawl := t.TempDir(), filepath.Join(t.TempDir(), "pawl")
		// As the tests of jepsen/cluster/process build it, so that it is in the cache.
		if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", pawl, "github.com/pawl-lock/pawl/cmd/pawl").CombinedOutput(); err != nil {
			t.Fatalf("building pawl: %v: %s", err, out)
		}
		works := func(scratch string) bool { // as soon as there is something to lose, a row of PostgreSQL among it
			databases, _ := filepath.Glob(filepath.Join(scratch, "pawl*", "data", "postmaster.pid"))
			if len(databases) != 1 {
				return false
			}
			histories, _ := filepath.Glob(filepath.Join(scratch, "pawl-jepsen-*", "client0.jsonl"))
			return slices.ContainsFunc(histories, func(path string) bool {
				history, err := os.ReadFile(path)
				return err == nil && written.Match(history)
			})
		}
		scratch, out := breakOff(t, syscall.SIGTERM, 143, works, "run", "--cluster", "processes", "--pawl", pawl, "--clients", "2", "--rate", "10", "--dir", dir,
			"--workload", "fenced", "--store", "postgres")
		page, err := os.ReadFile(filepath.Join(dir, "processes-fenced-mixed-1", "index.html"))
		if err != nil || !bytes.Contains(page, []byte("stopped by terminated")) {
			t.Errorf("no report says why the run ended: %v, %s", err, out)
		}
		if history, err := os.ReadFile(filepath.Join(dir, "processes-fenced-mixed-1", "history.jsonl")); err != nil || len(history) == 0 {
			t.Errorf("the report has no history: %v", err)
		}
		if left, _ := os.ReadDir(scratch); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

// breakOff runs the program until it works, in a directory for what is temporary, and sends it a signal.
func breakOff(t *testing.T, s syscall.Signal, code int, works func(scratch string) bool, args ...string) (scratch, out string) {
	t.Helper()
	scratch = t.TempDir()
	if err := os.Chmod(filepath.Dir(scratch), 0o755); err != nil { // PostgreSQL runs as another user
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	said := func() string { b, _ := os.ReadFile(log.Name()); return string(b) }
	c := exec.Command(os.Args[0], args...)
	c.Env = append(os.Environ(), asCommand+"=1", "TMPDIR="+scratch)
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	ticks := time.NewTicker(20 * time.Millisecond)
	defer ticks.Stop()
	limit := time.After(60 * time.Second)
	for begun := false; !begun; {
		select {
		case <-ticks.C:
			begun = strings.Contains(said(), "seed 1: ") && works(scratch)
		case err := <-ended:
			t.Fatalf("it ended before it was told to: %v: %s", err, said())
		case <-limit:
			_ = c.Process.Kill()
			t.Fatalf("it does not begin: %s", said())
		}
	}
	if err := c.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		_ = c.Process.Kill()
		t.Fatalf("it does not end: %s", said())
	}
	if got := c.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d, want %d: %s", got, code, said())
	}
	environments, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environments {
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte("TMPDIR="+scratch)) {
			t.Errorf("a process is left: %s", path)
		}
	}
	return scratch, said()
}

// needsProcesses skips a test where there can be no cluster of processes.
func needsProcesses(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("real processes take seconds: skipped by -short")
	}
	why := ""
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		why = "needs Linux and root"
	}
	if !local.HasPostgres() {
		why = "needs PostgreSQL"
	}
	for _, tool := range []string{"ip", "iptables"} {
		if _, err := exec.LookPath(tool); err != nil {
			why = err.Error()
		}
	}
	switch {
	case why == "":
	case os.Getenv("PAWL_CI") == "1":
		t.Fatal(why)
	default:
		t.Skip(why)
	}
}

func TestWrongUse(t *testing.T) {
	for _, args := range [][]string{
		{"run", "--workload", "nothing"}, {"run", "--fault", "nothing"}, {"run", "--count", "0"}, {"run", "--cluster", "of stars"},
		{"run", "--store", "postgres"}, {"run", "--store", "paper"},
	} {
		out, err := command(t, args...)
		if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() == exitValid {
			t.Errorf("%v: %v %s", args, err, out)
		}
	}
}

func command(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := exec.CommandContext(t.Context(), os.Args[0], args...)
	c.Env = append(os.Environ(), asCommand+"=1")
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.String(), err
}
