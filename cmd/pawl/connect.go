package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/pawl-lock/pawl/client"
)

const defaultEndpoint = "http://127.0.0.1:7700"

// callWork makes a command's work of one that talks to the cluster. A signal ends it.
func (p *program) callWork(work func(ctx context.Context, c *client.Client, args []string) error) func(context.Context, []string) error {
	return func(ctx context.Context, args []string) error {
		ctx, stop := signal.NotifyContext(ctx, interruptions()...)
		defer stop()
		c, err := client.New(p.targets())
		if err != nil {
			return usageError{err}
		}
		defer c.Close(context.WithoutCancel(ctx)) // it has no session, so nothing can fail
		return work(ctx, c, args)
	}
}

// interruptions are the signals that end a command; a terminal that is closed is one, unless nohup says otherwise. A command
// that a signal ended at once would leave its place in a queue behind, to be granted a lock that nobody uses.
func interruptions() []os.Signal {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	return signals
}

// targets gives the API URLs to try: the flag's, else the variable's, else the default.
func (p *program) targets() []string {
	targets := p.endpoints
	if len(targets) == 0 {
		targets = strings.Split(p.getenv("PAWL_ENDPOINTS"), ",")
	}
	var given []string
	for _, target := range targets {
		if target = strings.TrimSpace(target); target != "" {
			given = append(given, target)
		}
	}
	if len(given) == 0 {
		return []string{defaultEndpoint}
	}
	return given
}

// milliseconds turns a duration of the command line into the wire's; what would have to be rounded is refused.
func milliseconds(flag string, d time.Duration) (int64, error) {
	if d < 0 || d%time.Millisecond != 0 {
		return 0, usageError{fmt.Errorf("--%s %v is not a whole number of milliseconds from 0", flag, d)}
	}
	return d.Milliseconds(), nil
}

// show prints an answer: as JSON when asked for, otherwise as people says.
func (p *program) show(answer any, people func() error) error {
	if p.json {
		return printJSON(p.stdout, answer)
	}
	return people()
}
