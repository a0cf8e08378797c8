package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/transport"
)

// tokenOf reads a token of the command line.
func tokenOf(what, text string) (transport.Token, error) {
	token, err := transport.ParseToken(text)
	if err != nil {
		return 0, usageError{fmt.Errorf("%s: %w", what, err)}
	}
	return token, nil
}

func (p *program) convertCommand() *cobra.Command {
	var request transport.ConvertRequest
	var token string
	var shared bool
	var wait time.Duration
	command := &cobra.Command{
		Use:   "convert NAME --session SESSION --of N --request N --token TOKEN",
		Short: "Change the mode of a held lock without giving it up",
		Long: `Change the mode of a lock that a session holds: to exclusive, or with --shared to shared. The session is one that was
opened with POST /v1/session, whose requests have numbers: --of is the number that the lock was acquired with, --request a
new one. The lock has a new token then.`,
		Args: cobra.ExactArgs(1),
		RunE: action(p.callWork(func(ctx context.Context, c *client.Client, args []string) (err error) {
			request.Name = args[0]
			if request.Mode, err = modeOf(shared, request.Limit); err != nil {
				return err
			}
			if request.Token, err = tokenOf("--token", token); err != nil {
				return err
			}
			if request.WaitMS, err = milliseconds("wait", wait); err != nil {
				return err
			}
			if err := request.Validate(); err != nil {
				return err
			}
			answer, err := c.Calls().Convert(ctx, request)
			if err != nil {
				return err
			}
			return p.show(answer, func() error {
				if !answer.Granted {
					fmt.Fprintf(p.stdout, "still waiting: repeat the command with the same --request %d, its place is kept\n", request.Request)
					return nil
				}
				return p.showGrant(answer)
			})
		})),
	}
	p.sessionFlag(command, &request.Session)
	command.Flag("session").Usage = "the session, as POST /v1/session answered"
	flags := command.Flags()
	flags.Uint64Var(&request.Of, "of", 0, "the number of the request that the lock was acquired with")
	flags.Uint64Var(&request.Request, "request", 0, "a new number, for this conversion")
	flags.StringVar(&token, "token", "", "the lock's token")
	flags.BoolVar(&shared, "shared", false, "to shared; otherwise to exclusive")
	flags.Int64Var(&request.Limit, "limit", 0, "with --shared: at most this many at once")
	flags.DurationVar(&wait, "wait", 0, "wait for the other holders for up to this long")
	_ = command.MarkFlagRequired("token") // it exists: the lines above
	return command
}

func (p *program) checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check NAME TOKEN",
		Short: "Ask whether a token is that of a present holder",
		Long: `Ask whether a token is that of a present holder; the exit code is 4 when it is not. The answer is true of the moment at
which it was given. What guards a resource for good is that the resource refuses every token below the highest seen.`,
		Args: cobra.ExactArgs(2),
		RunE: action(p.callWork(func(ctx context.Context, c *client.Client, args []string) error {
			token, err := tokenOf("TOKEN", args[1])
			if err != nil {
				return err
			}
			if err := (&transport.CheckRequest{Name: args[0], Token: token}).Validate(); err != nil {
				return err
			}
			answer, err := c.Calls().Check(ctx, args[0], token)
			if err != nil {
				return err
			}
			return p.show(answer, func() error {
				fmt.Fprintf(p.stdout, "valid: held by %s, %s, for another %s unless renewed\n", shown(answer.Owner), answer.Mode, duration(answer.RemainingMS))
				return nil
			})
		})),
	}
}

func (p *program) forceReleaseCommand() *cobra.Command {
	var request transport.ForceReleaseRequest
	var token string
	var delay time.Duration
	var yes bool
	command := &cobra.Command{
		Use:   "force-release NAME --token TOKEN --reason TEXT",
		Short: "Take a lock from its holder",
		Long: `End the holds of a lock that have this token, against their holders' will. A holder learns of it with its next renewal,
and may work on until then: only what checks the token is safe. --lock-delay keeps the lock from everybody meanwhile.`,
		Args: cobra.ExactArgs(1),
		RunE: action(p.callWork(func(ctx context.Context, c *client.Client, args []string) (err error) {
			request.Name = args[0]
			if request.Token, err = tokenOf("--token", token); err != nil {
				return err
			}
			if request.LockDelayMS, err = milliseconds("lock-delay", delay); err != nil {
				return err
			}
			if err := request.Validate(); err != nil {
				return err
			}
			question := fmt.Sprintf("Take %s from whoever holds it with token %d?", shown(request.Name), request.Token)
			if !yes && p.interactive() && !confirmed(p.stdin, p.stderr, question) {
				return errors.New("nothing was done")
			}
			answer, err := c.Calls().ForceRelease(ctx, request)
			if err != nil {
				return err
			}
			return p.show(answer, func() error {
				fmt.Fprintf(p.stdout, "ended %s of %s\n", plural(answer.Released, "hold"), shown(request.Name))
				return nil
			})
		})),
	}
	flags := command.Flags()
	flags.StringVar(&token, "token", "", "the token of the holder that is meant")
	flags.StringVar(&request.Reason, "reason", "", "why, for the holder and the log")
	flags.DurationVar(&delay, "lock-delay", 0, "nobody gets the lock for this long afterwards")
	flags.BoolVar(&yes, "yes", false, "do not ask on a terminal")
	_ = command.MarkFlagRequired("token") // both exist: the lines above
	_ = command.MarkFlagRequired("reason")
	return command
}

// interactive reports whether somebody sits there who can be asked.
func (p *program) interactive() bool {
	f, ok := p.stdin.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) && terminal(p.stderr)
}

// confirmed asks and takes a yes for a yes, and everything else for a no.
func confirmed(in io.Reader, out io.Writer, question string) bool {
	fmt.Fprintf(out, "%s [y/N] ", question)
	line, _ := bufio.NewReader(in).ReadString('\n') // an end without a line is a no
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return true
	}
	return false
}
