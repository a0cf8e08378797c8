package runner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/pawl-lock/pawl/jepsen/cluster/process"
	"github.com/pawl-lock/pawl/jepsen/workload"
)

// RunProcesses makes a run on real processes and judges it. The program must be inside process.Isolate, and have a command
// for Work. pawl is the program that the nodes run. Logs, and what clients record, go to the directory dir, which is made,
// and must be empty.
func RunProcesses(ctx context.Context, spec Spec, pawl, dir string) (result Result, err error) {
	spec.Cluster = "processes"
	result.Spec = spec
	if err := spec.Validate(); err != nil {
		return result, err
	}
	w, err := workload.ByName(spec.Workload)
	if err != nil {
		return result, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return result, err
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		return result, errors.Join(err, fmt.Errorf("%s is not empty", dir))
	}
	// Sockets have short names only, and registers need not outlive the run.
	scratch, err := memoryDir()
	if err != nil {
		return result, err
	}
	defer func() { _ = os.RemoveAll(scratch) }()
	store, err := openStore(spec, scratch)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	socket := filepath.Join(scratch, "store")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return result, err
	}
	served := make(chan error, 1)
	go func() { served <- workload.Serve(listener, store) }()
	defer func() {
		_ = listener.Close()
		<-served
	}()
	began := time.Now()
	c, err := process.New(process.Options{Nodes: spec.Nodes, Clients: spec.Clients + 1, Pawl: pawl, Dir: dir})
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	result, err = Play(ctx, spec, w, apart{c, dir, socket}, store)
	result.Real = time.Since(began)
	if err != nil {
		return result, err
	}
	judge(w, &result)
	return result, nil
}
