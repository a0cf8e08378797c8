package runner

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/jepsen/check"
	"github.com/pawl-lock/pawl/jepsen/cluster/virtual"
	"github.com/pawl-lock/pawl/jepsen/history"
	"github.com/pawl-lock/pawl/jepsen/workload"
	"github.com/pawl-lock/pawl/server/replica"
)

// Script is a schedule that is written down: what goes wrong when, and what clients do meanwhile.
type Script struct {
	Name      string
	About     string
	Clients   int
	Snapshots replica.SnapshotPolicy // zero: as in all runs
	Locks     []string               // that must be free at the end
	Checkers  []check.Checker        // besides those of every run
	// Play does it on a cluster that is ready, and heals what it has done. The error says that it came to another course
	// than was written down: that proves nothing.
	Play func(ctx context.Context, c *virtual.Cluster, h *history.History, seed uint64) error
}

// scripted is what stands for the workload in the Spec of a script; the fault is its name.
const scripted = "script"

// scriptLimit is how long a script may take on the cluster's clock.
const scriptLimit = 10 * time.Minute

// RunScript plays it in virtual time and judges what happened, by the same checkers as any other run.
func RunScript(bubble virtual.Bubble, script Script, seed uint64) (result Result, err error) {
	result.Spec = Spec{Workload: scripted, Fault: script.Name, Cluster: "virtual", Seed: seed, Nodes: 3, Clients: script.Clients}
	dir, err := memoryDir()
	if err != nil {
		return result, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	began := time.Now()
	failed := bubble(func(t testing.TB) {
		c := virtual.New(t, virtual.Options{Nodes: 3, Clients: script.Clients + 1, Seed: seed, Dir: dir, Snapshots: script.Snapshots})
		defer func() { _ = c.Close() }()
		guard := time.AfterFunc(scriptLimit+time.Hour, func() { panic("the script does not end: " + result.Spec.Command()) })
		defer guard.Stop()
		err = playScript(c, script, &result)
	})
	result.Real = time.Since(began)
	switch {
	case err != nil:
		return result, fmt.Errorf("%s: %w", result.Spec.Command(), err)
	case failed != nil:
		return result, fmt.Errorf("%s: %w", result.Spec.Command(), failed)
	}
	judgeAll(script.Checkers, &result)
	return result, nil
}

func playScript(c *virtual.Cluster, script Script, result *Result) error {
	ctx, cancel := context.WithTimeout(context.Background(), scriptLimit)
	defer cancel()
	h := history.New(c.Now, mostOps)
	if err := ready(ctx, c); err != nil {
		return err
	}
	if err := script.Play(ctx, c, h, result.Spec.Seed); err != nil {
		return err
	}
	h.Add(history.Op{Process: history.Nemesis, Type: history.Info, F: history.Heal})
	if err := ready(ctx, c); err != nil {
		return err
	}
	last := &workload.Env{Client: c.Client(script.Clients), Index: -2, History: h}
	for _, name := range script.Locks {
		finalLock(ctx, last, h, name)
	}
	finalDigests(ctx, c, h, last.Index)
	result.Took, result.Ops, result.Logs = c.Now(), h.Ops(), c.Logs()
	return nil
}
