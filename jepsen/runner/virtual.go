package runner

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/jepsen/check"
	"github.com/pawl-lock/pawl/jepsen/cluster/virtual"
	"github.com/pawl-lock/pawl/jepsen/workload"
)

// RunVirtual makes a run in virtual time and judges it. dir is for the data of the nodes; an empty one is a new one in memory,
// where the system has that: in virtual time a disk's flushes prove nothing and cost the only time that is spent.
func RunVirtual(outside context.Context, bubble virtual.Bubble, spec Spec) (result Result, err error) {
	spec.Cluster = "virtual"
	if err := spec.Validate(); err != nil {
		return Result{Spec: spec}, err
	}
	if spec.Store == postgresStore {
		return Result{Spec: spec}, errors.New("store: postgres is for real processes, not for virtual time")
	}
	w, err := workload.ByName(spec.Workload)
	if err != nil {
		return Result{Spec: spec}, err
	}
	dir, err := memoryDir()
	if err != nil {
		return Result{Spec: spec}, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	began := time.Now()
	failed := bubble(func(t testing.TB) {
		c := virtual.New(t, virtual.Options{Nodes: spec.Nodes, Clients: spec.Clients + 1, Seed: spec.Seed, Dir: dir})
		defer func() { _ = c.Close() }()
		var store workload.Store
		if store, err = openStore(spec, dir); err != nil {
			return
		}
		defer func() { _ = store.Close() }()
		// Heartbeats go on for ever, so a run that waits in vain would never be seen to be stuck.
		guard := time.AfterFunc(spec.Time+time.Hour, func() { panic("the run does not end: " + spec.Command()) })
		defer guard.Stop()
		// Who waits in there for what ends outside holds up the time.
		ctx, cancel := context.WithCancelCause(context.Background())
		defer cancel(nil)
		go func() {
			for c.Sleep(ctx, lookOutside) == nil {
				if outside.Err() != nil {
					cancel(context.Cause(outside))
				}
			}
		}()
		result, err = Play(ctx, spec, w, c, store)
	})
	result.Real = time.Since(began)
	if err != nil {
		return result, err
	}
	var left *virtual.LeftError
	if failed != nil && !errors.As(failed, &left) {
		return result, fmt.Errorf("%s: %w", spec.Command(), failed)
	}
	judge(w, &result)
	if left != nil {
		result.Verdicts = append(result.Verdicts, whoIsLeft(left))
	}
	return result, nil
}

// whoIsLeft judges the goroutines that a run has left behind.
func whoIsLeft(left *virtual.LeftError) check.Verdict {
	v := check.Verdict{Checker: "goroutines", Outcome: check.Valid, Figures: map[string]int64{
		"left by the library's hand-over": int64(len(left.Goroutines) - len(left.Ours())),
	}}
	if ours := left.Ours(); len(ours) > 0 {
		v.Outcome, v.Why = check.Invalid, fmt.Sprintf("nothing will wake: %.2000s", strings.Join(ours, "\n"))
	}
	return v
}

// lookOutside is how often, in virtual time, a run looks whether it is broken off.
const lookOutside = time.Second

func memoryDir() (string, error) {
	const pattern = "pawl-jepsen-"
	if dir, err := os.MkdirTemp("/dev/shm", pattern); err == nil {
		return dir, nil
	}
	return os.MkdirTemp("", pattern)
}
