package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/pawl-lock/pawl/jepsen/cluster/process"
	"github.com/pawl-lock/pawl/jepsen/runner"
)

// clientCommand is the program as a client of a cluster of processes.
func clientCommand() *cobra.Command {
	return &cobra.Command{
		Use: runner.ClientCommand, Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runner.Work(c.InOrStdin()) },
	}
}

// isolate has the whole command done by another process, unless this is that one. It is called before anything is done.
func isolate(code *int) (done bool, err error) {
	exit, isolated, err := process.Isolate()
	if isolated || err != nil {
		return false, err
	}
	*code = exit
	return true, nil
}

// processes makes runs on real processes.
type processes struct {
	pawl string // the program of the nodes; "" builds it
}

// run makes one run. It is called in the isolated process.
func (p *processes) run(ctx context.Context, spec runner.Spec) (runner.Result, error) {
	if err := p.build(ctx); err != nil {
		return runner.Result{}, err
	}
	return inDir(func(dir string) (runner.Result, error) { return runner.RunProcesses(ctx, spec, p.pawl, dir) })
}

// containers makes runs on the compose cluster of the folder that the command runs in.
type containers struct {
	dist string // what make dist has made
}

func (c *containers) run(ctx context.Context, spec runner.Spec) (runner.Result, error) {
	return inDir(func(dir string) (runner.Result, error) { return runner.RunContainers(ctx, spec, ".", c.dist, dir) })
}

// inDir makes a run in a directory, which stays only when there is no result, which would have it all.
func inDir(run func(dir string) (runner.Result, error)) (runner.Result, error) {
	dir, err := os.MkdirTemp("", "pawl-jepsen-")
	if err != nil {
		return runner.Result{}, err
	}
	result, err := run(dir)
	if err != nil {
		return result, fmt.Errorf("%w (logs are in %s)", err, dir)
	}
	return result, os.RemoveAll(dir)
}

func (p *processes) build(ctx context.Context) error {
	if p.pawl != "" {
		return nil
	}
	dir, err := os.MkdirTemp("/run", "pawl-") // it vanishes with this process's namespaces
	if err != nil {
		return err
	}
	program := filepath.Join(dir, "pawl")
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", program, "github.com/pawl-lock/pawl/cmd/pawl")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("building pawl (or name it with --pawl): %w: %s", err, out)
	}
	p.pawl = program
	return nil
}
