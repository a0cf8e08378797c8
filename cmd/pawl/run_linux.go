package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/cmd/pawl/guard"
	"github.com/pawl-lock/pawl/transport"
)

// running is what pawl run is told.
type running struct {
	acquisition
	names                  []string
	command                []string
	termBefore, killBefore time.Duration
	onLost                 string
	quiet                  bool
}

func (p *program) runCommand() *cobra.Command {
	var r running
	var all []string
	command := &cobra.Command{
		Use:   "run NAME [flags] -- COMMAND [ARGUMENT…]",
		Short: "Run a command while holding a lock",
		Long: `Take a lock, run a command without a shell, and give the lock back when the command and what it left behind is gone. The command finds PAWL_TOKEN, PAWL_LOCK and PAWL_SESSION in its environment (with --all also PAWL_TOKENS, a
JSON object): send the token along with every write, so that the storage can refuse it when it is too old.

The lock is renewed as long as the command runs. When it is lost, or cannot be renewed, the command and all that descends from
it gets TERM and then KILL before the lease ends, and so before anybody else can be granted the lock. A second process sees to
that when pawl run itself is stopped or killed. What runs as another user (sudo), or was started by somebody else at the
command's wish, cannot be ended.

Signals are passed on to the command's process group.

` + runExitHelp(),
		Example: `  pawl run nightly-report -- ./report.sh
  pawl run migrate --wait 5m --ttl 30s -- flyway migrate
  pawl run --all accounts/1,accounts/2 --wait 10s -- ./transfer 1 2 100
  pawl run gpu --shared --limit 4 --wait 1h -- python train.py`,
		DisableFlagsInUseLine: true,
		ValidArgsFunction:     cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			dash := cmd.ArgsLenAtDash()
			if dash < 0 || dash == len(args) {
				return wrongRun(errors.New("the command to run stands behind --"))
			}
			r.names, r.command = append(args[:dash:dash], all...), args[dash:]
			if (dash == 1) == (len(all) > 0) || dash > 1 {
				return wrongRun(errors.New("give one NAME before --, or several with --all"))
			}
			return action(func(ctx context.Context, _ []string) error { return p.run(ctx, r) })(cmd, args)
		},
	}
	command.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return wrongRun(err) })
	flags := command.Flags()
	flags.StringSliceVar(&all, "all", nil, "take all of these locks at once, instead of NAME")
	r.acquisition.flags(flags)
	flags.DurationVar(&r.ttl, "ttl", 15*time.Second, "time to live after the last renewal; it is renewed every third of it")
	flags.StringVar(&r.onLost, "on-lost", guard.OnLostTerm, "what the command gets when the lock is lost: term (and then KILL), kill or ignore")
	flags.DurationVar(&r.termBefore, "term-before", 0, "send TERM when so much of the lease is left (default a third of the time to live, or of --max-hold)")
	flags.DurationVar(&r.killBefore, "kill-before", 0, "send KILL when so much of the lease is left (default a tenth, at least 100ms)")
	flags.BoolVarP(&r.quiet, "quiet", "q", false, "say nothing but errors")
	return command
}

// systemCommands are those that not every system can run.
func (p *program) systemCommands() []*cobra.Command {
	return []*cobra.Command{p.runCommand(), p.guardCommand()}
}

// guardCommand is the second process of pawl run.
func (p *program) guardCommand() *cobra.Command {
	return &cobra.Command{
		Use:    guardName,
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE:   action(func(_ context.Context, args []string) error { return guard.Serve(client.Now, args[0]) }),
	}
}

const guardName = "run-guard"

// wrongRun is a command line of pawl run that cannot be meant; its code is none of the command's.
func wrongRun(err error) error { return &failure{runFailure{exitRunFailed, usageError{err}}} }

// complete fills in what was not given and refuses what cannot be meant.
func (r *running) complete() error {
	lease, flag := r.ttl, "--ttl"
	if r.maxHold > 0 && r.maxHold < lease {
		lease, flag = r.maxHold, "--max-hold"
	}
	r.termBefore = cmp.Or(r.termBefore, lease/3)
	r.killBefore = cmp.Or(r.killBefore, min(max(lease/10, guard.LeastBefore), r.termBefore))
	if r.termBefore > lease/2 {
		return fmt.Errorf("--term-before %v is more than half of the %s %v: one late renewal would end the command", r.termBefore, flag, lease)
	}
	return r.terms(0).Validate()
}

func (r *running) terms(until time.Duration) *guard.Terms {
	return &guard.Terms{Command: r.command, OnLost: r.onLost, TermBefore: r.termBefore, KillBefore: r.killBefore, Until: until}
}

// passedOn are the signals that the command gets too.
var passedOn = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGALRM, syscall.SIGWINCH, syscall.SIGCONT}

// releaseWithin bounds how long the end of a command is kept back to tell the cluster of it; the lock ends by itself too.
const releaseWithin = 5 * time.Second

func (p *program) run(ctx context.Context, r running) error {
	if err := r.complete(); err != nil {
		return wrongRun(err)
	}
	signals := make(chan os.Signal, 64)
	for _, s := range passedOn {
		if !signal.Ignored(s) { // nohup stays nohup
			signal.Notify(signals, s)
		}
	}
	defer signal.Stop(signals)
	c, err := client.New(p.targets(), client.WithTTL(r.ttl), client.WithOwner(cmp.Or(r.owner, ownerOf(r.command))))
	if err != nil {
		return runFailure{exitRunFailed, err}
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
		defer cancel()
		_ = c.Close(ctx) // the lock was released before; what that said counts
	}()
	// Before anybody is kept from the lock for a slip of the keyboard.
	if _, err := exec.LookPath(r.command[0]); err != nil {
		return runFailure{notRun(err), err}
	}
	lock, err := p.take(ctx, c, r, signals)
	if err != nil {
		return err
	}
	code, err := p.supervise(r, lock, signals)
	release, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
	defer cancel()
	if failed := lock.Release(release); failed != nil && err == nil && !errors.Is(failed, client.ErrLost) {
		p.note(r, "the lock could not be given back, it ends by itself: %s", sentence(failed))
	}
	if err == nil && code != 0 {
		err = commandEnded(code)
	}
	return err
}

// ownerOf says who runs what.
func ownerOf(command []string) string {
	return fmt.Sprintf("%s %.30s", defaultOwner(""), filepath.Base(command[0]))
}

// take acquires the locks; the first signal ends the wait.
func (p *program) take(ctx context.Context, c *client.Client, r running, signals <-chan os.Signal) (*client.Lock, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	got := make(chan syscall.Signal, 1)
	done := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for {
			select {
			case s := <-signals:
				switch s {
				case syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT:
					got <- s.(syscall.Signal)
					cancel()
					return
				}
			case <-done:
				return
			}
		}
	}()
	lock, err := r.acquire(ctx, c)
	close(done)
	<-watched
	select {
	case s := <-got:
		if err == nil {
			release, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseWithin)
			defer cancel()
			_ = lock.Release(release) // or it ends by itself: nobody renews it any more
		}
		return nil, runFailure{128 + int(s), errors.New("interrupted before the lock was granted")}
	default:
	}
	if err != nil {
		return nil, runFailure{runCode(err), whoHas(r, err)}
	}
	return lock, nil
}

// acquire takes the locks: within the wait, or now.
func (r *running) acquire(ctx context.Context, c *client.Client) (*client.Lock, error) {
	options, err := r.options()
	if err != nil {
		return nil, err
	}
	if r.wait == 0 {
		return c.TryAcquireAll(ctx, r.names, options...)
	}
	ctx, cancel := context.WithTimeout(ctx, r.wait)
	defer cancel()
	return c.AcquireAll(ctx, r.names, options...)
}

func (r *running) options() ([]client.AcquireOption, error) {
	if _, err := modeOf(r.shared, r.limit); err != nil {
		return nil, err
	}
	options := []client.AcquireOption{client.Priority(r.priority), client.Value(r.value), client.MaxHold(r.maxHold), client.LockDelay(r.lockDelay)}
	switch {
	case r.limit != 0:
		options = append(options, client.Semaphore(r.limit))
	case r.shared:
		options = append(options, client.Shared())
	}
	return options, nil
}

// whoHas says of a wait whose time was over who has the locks, as a refusal does.
func whoHas(r running, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, client.ErrUnavailable) {
		return err
	}
	held := &transport.Error{Code: transport.ErrHeld, Applied: transport.AppliedNo, Detail: fmt.Sprintf("not granted within %v", r.wait)}
	var waited *client.WaitError
	if errors.As(err, &waited) {
		held.Holders = waited.Holders
	}
	return held
}

// notRun gives the exit code for a command that could not be started.
func notRun(err error) int {
	failed := &guard.Failed{NotFound: errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist), Denied: errors.Is(err, fs.ErrPermission)}
	errors.As(err, &failed)
	switch {
	case failed.NotFound:
		return exitRunNotFound
	case failed.Denied:
		return exitRunDenied
	}
	return exitRunFailed
}

// supervise runs the command under guard and gives its exit code, or an error when the lock was lost.
func (p *program) supervise(r running, lock *client.Lock, signals <-chan os.Signal) (int, error) {
	executable, err := os.Executable()
	if err != nil {
		return 0, runFailure{exitRunFailed, err}
	}
	if terminal(p.stderr) { // a log, or the mail that cron sends, had better stay empty when all is well
		p.note(r, "running %s with token %d; %s", filepath.Base(r.command[0]), lock.Token(), r.promise())
	}
	guarded, err := guard.Start(guard.Config{
		Terms: *r.terms(lock.Deadline()),
		Guard: []string{executable, guardName},
		Env:   append(os.Environ(), environment(lock)...),
		Stdin: p.stdin, Stdout: p.stdout, Stderr: p.stderr,
		Now: client.Now,
	})
	if err != nil {
		return 0, runFailure{notRun(err), err}
	}
	terminal := p.lendTerminal(guarded.Group())
	defer terminal.takeBack()
	extend := time.NewTicker(max(r.termBefore/8, 10*time.Millisecond))
	defer extend.Stop()
	lost := lock.Done()
	for {
		select {
		case s := <-signals:
			if s == syscall.SIGCONT {
				terminal.lend()
			}
			guarded.Signal(s.(syscall.Signal))
		case <-extend.C:
			if lock.Held() { // the session may live on without it
				guarded.Extend(lock.Deadline())
			}
		case <-lost:
			lost = nil
			if r.onLost == guard.OnLostIgnore {
				p.note(r, "the lock is lost, and the command goes on: %v", lock.Err())
			}
			guarded.End(guard.CauseLost)
		case event := <-guarded.Events():
			switch {
			case event.Stopped == syscall.SIGTTIN || event.Stopped == syscall.SIGTTOU:
				if !terminal.lend() { // it did not want the terminal just a moment too early
					p.note(r, "the command is stopped: it wants the terminal, which it can have in the foreground and not in a pipeline")
				}
			case event.Stopped != 0:
				terminal.suspend()
			case event.Ending != nil:
				p.note(r, "ending the command %s: %s", margin(lock, event.Ending.Left), whyEnded(r, event.Ending.Cause, lock))
			case event.Stuck != "":
				p.note(r, "%s; the lock is kept as long as it can be", event.Stuck)
			case event.Result != nil:
				return p.judge(r, lock, event.Result)
			}
		}
	}
}

// judge says what the end of the command means.
func (p *program) judge(r running, lock *client.Lock, result *guard.Result) (int, error) {
	if r.onLost == guard.OnLostIgnore {
		return result.Code, nil
	}
	if result.Cause != "" {
		return 0, runFailure{exitRunLost, fmt.Errorf("%s: the command was gone %s", whyEnded(r, result.Cause, lock), margin(lock, result.Left))}
	}
	if err := lock.Err(); err != nil {
		return 0, runFailure{exitRunLost, fmt.Errorf("the command ended with code %d, but: %w", result.Code, err)}
	}
	return result.Code, nil
}

// margin says how much earlier something was than others may have the lock.
func margin(lock *client.Lock, left time.Duration) string {
	switch err := lock.Err(); {
	case errors.Is(err, client.ReasonRevoked), errors.Is(err, client.ReasonExpired), errors.Is(err, client.ReasonClusterChanged):
		return "when others may have had the lock already"
	case left <= 0:
		return fmt.Sprintf("%v after others may have the lock", -left.Round(time.Millisecond))
	}
	return fmt.Sprintf("%v before others may have the lock", left.Round(time.Millisecond))
}

// promise says what the command gets when the lock is lost, and how early.
func (r *running) promise() string {
	switch r.onLost {
	case guard.OnLostIgnore:
		return "on loss it goes on"
	case guard.OnLostKill:
		return fmt.Sprintf("on loss KILL %v before others may have the lock", r.killBefore)
	}
	return fmt.Sprintf("on loss TERM %v and KILL %v before others may have the lock", r.termBefore, r.killBefore)
}

func whyEnded(r running, cause guard.Cause, lock *client.Lock) string {
	switch err := lock.Err(); {
	case err != nil:
		return oneLine(err.Error())
	case cause == guard.CauseLease && r.maxHold > 0 && lock.State() == client.StateHeld:
		return fmt.Sprintf("its maximum of %v is nearly over", r.maxHold)
	case cause == guard.CauseLease:
		return "the lock could not be renewed in time"
	case cause == guard.CauseGuard:
		return "the guard process was gone or stopped"
	}
	return "the lock is lost"
}

// note tells people what goes on; the command has the same standard error.
func (p *program) note(r running, format string, arguments ...any) {
	if !r.quiet {
		fmt.Fprintln(p.stderr, "pawl run:", oneLine(fmt.Sprintf(format, arguments...)))
	}
}

// environment tells the command what it holds.
func environment(lock *client.Lock) []string {
	tokens := make(map[string]uint64, len(lock.Names()))
	for _, name := range lock.Names() {
		tokens[name] = uint64(lock.TokenOf(name))
	}
	all, _ := json.Marshal(tokens) // strings and numbers
	return []string{
		fmt.Sprintf("PAWL_TOKEN=%d", lock.Token()),
		"PAWL_LOCK=" + lock.Name(),
		"PAWL_SESSION=" + lock.Session(),
		"PAWL_TOKENS=" + string(all),
		"PAWL_LOCKS=" + strings.Join(lock.Names(), ","),
	}
}
