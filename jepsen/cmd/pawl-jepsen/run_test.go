package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
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

func TestWrongUse(t *testing.T) {
	for _, args := range [][]string{
		{"run", "--workload", "nothing"}, {"run", "--fault", "nothing"}, {"run", "--count", "0"}, {"run", "--cluster", "of stars"},
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
