package runner

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/jepsen/check"
	"github.com/pawl-lock/pawl/jepsen/cluster"
	"github.com/pawl-lock/pawl/jepsen/history"
	"github.com/pawl-lock/pawl/jepsen/nemesis"
	"github.com/pawl-lock/pawl/jepsen/workload"
)

const (
	// mostOps bounds a history. One that overflows proves nothing, and is unknown.
	mostOps = 1_000_000
	// longestLease is the longest TTL that workloads use, and a little more.
	longestLease = 7 * time.Second
	// quiet is how long there is no fault between two, on average: some checkers look at calm times only.
	quiet = 15 * time.Second
	// shortQuiet is the least of it in short runs, where it is a fifteenth of the run, or there would be hardly any fault.
	shortQuiet = 3 * time.Second
	// length is how long a fault lasts, on average, and at most an eighth of the run.
	length = 8 * time.Second
	// recovery is how long clients go on when all faults are healed: everybody must get on again.
	recovery = 20 * time.Second
	// settling is how long the last looks may take each.
	settling = 30 * time.Second
)

// Play makes the run on a cluster whose nodes run, with one client more than the Spec says: the last one, which looks at what
// is left. Everything has ended when it returns, but for the cluster. When ctx ends the run is broken off: the error is its
// cause, and the Result has what there is, with the verdict unknown.
func Play(ctx context.Context, spec Spec, w workload.Workload, c cluster.Cluster, store workload.Store) (Result, error) {
	h := history.New(c.Now, mostOps)
	began := time.Now()
	result := Result{Spec: spec}
	if err := ready(ctx, c); err != nil {
		return result, err
	}
	env := func(i int) *workload.Env {
		e := &workload.Env{
			Client: c.Client(i), Index: i, Clients: spec.Clients + 1, Rand: clientRandom(spec, i),
			History: h, Now: c.Now, Sleep: c.Sleep, Rate: spec.Rate, Exact: c.Kind() == "virtual", Store: store,
		}
		e.Begin()
		return e
	}
	working, stop := context.WithCancel(ctx)
	defer stop()
	var clients sync.WaitGroup
	recorded, failed := make([][]history.Op, spec.Clients), make([]error, spec.Clients)
	for i := range spec.Clients {
		if a, ok := c.(apart); ok {
			clients.Go(func() { recorded[i], failed[i] = a.work(working, spec, i) })
		} else {
			clients.Go(func() { w.Client(working, env(i)) })
		}
	}
	faulty, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(spec.Time, cancel)
	var err error
	result.Nemesis, err = nemesis.Run(faulty, c, h, nemesis.Options{
		Fault: spec.Fault, Seed: spec.Seed, Clients: spec.Clients, Lease: longestLease,
		Quiet: min(quiet, max(spec.Time/15, shortQuiet)), Length: min(length, spec.Time/8),
	})
	timer.Stop()
	cancel()
	h.Add(history.Op{Process: history.Nemesis, Type: history.Info, F: history.Heal})
	if err == nil {
		_ = c.Sleep(ctx, recovery)
	}
	stop()
	clients.Wait()
	if err != nil {
		return result, err
	}
	for _, ops := range recorded {
		h.Merge(ops)
	}
	if ctx.Err() != nil { // nobody looks at what is left, and nobody judges
		err := context.Cause(ctx)
		result.Took, result.Real = c.Now(), time.Since(began)
		result.Ops, result.Logs = h.Ops(), c.Logs()
		result.Verdicts = []check.Verdict{{Checker: "run", Outcome: check.Unknown, Why: "broken off: " + err.Error()}}
		return result, err
	}
	if err := errors.Join(failed...); err != nil {
		result.Verdicts = append(result.Verdicts, check.Verdict{Checker: "clients", Outcome: check.Unknown, Why: err.Error()})
	}
	last := env(spec.Clients)
	for _, name := range w.Locks() {
		finalLock(ctx, last, h, name)
	}
	w.Final(ctx, last)
	finalDigests(ctx, c, h, last.Index)
	result.Took, result.Real = c.Now(), time.Since(began)
	result.Ops, result.Logs = h.Ops(), c.Logs()
	if !h.Whole() {
		result.Verdicts = append(result.Verdicts, check.Verdict{
			Checker: "history", Outcome: check.Unknown, Why: fmt.Sprintf("there were more than %d operations", mostOps)})
	}
	return result, nil
}

// ready waits until all nodes serve.
func ready(ctx context.Context, c cluster.Cluster) error {
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := c.Ready(limited); err != nil {
		return fmt.Errorf("the cluster does not begin to work: %w", err)
	}
	return nil
}

// finalLock records whether the lock can be had: those who held it have ended, or are dead for as long as a lease.
func finalLock(ctx context.Context, e *workload.Env, h *history.History, name string) {
	op := history.Op{Process: e.Index, Type: history.Invoke, F: history.Final, Lock: name, Note: history.Free}
	h.Add(op)
	op.Type = history.Fail
	if c, err := client.New(e.Client.Endpoints, client.WithHTTPClient(e.Client.HTTP), client.WithOwner("last")); err != nil {
		op.Error = err.Error()
	} else {
		limited, cancel := context.WithTimeout(ctx, settling)
		lock, err := c.Acquire(limited, name)
		if err == nil {
			op.Type, op.Token = history.OK, uint64(lock.Token())
			err = lock.Release(limited)
		}
		if err = errors.Join(err, c.Close(limited)); err != nil {
			op.Error = err.Error()
		}
		cancel()
	}
	h.Add(op)
}

// finalDigests records every node's state, once all are at the same index or the time for that is over.
func finalDigests(ctx context.Context, c cluster.Cluster, h *history.History, process int) {
	limited, cancel := context.WithTimeout(ctx, settling)
	defer cancel()
	for {
		ops := make([]history.Op, c.Size())
		same := true
		for i := range ops {
			ops[i] = history.Op{Process: process, Type: history.OK, F: history.Digest, Node: fmt.Sprintf("n%d", i+1)}
			index, digest, err := c.Digest(limited, i)
			if err != nil {
				ops[i].Type, ops[i].Error = history.Fail, err.Error()
			}
			ops[i].Log, ops[i].Note = index, digest
			same = same && err == nil && index == ops[0].Log
		}
		if same || c.Sleep(limited, 100*time.Millisecond) != nil {
			for _, op := range ops {
				h.Add(history.Op{Process: op.Process, Type: history.Invoke, F: op.F, Node: op.Node})
				h.Add(op)
			}
			return
		}
	}
}
