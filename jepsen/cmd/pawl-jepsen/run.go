package main

import (
"os"
"encoding/json"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-lock/pawl/jepsen/cluster/virtual"
	"github.com/pawl-lock/pawl/jepsen/runner"
)

// Exit codes.
const (
	exitValid   = 0
	exitInvalid = 1
	exitUsage   = 2
	exitUnknown = 3 // a checker gave up or had nothing to judge: no pass
)

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	code := exitValid
	root := &cobra.Command{
		Use: "pawl-jepsen", Short: "Look for what goes wrong with Pawl under faults",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(runCommand(&code), clientCommand())
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(stderr, "pawl-jepsen:", err)
		return max(code, exitUsage)
	}
	return code
}

func runCommand(code *int) *cobra.Command {
	spec := runner.Spec{}
	var count int
	var real processes
	c := &cobra.Command{
		Use: "run", Short: "Run a workload under faults, and judge what happened", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			play := func(spec runner.Spec) (runner.Result, error) { return runner.RunVirtual(virtual.Command, spec) }
			if spec.Cluster == "processes" {
				if done, err := real.isolate(code); done || err != nil {
					return err
				}
				play = func(spec runner.Spec) (runner.Result, error) { return real.run(c.Context(), spec) }
			}
			return runMany(c.Context(), c.OutOrStdout(), spec, count, play, code)
		},
	}
	f := c.Flags()
	f.StringVar(&spec.Cluster, "cluster", "virtual", "kind of cluster: virtual or processes (which needs Linux and root)")
	f.StringVar(&real.pawl, "pawl", "", "program of the nodes that are processes (default: built from the source)")
	f.StringVar(&real.out, "out", "jepsen-runs", "where each run on processes gets a folder")
	f.StringVar(&spec.Workload, "workload", "mutex", "what clients do")
	f.StringVar(&spec.Fault, "fault", "mixed", "what goes wrong")
	f.DurationVar(&spec.Time, "time", 10*time.Minute, "how long there are faults, on the cluster's clock")
	f.Float64Var(&spec.Rate, "rate", 1, "rounds of each client in a second")
	f.Uint64Var(&spec.Seed, "seed", 1, "seed of the first run")
	f.IntVar(&spec.Nodes, "nodes", 3, "nodes")
	f.IntVar(&spec.Clients, "clients", 5, "clients")
	f.StringVar(&spec.Store, "store", "bolt", "what the fenced workloads write to: memory or bolt")
	f.IntVar(&count, "count", 1, "runs, each with the next seed")
	return c
}

// runMany makes the runs and prints a line for each.
func runMany(ctx context.Context, out io.Writer, spec runner.Spec, count int, play func(runner.Spec) (runner.Result, error), code *int) error {
	for range count {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		result, err := play(spec)
		if err != nil {
			return err
		}
		if dump := os.Getenv("DUMP"); dump != "" {
			f, _ := os.Create(dump)
			for _, op := range result.Ops {
				b, _ := json.Marshal(op)
				fmt.Fprintf(f, "%s\n", b)
			}
			f.Close()
		}
		fmt.Fprintf(out, "%s seed %d: %d operations, %v of virtual time in %v, faults %v, unsupported %v, failed %v\n", result.Outcome(), spec.Seed,
			len(result.Ops), result.Took.Round(time.Second), result.Real.Round(10*time.Millisecond), result.Nemesis.Begun, result.Nemesis.Unsupported, result.Nemesis.Failed)
		for _, v := range result.Verdicts {
			fmt.Fprintf(out, "  %-8s %s %s %v\n", v.Outcome, v.Checker, v.Why, v.Figures)
		}
		spec.Seed++
	}
	return nil
}
