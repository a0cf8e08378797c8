package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/transport"
)

func (p *program) clusterCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cluster",
		Short: "Show the nodes, who leads, and how many failures are tolerated",
		Args:  cobra.NoArgs,
		RunE: action(p.callWork(func(ctx context.Context, c *client.Client, _ []string) error {
			answer, err := c.Calls().Cluster(ctx)
			if err != nil {
				return err
			}
			return p.show(answer, func() error { return p.showCluster(answer) })
		})),
	}
}

func (p *program) showCluster(cluster transport.ClusterResponse) error {
	leader := "no leader"
	if cluster.Leader != "" {
		leader = "led by " + cluster.Leader
	}
	voters, answering := 0, 0
	for _, m := range cluster.Members {
		if m.Role == transport.RoleVoter {
			voters++
			if m.Alive {
				answering++
			}
		}
	}
	fmt.Fprintf(p.stdout, "Cluster %s, %s, term %d, index %d\n", cluster.ID, leader, cluster.Term, cluster.Index)
	switch {
	case voters == 0:
		fmt.Fprintln(p.stdout, "This node is not part of a cluster yet")
		return nil
	case answering < cluster.Quorum:
		fmt.Fprintf(p.stdout, "Needs %d of %s and only %d answer: nothing is granted\n\n", cluster.Quorum, plural(int64(voters), "voter"), answering)
	default:
		fmt.Fprintf(p.stdout, "Needs %d of %s, survives the loss of %s\n\n", cluster.Quorum, plural(int64(voters), "voter"),
			plural(int64(cluster.FailuresTolerated), "more node"))
	}
	t := newTable(p.stdout, "NODE", "ROLE", "STATE", "LAST CONTACT", "BEHIND", "API", "PEER ADDRESS", "VERSION")
	for _, m := range cluster.Members {
		role, state, contact := m.Role, "alive", duration(m.LastContactMS)+" ago"
		if m.Name == cluster.Leader {
			role = "leader"
		}
		behind := fmt.Sprint(m.Lag)
		if !m.Alive { // for how long the node that answers does not know: it asks the others only when it is asked
			state, contact, behind = "down", "-", "-"
		}
		t.row(m.Name, role, state, contact, behind, m.APIURL, m.Address, m.Version)
	}
	return t.flush()
}

func (p *program) healthCommand() *cobra.Command {
	var ready bool
	command := &cobra.Command{
		Use:   "health",
		Short: "Ask one node whether it works",
		Long: `Ask one node, the first endpoint, whether its process works (what a container's health check wants to know: a node
without a majority is alive and must not be restarted), or with --ready whether it can serve writes now.`,
		Args: cobra.NoArgs,
		RunE: action(p.callWork(func(ctx context.Context, c *client.Client, _ []string) error {
			which := "livez"
			if ready {
				which = "readyz"
			}
			answer, err := c.Calls().Health(ctx, which)
			if err != nil {
				return err
			}
			return p.show(answer, func() error {
				fmt.Fprintln(p.stdout, "ok")
				return nil
			})
		})),
	}
	command.Flags().BoolVar(&ready, "ready", false, "ask whether it can serve writes now")
	return command
}

func (p *program) transferCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "transfer [NODE]",
		Short: "Hand leadership over, to NODE or to any other",
		Args:  cobra.MaximumNArgs(1),
		RunE: action(p.callWork(func(ctx context.Context, c *client.Client, args []string) error {
			var request transport.TransferRequest
			if len(args) > 0 {
				request.To = args[0]
			}
			answer, err := c.Calls().Transfer(ctx, request)
			if err != nil {
				return err
			}
			return p.show(answer, func() error {
				fmt.Fprintln(p.stdout, answer.Leader, "leads")
				return nil
			})
		})),
	}
}

func (p *program) raiseCommand() *cobra.Command {
	var request transport.RaiseRequest
	var yes bool
	command := &cobra.Command{
		Use:   "raise --above N --reason TEXT",
		Short: "Make every later token larger than N; ends all holds and sessions",
		Long: `Make every later token larger than N, when storage has seen higher tokens than this cluster has given (as after a
cluster was formed on new disks). All holds, waits and sessions end: whoever holds a lock loses it at once.`,
		Args: cobra.NoArgs,
		RunE: action(p.callWork(func(ctx context.Context, c *client.Client, _ []string) error {
			if err := request.Validate(); err != nil {
				return err
			}
			if !yes && p.interactive() && !confirmed(p.stdin, p.stderr, "End all holds, waits and sessions of this cluster?") {
				return errors.New("nothing was done")
			}
			answer, err := c.Calls().Raise(ctx, request)
			if err != nil {
				return err
			}
			return p.show(answer, func() error {
				fmt.Fprintln(p.stdout, "all holds, waits and sessions have ended; the next token is above", answer.NextTokenAbove)
				return nil
			})
		})),
	}
	command.Flags().Uint64Var(&request.Above, "above", 0, "the number that tokens must exceed, at most 2^52")
	command.Flags().StringVar(&request.Reason, "reason", "", "why, for the log")
	command.Flags().BoolVar(&yes, "yes", false, "do not ask on a terminal")
	_ = command.MarkFlagRequired("above") // it exists: the line above
	_ = command.MarkFlagRequired("reason")
	return command
}
