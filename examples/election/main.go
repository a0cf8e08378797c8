// Command election has one of several processes lead, and all of them know who it is. Start it in several terminals, and end
// the leader in whatever way you like: the next one takes over.
//
// The leader writes with its token, like everybody who holds a lock: it may be stopped, and wake up when another leads.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/pawl-lock/pawl/client"
)

func main() {
	endpoints := flag.String("endpoints", "http://127.0.0.1:7700", "the nodes of Pawl")
	name := flag.String("name", fmt.Sprintf("process %d", os.Getpid()), "who this candidate is")
	ttl := flag.Duration("ttl", 5*time.Second, "how long after its last sign of life a leader is followed by another")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *endpoints, *name, *ttl); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "election:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, endpoints, name string, ttl time.Duration) error {
	pawl, err := client.New(strings.Split(endpoints, ","), client.WithTTL(ttl), client.WithOwner(name))
	if err != nil {
		return err
	}
	defer pawl.Close(context.WithoutCancel(ctx))
	election := pawl.Election("example/leader", name)
	observed := make(chan error, 1)
	go func() { observed <- observe(ctx, election) }()
	for ctx.Err() == nil {
		if err := lead(ctx, election, name); err != nil {
			return err
		}
	}
	return <-observed
}

// observe says who leads, whoever it is.
func observe(ctx context.Context, election *client.Election) error {
	for leader, err := range election.Observe(ctx) {
		switch {
		case err != nil:
			return err
		case leader.Candidate == "":
			fmt.Println("nobody leads")
		default:
			fmt.Printf("%s leads, with token %d\n", leader.Candidate, leader.Token)
		}
	}
	return nil
}

// lead waits for its turn and leads until the leadership is lost or ctx ends.
func lead(ctx context.Context, election *client.Election, name string) error {
	leadership, err := election.Campaign(ctx, "since "+time.Now().Format(time.TimeOnly))
	if err != nil {
		return err
	}
	defer leadership.Resign(context.WithoutCancel(ctx))
	fmt.Printf("%s: leading\n", name)
	select {
	case <-leadership.Done():
		fmt.Printf("%s: %v\n", name, leadership.Err())
	case <-ctx.Done():
		fmt.Printf("%s: resigning\n", name)
	}
	return nil
}
