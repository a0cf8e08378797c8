package runner

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/pawl-lock/pawl/jepsen/cluster"
	"github.com/pawl-lock/pawl/jepsen/cluster/process"
	"github.com/pawl-lock/pawl/jepsen/workload"
)

// RunProcesses makes a run on real processes and judges it. The program must be inside process.Isolate, and have a command
// for Work. pawl is the program that the nodes run. Logs, and what clients record, go to the directory dir, which must be
// there.
func RunProcesses(ctx context.Context, spec Spec, pawl, dir string) (Result, error) {
	spec.Cluster = "processes"
	return runApart(ctx, spec, dir, func() (cluster.Apart, error) {
		return process.New(process.Options{Nodes: spec.Nodes, Clients: spec.Clients + 1, Pawl: pawl, Dir: dir})
	})
}

// RunContainers makes a run on the compose cluster and judges it. The program must have a command for Work. root is the
// folder of the compose files, dist the one that make dist has made.
func RunContainers(ctx context.Context, spec Spec, root, dist, dir string) (Result, error) {
	spec.Cluster = "containers"
	return runApart(ctx, spec, dir, func() (cluster.Apart, error) {
		return process.NewContainers(process.ContainerOptions{Nodes: spec.Nodes, Clients: spec.Clients + 1, Root: root, Dist: dist, Dir: dir})
	})
}

func runApart(ctx context.Context, spec Spec, dir string, start func() (cluster.Apart, error)) (result Result, err error) {
	result.Spec = spec
	if err := spec.Validate(); err != nil {
		return result, err
	}
	w, err := workload.ByName(spec.Workload)
	if err != nil {
		return result, err
	}
	// Sockets have short names only, and registers need not outlive the run.
	scratch, err := memoryDir()
	if err != nil {
		return result, err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	store, address, closeStore, err := shareStore(ctx, spec, w, scratch)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, closeStore()) }()
	began := time.Now()
	c, err := start()
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	result, err = Play(ctx, spec, w, apart{c, dir, address}, store)
	result.Real = time.Since(began)
	if err != nil {
		return result, err
	}
	judge(w, &result)
	return result, nil
}
