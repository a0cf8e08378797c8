package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-lock/pawl/client"
)

// eventsStart is how long no node may answer at the beginning, when it is likely that the endpoints are wrong. Later on a
// cluster that cannot be reached is waited for.
const eventsStart = 10 * time.Second

func (p *program) eventsCommand() *cobra.Command {
	which := client.WatchQuery{Start: eventsStart}
	command := &cobra.Command{
		Use:   "events",
		Short: "Follow what happens, one line an event",
		Long: `Follow what happens, one line an event, until interrupted.

When a node stops it goes on at another, where it was. A "reset" line says that some events before it cannot be told;
what is held and waited for then is what "pawl locks" shows.`,
		Args: cobra.NoArgs,
		RunE: action(p.callWork(func(ctx context.Context, c *client.Client, _ []string) error {
			for event, err := range c.Watch(ctx, which) {
				switch {
				case err != nil && ctx.Err() != nil:
					return nil // being interrupted is how this ends
				case err != nil:
					return err
				}
				if err := p.show(event, func() error { return p.eventLine(event) }); err != nil {
					return fmt.Errorf("writing: %w", err)
				}
			}
			return nil
		})),
	}
	command.Flags().StringVar(&which.Prefix, "prefix", "", "only of locks whose names begin like this")
	command.Flags().StringVar(&which.After, "after", "", "begin behind the event with this id (default: now)")
	return command
}

// eventLine says one event to people: when, what, of which lock, whose, and the rest in brackets.
func (p *program) eventLine(e client.Event) error {
	var rest []string
	add := func(word, value string) {
		if value != "" && value != "0" {
			rest = append(rest, strings.TrimSpace(word+" "+shown(value)))
		}
	}
	add("", e.Mode)
	add("token", e.Token.String())
	add("task", e.Task)
	add("reason", e.Reason)
	add("by", e.By)
	line := fmt.Sprintf("%-24s  %-14s  %s", shown(e.Time), e.Kind, shown(e.Name))
	if e.Owner != "" {
		line += "  " + shown(e.Owner)
	}
	if len(rest) > 0 {
		line += "  (" + strings.Join(rest, ", ") + ")"
	}
	_, err := fmt.Fprintln(p.stdout, line)
	return err
}
