package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/user"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/transport"
)

// acquisition is what pawl acquire is told.
type acquisition struct {
	wait, ttl  time.Duration
	owner, key string
	shared     bool
	limit      int64

	priority           int64
	maxHold, lockDelay time.Duration
	value              string
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
  pawl acquire gpu --shared --limit 4      one of four permits
  pawl acquire deploy --max-hold 10m --value "$BUILD_URL"`,
		Args: cobra.MinimumNArgs(1),
		RunE: action(p.callWork(func(ctx context.Context, c *client.Client, names []string) error { return p.acquire(ctx, c, a, names) })),
	}
	flags := command.Flags()
	a.flags(flags)
	flags.DurationVar(&a.ttl, "ttl", 30*time.Second, "time to live after the last renew")
	flags.StringVar(&a.key, "key", "", "make the command repeatable: the same key and request is the same acquire (default a new key)")
	return command
}

// flags are those of every command that acquires.
func (a *acquisition) flags(flags *pflag.FlagSet) {
	flags.DurationVar(&a.wait, "wait", 0, "wait in the queue for up to this long")
	flags.StringVar(&a.owner, "owner", "", "who holds it, for people to read (default user@host:pid; user@host with --key)")
	flags.BoolVar(&a.shared, "shared", false, "share it with others who say so too")
	flags.Int64Var(&a.limit, "limit", 0, "with --shared: at most this many at once")
	flags.Int64Var(&a.priority, "priority", 0, "stand in the queue before those of lower priority (-1000 to 1000)")
	flags.DurationVar(&a.maxHold, "max-hold", 0, "end the hold after this long, whatever the renewals")
	flags.DurationVar(&a.lockDelay, "lock-delay", 0, "after an end other than a release nobody gets the locks for this long")
	flags.StringVar(&a.value, "value", "", "a text to keep with the hold, for others to read")
}

// defaultOwner is user@host:pid. With a key it has no pid: a repeat of the command must say the same.
func defaultOwner(key string) string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	if key != "" {
		return fmt.Sprintf("%.80s@%.120s", name, host)
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
	mode, err := modeOf(a.shared, a.limit)
	if err != nil {
		return transport.AcquireRequest{}, err
	}
	request := transport.AcquireRequest{Owner: cmp.Or(a.owner, defaultOwner(a.key)), TTLMS: ttl, WaitMS: wait, Priority: a.priority, Value: a.value}
	if request.MaxHoldMS, err = milliseconds("max-hold", a.maxHold); err != nil {
		return transport.AcquireRequest{}, err
	}
	if request.LockDelayMS, err = milliseconds("lock-delay", a.lockDelay); err != nil {
		return transport.AcquireRequest{}, err
	}
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

// modeOf gives the mode that --shared and --limit say.
func modeOf(shared bool, limit int64) (string, error) {
	switch {
	case limit != 0 && !shared:
		return "", usageError{errors.New("--limit goes with --shared")}
	case limit < 0:
		return "", usageError{fmt.Errorf("--limit %d is below 1", limit)}
	case shared:
		return transport.ModeShared, nil
	}
	return transport.ModeExclusive, nil
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
	answer, err := c.Calls().Acquire(ctx, request, a.key)
	if err != nil {
		if ctx.Err() != nil {
			// With a key the node does not cancel the wait by itself when we go.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), takeBackWithin)
			defer cancel()
			if _, cancelErr := c.Calls().Cancel(ctx, transport.CancelRequest{}, a.key); cancelErr != nil {
				return fmt.Errorf("interrupted, and the acquire could not be taken back, it ends by itself: %w", cancelErr)
			}
		}
		return err
	}
	return p.show(answer, func() error { return p.showGrant(answer) })
}

func (p *program) showGrant(answer transport.AcquireResponse) error {
	t := newTable(p.stdout, "NAME", "TOKEN", "MODE", "LEASE", "SESSION")
	lease := answer.LeaseMS
	if answer.HoldMS != nil {
		lease = min(lease, *answer.HoldMS)
	}
	for _, lock := range answer.Locks {
		t.row(lock.Name, lock.Token, lock.Mode, duration(lease), answer.Session)
	}
	return t.flush()
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
				var err error
				if request.Token, err = tokenOf("--token", token); err != nil {
					return err
				}
			}
			if err := request.Validate(); err != nil {
				return err
			}
			answer, err := c.Calls().Release(ctx, request)
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
			answer, err := c.Calls().Renew(ctx, request)
			if err != nil {
				return err
			}
			return p.show(answer, func() error {
				fmt.Fprintf(p.stdout, "renewed for %s, %s\n", duration(answer.LeaseMS), plural(answer.Holds, "hold"))
				for _, lost := range answer.Lost {
					by := ""
					if lost.By != "" {
						by = ", by " + shown(lost.By)
					}
					fmt.Fprintf(p.stdout, "lost %s (token %d): %s%s\n", shown(lost.Name), lost.Token, shown(lost.Reason), by)
				}
				return nil
			})
		})),
	}
	p.sessionFlag(command, &request.Session)
	command.Flags().DurationVar(&ttl, "ttl", 0, "change the time to live")
	return command
}
