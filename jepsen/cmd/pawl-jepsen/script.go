package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pawl-lock/pawl/jepsen/cluster/virtual"
	"github.com/pawl-lock/pawl/jepsen/runner"
	"github.com/pawl-lock/pawl/jepsen/script"
)

// scriptCommand plays schedules that are written down.
func scriptCommand(code *int) *cobra.Command {
	b := batch{code: code}
	c := &cobra.Command{
		Use: "script NAME", Short: "Play a schedule that is written down, in virtual time, and judge what happened", Args: cobra.ExactArgs(1),
		Long: `Script plays a schedule that comes to a fault of the Raft library when the guard against it is switched off. That takes a
build with the tag unguarded, and the guard's name in the variable PAWL_UNGUARDED; otherwise every script is valid.`,
		RunE: func(c *cobra.Command, args []string) error {
			s, err := script.ByName(args[0])
			if err != nil {
				return err
			}
			b.out = c.OutOrStdout()
			_, _ = fmt.Fprintf(b.out, "%s, seed %d: ", s.Name, b.spec.Seed)
			result, err := runner.RunScript(virtual.Command, s, b.spec.Seed)
			if err != nil {
				_, _ = fmt.Fprintln(b.out, "failed")
				*code = exitInvalid
				return err
			}
			return b.tell(result)
		},
	}
	c.Flags().Uint64Var(&b.spec.Seed, "seed", 1, "seed of the run")
	c.Flags().StringVar(&b.dir, "dir", "", "folder for reports and results.jsonl (none without it)")
	c.Flags().BoolVar(&b.keep, "keep", false, "make a report also when the run is valid")
	return c
}
