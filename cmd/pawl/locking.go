package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/user"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/transport"
)

// acquisition is what pawl acquire is told.
type acquisition struct {
	wait, ttl  time.Duration
	owner, key string
	shared     bool
	limit      int64
}

func (p *program) acquireCommand() *cobra.Command {
	var a acquisition
	command := &cobra.Command{
		Use:   "acquire NAME…",
		Short: "Take one lock, or several at once",
		Long: `Take one lock, or all of several at once, and print the token and the session. The locks are held until they are
released, or until the time to live has passed since the last renew: the command does not stay to renew them.

The token is for whoever guards the resource: refuse every token lower than the highest seen.`,
		Example: `  pawl acquire nightly-report --wait 20s --ttl 5m
  pawl acquire gpu --shared --limit 4      one of four permits`,
		Args: cobra.MinimumNArgs(1),
		RunE: action(p.callWork(func(ctx context.Context, c *client.Client, names []string) error { return p.acquire(ctx, c, a, names) })),
	}
	flags := command.Flags()
	flags.DurationVar(&a.wait, "wait", 0, "wait in the queue for up to this long")
	flags.DurationVar(&a.ttl, "ttl", 30*time.Second, "time to live after the last renew")
	flags.StringVar(&a.owner, "owner", defaultOwner(), "who holds it, for people to read")
	flags.BoolVar(&a.shared, "shared", false, "share it with others who say so too")
	flags.Int64Var(&a.limit, "limit", 0, "with --shared: at most this many at once")
	flags.StringVar(&a.key, "key", "", "make the command repeatable: the same key and request is the same acquire (default a new key)")
	return command
}

// defaultOwner is user@host:pid.
func defaultOwner() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return fmt.Sprintf("%.80s@%.120s:%d", name, host, os.Getpid())
}

func (a acquisition) request(names []string) (transport.AcquireRequest, error) {
	wait, err := milliseconds("wait", a.wait)
	if err != nil {
		return transport.AcquireRequest{}, err
	}
	ttl, err := milliseconds("ttl", a.ttl)
	if err != nil {
		return transport.AcquireRequest{}, err
	}
	switch {
	case a.limit != 0 && !a.shared:
		return transport.AcquireRequest{}, usageError{errors.New("--limit goes with --shared")}
	case a.limit < 0:
		return transport.AcquireRequest{}, usageError{fmt.Errorf("--limit %d is below 1", a.limit)}
	}
	mode := transport.ModeExclusive
	if a.shared {
		mode = transport.ModeShared
	}
	request := transport.AcquireRequest{Owner: a.owner, TTLMS: ttl, WaitMS: wait}
	if len(names) == 1 {
		request.Name, request.Mode, request.Limit = names[0], mode, a.limit
	} else {
		for _, name := range names {
			request.Locks = append(request.Locks, transport.LockRequest{Name: name, Mode: mode, Limit: a.limit})
		}
	}
	if err := request.Validate(); err != nil {
		return transport.AcquireRequest{}, err
	}
	return request, nil
}

// takeBackWithin bounds how long an interrupted command tries to leave the queue.
const takeBackWithin = 2 * time.Second

func (p *program) acquire(ctx context.Context, c *client.Client, a acquisition, names []string) error {
	request, err := a.request(names)
	if err != nil {
		return err
	}
	if a.key == "" {
		// With a key an answer that got lost can be asked for again, instead of leaving a hold that nobody knows of (R8).
		a.key = "pawl-" + rand.Text()
	}
	answer, err := c.Acquire(ctx, request, a.key)
	if err != nil {
		if ctx.Err() != nil {
			// With a key the node does not cancel the wait by itself when we go.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackWithin)
			defer cancel()
			if _, cancelErr := c.Cancel(ctx, transport.CancelRequest{}, a.key); cancelErr != nil {
				return fmt.Errorf("interrupted, and the acquire could not be taken back, it ends by itself: %w", cancelErr)
			}
		}
		return err
	}
	return p.show(answer, func() error {
		t := newTable(p.stdout, "NAME", "TOKEN", "MODE", "LEASE", "SESSION")
		for _, lock := range answer.Locks {
			t.row(lock.Name, lock.Token, lock.Mode, duration(answer.LeaseMS), answer.Session)
		}
		return t.flush()
	})
}

// sessionFlag adds the flag that says whose locks; the variable keeps it out of the list of processes.
func (p *program) sessionFlag(command *cobra.Command, session *string) {
	command.Flags().StringVar(session, "session", "", "the session that pawl acquire printed (PAWL_SESSION)")
	command.PreRunE = func(*cobra.Command, []string) error {
		if *session == "" {
			*session = p.getenv("PAWL_SESSION")
		}
		if *session == "" {
			return errors.New("--session or PAWL_SESSION is required")
		}
		return nil
	}
}

func (p *program) releaseCommand() *cobra.Command {
	var request transport.ReleaseRequest
	var token string
	command := &cobra.Command{
		Use:     "release --session SESSION --token TOKEN",
		Short:   "Give a lock back",
		Long:    "Give back the locks of one grant, or of these the one that --name says.",
		Example: "  pawl release --session SESSION --token 1234",
		Args:    cobra.NoArgs,
		RunE: action(p.callWork(func(ctx context.Context, c *client.Client, _ []string) error {
			if token != "" {
				parsed, err := transport.ParseToken(token)
				if err != nil {
					return usageError{fmt.Errorf("--token: %w", err)}
				}
				request.Token = parsed
			}
			if err := request.Validate(); err != nil {
				return err
			}
			answer, err := c.Release(ctx, request)
			if err != nil {
				return err
			}
			return p.show(answer, func() error {
				for _, name := range answer.Released {
					fmt.Fprintln(p.stdout, "released", shown(name))
				}
				return nil
			})
		})),
	}
	p.sessionFlag(command, &request.Session)
	flags := command.Flags()
	flags.StringVar(&token, "token", "", "the token of the grant")
	flags.StringVar(&request.Name, "name", "", "release only this lock of the grant")
	flags.Uint64Var(&request.Request, "request", 0, "the number of the request, when it had one")
	return command
}

func (p *program) renewCommand() *cobra.Command {
	var request transport.RenewRequest
	var ttl time.Duration
	command := &cobra.Command{
		Use:   "renew --session SESSION",
		Short: "Keep a session and its locks for another time to live",
		Args:  cobra.NoArgs,
		RunE: action(p.callWork(func(ctx context.Context, c *client.Client, _ []string) (err error) {
			if request.TTLMS, err = milliseconds("ttl", ttl); err != nil {
				return err
			}
			if err := request.Validate(); err != nil {
				return err
			}
			answer, err := c.Renew(ctx, request)
			if err != nil {
				return err
			}
			return p.show(answer, func() error {
				fmt.Fprintf(p.stdout, "renewed for %s, %s\n", duration(answer.LeaseMS), plural(answer.Holds, "hold"))
				for _, lost := range answer.Lost {
					fmt.Fprintf(p.stdout, "lost %s (token %d): %s\n", shown(lost.Name), lost.Token, lost.Reason)
				}
				return nil
			})
		})),
	}
	p.sessionFlag(command, &request.Session)
	command.Flags().DurationVar(&ttl, "ttl", 0, "change the time to live")
	return command
}
