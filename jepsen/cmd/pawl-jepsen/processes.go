package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/pawl-lock/pawl/jepsen/cluster"
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

// processes makes runs on real processes.
type processes struct {
	pawl string // the program of the nodes; "" builds it
}

// program is the variable by which the isolated process learns what was built.
const program = "PAWL_JEPSEN_PROGRAM"

// isolate has the whole command done by another process, unless this is that one. It is called before anything is done.
func (p *processes) isolate(ctx context.Context, code *int) (done bool, err error) {
	if p.pawl == "" && !process.Isolated() {
		dir, err := os.MkdirTemp("", "pawl-jepsen-")
		if err != nil {
			return false, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if err := build(ctx, filepath.Join(dir, "pawl")); err != nil {
			return false, err
		}
	}
	exit, isolated, err := process.Isolate()
	if isolated || err != nil {
		p.pawl = cmp.Or(p.pawl, os.Getenv(program))
		return false, err
	}
	*code = exit
	return true, nil
}

// build builds the program of the nodes, and has the isolated process know it.
func build(ctx context.Context, path string) error {
	command := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", path, "github.com/pawl-lock/pawl/cmd/pawl")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("building pawl (or name it with --pawl): %w: %s", err, out)
	}
	return os.Setenv(program, path)
}

// run makes one run. It is called in the isolated process.
func (p *processes) run(ctx context.Context, spec runner.Spec) (runner.Result, error) {
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
	if err != nil && len(result.Verdicts) == 0 && !errors.Is(err, cluster.ErrUnsupported) {
		return result, fmt.Errorf("%w (logs are in %s)", err, dir)
	}
	return result, errors.Join(err, os.RemoveAll(dir))
}
