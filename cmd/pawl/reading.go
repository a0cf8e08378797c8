package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/transport"
)

func (p *program) pageFlags(command *cobra.Command, page *client.Page) {
	command.Flags().StringVar(&page.After, "after", "", "go on behind this one")
	command.Flags().IntVar(&page.Limit, "limit", 0, "at most so many (default as the server likes)")
}

// more tells people how to see the next page.
func (p *program) more(next string) {
	if next != "" {
		fmt.Fprintf(p.stderr, "There are more: --after %q\n", next)
	}
}

func (p *program) locksCommand() *cobra.Command {
	var which client.LocksQuery
	command := &cobra.Command{
		Use:   "locks",
		Short: "List the locks that are held or waited for",
		Args:  cobra.NoArgs,
		RunE: action(p.callWork(func(ctx context.Context, c *client.Client, _ []string) error {
			answer, err := c.Calls().ListLocks(ctx, which)
			if err != nil {
				return err
			}
			return p.show(answer, func() error {
				t := newTable(p.stdout, "NAME", "MODE", "HOLDER", "TOKEN", "HELD", "WAITING")
				for _, lock := range answer.Locks {
					holder, token := holderCells(lock.Holders)
					t.row(lock.Name, lock.Mode, holder, token, duration(lock.HeldMS), lock.QueueLength)
				}
				p.more(answer.Next)
				return t.flush()
			})
		})),
	}
	flags := command.Flags()
	flags.StringVar(&which.Prefix, "prefix", "", "only names that begin like this")
	flags.BoolVar(&which.Held, "held", false, "only those that are held")
	flags.BoolVar(&which.Waiting, "waiting", false, "only those that somebody waits for")
	flags.StringVar(&which.Sort, "sort", "", "by name, held (longest first) or queue (longest first); by the latter two among 10,000 locks at a time")
	p.pageFlags(command, &which.Page)
	return command
}

// holderCells says who holds a lock in the width of one line.
func holderCells(holders []transport.Holder) (owner, token string) {
	if len(holders) == 0 {
		return "", ""
	}
	owner, token = holders[0].Owner, holders[0].Token.String()
	if len(holders) > 1 {
		owner += fmt.Sprintf(" and %d more", len(holders)-1)
	}
	return owner, token
}

func (p *program) lockCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "lock NAME",
		Short: "Show one lock: who holds it, who waits, and who held it before",
		Args:  cobra.ExactArgs(1),
		RunE: action(p.callWork(func(ctx context.Context, c *client.Client, args []string) error {
			answer, err := c.Calls().GetLock(ctx, args[0])
			if err != nil {
				return err
			}
			return p.show(answer, func() error { return p.showLock(answer) })
		})),
	}
}

// lockState says in a word or two how a lock stands.
func lockState(lock transport.LockResponse) string {
	switch {
	case len(lock.Holders) > 0 && lock.Limit > 0:
		return fmt.Sprintf("%s, %d of %d", lock.Mode, len(lock.Holders), lock.Limit)
	case len(lock.Holders) > 0:
		return lock.Mode
	case lock.DelayRemainingMS > 0:
		return "free, but in its lock-delay for another " + duration(lock.DelayRemainingMS)
	}
	return "free"
}

func (p *program) showLock(lock transport.LockResponse) error {
	fmt.Fprintf(p.stdout, "%s: %s\n", shown(lock.Name), lockState(lock))
	if len(lock.Holders) > 0 {
		fmt.Fprintln(p.stdout)
		t := newTable(p.stdout, "HOLDER", "TASK", "MODE", "TOKEN", "HELD", "EXPIRES IN", "SESSION", "VALUE")
		for _, holder := range lock.Holders {
			t.row(holder.Owner, holder.Task, holder.Mode, holder.Token, duration(holder.HeldMS), duration(holder.RemainingMS), holder.Session, cut(holder.Value))
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if len(lock.Queue) > 0 {
		fmt.Fprintln(p.stdout)
		t := newTable(p.stdout, "#", "WAITING", "TASK", "MODE", "PRIORITY", "SINCE", "WAITS FOR")
		for _, waiter := range lock.Queue {
			t.row(waiter.Position, waiter.Owner, waiter.Task, waiter.Mode, waiter.Priority, duration(waiter.WaitedMS), strings.Join(waiter.WaitsFor, ", "))
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if len(lock.History) > 0 {
		fmt.Fprintln(p.stdout)
		t := newTable(p.stdout, "HELD BEFORE BY", "TOKEN", "FOR", "ENDED")
		for _, past := range lock.History {
			ended := past.Ended
			if past.By != "" {
				ended += " by " + past.By
			}
			if past.Reason != "" {
				ended += ": " + past.Reason
			}
			t.row(past.Owner, past.Token, duration(past.HeldMS), ended)
		}
		return t.flush()
	}
	return nil
}

// cut keeps a value from filling the screen.
func cut(value string) string {
	const most = 40
	if runes := []rune(value); len(runes) > most {
		return string(runes[:most]) + "…"
	}
	return value
}

// labels says a session's labels in one cell.
func labels(of map[string]string) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(of)) {
		all = append(all, key+"="+of[key])
	}
	return strings.Join(all, ",")
}

func (p *program) sessionsCommand() *cobra.Command {
	var owner string
	var page client.Page
	command := &cobra.Command{
		Use:   "sessions",
		Short: "List the sessions",
		Args:  cobra.NoArgs,
		RunE: action(p.callWork(func(ctx context.Context, c *client.Client, _ []string) error {
			answer, err := c.Calls().ListSessions(ctx, owner, page)
			if err != nil {
				return err
			}
			return p.show(answer, func() error {
				t := newTable(p.stdout, "SESSION", "OWNER", "TTL", "EXPIRES IN", "HOLDS", "WAITS", "LABELS")
				for _, s := range answer.Sessions {
					t.row(s.ID, s.Owner, duration(s.TTLMS), duration(s.RemainingMS), s.Holds, s.Waits, labels(s.Labels))
				}
				p.more(answer.Next)
				return t.flush()
			})
		})),
	}
	command.Flags().StringVar(&owner, "owner", "", "only those of this owner")
	p.pageFlags(command, &page)
	return command
}
