package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-lock/pawl/jepsen/check"
	"github.com/pawl-lock/pawl/jepsen/cluster"
	"github.com/pawl-lock/pawl/jepsen/cluster/virtual"
	"github.com/pawl-lock/pawl/jepsen/nemesis"
	"github.com/pawl-lock/pawl/jepsen/runner"
	"github.com/pawl-lock/pawl/jepsen/script"
	"github.com/pawl-lock/pawl/jepsen/workload"
)

// Exit codes.
const (
	exitValid   = 0
	exitInvalid = 1
	exitUsage   = 2
	exitUnknown = 3 // a checker gave up or had nothing to judge: no pass
)

// maxCount bounds the runs of one command.
const maxCount = 1_000_000

// all stands for every workload, or every fault.
const all = "all"

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	code := exitValid
	root := &cobra.Command{
		Use: "pawl-jepsen", Short: "Look for what goes wrong with Pawl under faults",
		SilenceUsage: true, SilenceErrors: true,
	}
	root.AddCommand(runCommand(&code), scriptCommand(&code), tableCommand(), listCommand(), clientCommand())
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	if err := root.ExecuteContext(ctx); err != nil {
		_, _ = fmt.Fprintln(stderr, "pawl-jepsen:", err)
		if signalled, ok := stopCode(ctx); ok {
			return signalled
		}
		return max(code, exitUsage)
	}
	return code
}

func runCommand(code *int) *cobra.Command {
	b := batch{}
	c := &cobra.Command{
		Use: "run", Short: "Run workloads under faults, and judge what happened", Args: cobra.NoArgs,
		Long: `Run makes one run after the other, each with the next seed, and judges each. Of several workloads and faults (all, or
names with commas between; faults with + between are mixed) the seed says which: first all workloads under the first fault, and
so on.

It exits with 0 when every run is valid, 1 when one is invalid, 3 when a checker could not judge one: that is no pass. SIGINT
and SIGTERM break a run off: all faults are healed and all processes ended, what there is of the run goes to its report, and
the exit code is 130 or 143.`,
		RunE: func(c *cobra.Command, _ []string) error {
			b.out, b.code = c.OutOrStdout(), code
			b.spec.Store = cmp.Or(b.spec.Store, runner.DefaultStore(b.spec.Cluster))
			switch b.spec.Cluster {
			case "virtual":
				debug.SetGCPercent(400) // a fifth less CPU: the memory of a run is small and soon left
				b.play = func(ctx context.Context, spec runner.Spec) (runner.Result, error) {
					return runner.RunVirtual(ctx, virtual.Command, spec)
				}
			case "processes":
				if done, err := b.real.isolate(c.Context(), code); done || err != nil {
					return err
				}
				b.play = b.real.run
			case "containers":
				b.play = b.compose.run
			default:
				return fmt.Errorf("cluster: there is no kind %q", b.spec.Cluster)
			}
			return b.run(c.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&b.spec.Cluster, "cluster", "virtual", "kind of cluster: virtual, or (Linux, root) processes or containers")
	f.StringVar(&b.compose.dist, "dist", "./dist", "folder that make dist has made, for containers")
	f.StringVar(&b.real.pawl, "pawl", "", "program of nodes that are processes (built from the source without it)")
	f.StringVar(&b.workload, "workload", "mutex", "what clients do: see pawl-jepsen list")
	f.StringVar(&b.fault, "fault", nemesis.Mixed, "what goes wrong: see pawl-jepsen list")
	f.DurationVar(&b.spec.Time, "time", 10*time.Minute, "how long there are faults, on the cluster's clock")
	f.Float64Var(&b.spec.Rate, "rate", 1, "rounds of each client in a second, if nothing holds it up")
	f.Uint64Var(&b.spec.Seed, "seed", 1, "seed of the first run")
	f.IntVar(&b.spec.Nodes, "nodes", 3, "nodes of the cluster")
	f.IntVar(&b.spec.Clients, "clients", 5, "clients")
	f.StringVar(&b.spec.Store, "store", "", "what clients write to: memory, bolt, or (not in virtual time) postgres, which is the default where it is installed; else bolt")
	f.IntVar(&b.count, "count", 1, "runs")
	f.StringVar(&b.dir, "dir", "", "folder for reports and results.jsonl (none without it)")
	f.BoolVar(&b.keep, "keep", false, "make a report of every run, not only of those that are not valid")
	return c
}

// batch is some runs.
type batch struct {
	spec            runner.Spec
	workload, fault string
	count           int
	dir             string
	keep            bool
	real            processes
	compose         containers
	play            func(context.Context, runner.Spec) (runner.Result, error)

	out  io.Writer
	code *int
}

func (b *batch) run(ctx context.Context) error {
	var workloads []string
	for _, w := range workload.All() {
		workloads = append(workloads, w.Name())
	}
	workloads = named(b.workload, workloads)
	faults := named(b.fault, nemesis.Names())
	if b.count < 1 || b.count > maxCount {
		return fmt.Errorf("count: %d is not from 1 to %d", b.count, maxCount)
	}
	missed := map[string]bool{} // workloads that must fail, and have not
	for i := range b.count {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		spec := b.spec
		spec.Seed += uint64(i)
		// By the seed, so that a part of many runs is the same part whenever it is run.
		turn := spec.Seed - 1
		spec.Workload = workloads[turn%uint64(len(workloads))]
		spec.Fault = faults[turn/uint64(len(workloads))%uint64(len(faults))]
		// First, so that it is known which run it was that did not come to its end.
		_, _ = fmt.Fprintf(b.out, "%s under %s, seed %d: ", spec.Workload, spec.Fault, spec.Seed)
		result, err := b.play(ctx, spec)
		if errors.Is(err, cluster.ErrUnsupported) {
			_, _ = fmt.Fprintln(b.out, "not possible with a cluster of this kind")
			continue
		}
		if err != nil && len(result.Verdicts) > 0 { // broken off
			return errors.Join(err, b.tell(result))
		}
		if err != nil {
			_, _ = fmt.Fprintln(b.out, "failed")
			*b.code = exitInvalid
			return err
		}
		if err := b.tell(result); err != nil {
			return err
		}
		if pauses := result.Nemesis.Begun["pause-client"]; result.Expected.Checker != "" && pauses > 0 {
			if seen, known := missed[spec.Workload]; !known || seen {
				missed[spec.Workload] = result.Expected.Outcome != check.Invalid
			}
		}
	}
	for name, missed := range missed {
		if missed {
			*b.code = exitInvalid
			_, _ = fmt.Fprintf(b.out, "%s has not failed once, although it must: the harness does not see what it should\n", name)
		}
	}
	return nil
}

// named gives the names that a flag's value stands for, in the order of the list when it is all.
func named(value string, list []string) []string {
	if value == all {
		return slices.DeleteFunc(slices.Clone(list), func(name string) bool { return name == nemesis.None })
	}
	return strings.Split(value, ",")
}

// tell prints what came of a run, and keeps it.
func (b *batch) tell(r runner.Result) error {
	outcome := r.Outcome()
	_, _ = fmt.Fprintf(b.out, "%s: %d operations and %d faults in %v, which took %v\n", r.Headline(), r.Operations(), r.Faults(),
		r.Took.Round(time.Second), r.Real.Round(10*time.Millisecond))
	switch {
	case outcome == check.Invalid:
		*b.code = exitInvalid
	case outcome == check.Unknown && *b.code == exitValid:
		*b.code = exitUnknown
	}
	if outcome != check.Valid {
		for _, v := range r.Verdicts {
			if v.Outcome != check.Valid {
				_, _ = fmt.Fprintf(b.out, "  %s: %s: %s %v\n", v.Outcome, v.Checker, v.Why, v.Figures)
			}
		}
		_, _ = fmt.Fprintf(b.out, "  again: %s\n", r.Spec.Command())
	}
	if b.dir == "" {
		return nil
	}
	if b.keep || outcome != check.Valid {
		dir := filepath.Join(b.dir, fmt.Sprintf("%s-%s-%s-%d", r.Spec.Cluster, r.Spec.Workload, r.Spec.Fault, r.Spec.Seed))
		if err := r.Report(dir); err != nil {
			return fmt.Errorf("writing the report: %w", err)
		}
		_, _ = fmt.Fprintf(b.out, "  report: %s\n", filepath.Join(dir, "index.html"))
	}
	return r.Append(filepath.Join(b.dir, resultsFile))
}

const resultsFile = "results.jsonl"

func listCommand() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List workloads, faults and scripts", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			_, _ = fmt.Fprintln(c.OutOrStdout(), "workloads:")
			for _, w := range workload.All() {
				_, _ = fmt.Fprintf(c.OutOrStdout(), "  %s\n", w.Name())
			}
			_, _ = fmt.Fprintln(c.OutOrStdout(), "faults:")
			for _, name := range nemesis.Names() {
				_, _ = fmt.Fprintf(c.OutOrStdout(), "  %-18s %s\n", name, nemesis.About(name))
			}
			_, _ = fmt.Fprintln(c.OutOrStdout(), "scripts:")
			for _, s := range script.All() {
				_, _ = fmt.Fprintf(c.OutOrStdout(), "  %-18s %s\n", s.Name, s.About)
			}
			return nil
		},
	}
}

func tableCommand() *cobra.Command {
	matrix := false
	c := &cobra.Command{
		Use: "table FILE...", Short: "Make a Markdown table of results.jsonl files", Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, files []string) error {
			if matrix {
				return runner.Matrix(c.OutOrStdout(), files)
			}
			return runner.Table(c.OutOrStdout(), files)
		},
	}
	c.Flags().BoolVar(&matrix, "matrix", false, "faults down, workloads across")
	return c
}
