package guard

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// as makes this test binary one of the two processes; asGuard says what the keeper starts as its guard; revokeAfter has it
// say after some time that the lock is lost.
const (
	as          = "PAWL_GUARD_TEST_AS"
	asGuard     = "PAWL_GUARD_TEST_GUARD"
	revokeAfter = "PAWL_GUARD_TEST_REVOKE"
)

// A lease in these tests, and when its group must be gone.
const (
	lease      = 1500 * time.Millisecond
	termBefore = 800 * time.Millisecond
	killBefore = 400 * time.Millisecond
	patience   = 30 * time.Second
)

func TestMain(m *testing.M) {
	switch os.Getenv(as) {
	case "guard":
		if err := Serve(boottime, os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "hung guard":
		select {}
	case "keeper":
		keep(os.Args[1:])
		os.Exit(0)
	}
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // they wait more than they work
	os.Exit(m.Run())
}

func boottime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(err)
	}
	return time.Duration(now.Nano())
}

// told is what the keeper process says.
type told struct {
	Group, Guard int
	Until        time.Duration
	Ending       *Ending
	Result       *Result
	Failed       *Failed
	Error        string
}

// keep is the keeper process: it renews the lease so many times, as the first argument says, and then lets it end.
func keep(arguments []string) {
	say := func(t told) { _ = json.NewEncoder(os.Stdout).Encode(t) }
	renewals, _ := strconv.Atoi(arguments[0])
	until := boottime() + lease
	g, err := Start(Config{
		Terms: Terms{Command: arguments[2:], OnLost: arguments[1], TermBefore: termBefore, KillBefore: killBefore, Until: until},
		Guard: []string{os.Args[0]}, Env: append(os.Environ(), as+"="+cmp.Or(os.Getenv(asGuard), "guard")), Stdin: os.Stdin, Stdout: os.Stderr, Stderr: os.Stderr, Now: boottime,
	})
	if failed := (*Failed)(nil); errors.As(err, &failed) {
		say(told{Failed: failed})
		return
	} else if err != nil {
		say(told{Error: err.Error()})
		return
	}
	say(told{Group: g.Group(), Guard: g.guard.Pid, Until: until})
	renew := time.NewTicker(lease / 3)
	var revoked <-chan time.Time
	if after, err := time.ParseDuration(os.Getenv(revokeAfter)); err == nil {
		revoked = time.After(after)
	}
	for {
		select {
		case <-revoked:
			g.End(CauseLost)
		case event := <-g.Events():
			if event.Ending != nil {
				say(told{Ending: event.Ending})
			}
			if event.Result != nil {
				say(told{Result: event.Result})
				return
			}
		case <-renew.C:
			if renewals == 0 {
				continue
			}
			renewals--
			until = boottime() + lease
			g.Extend(until)
			say(told{Until: until})
		}
	}
}

// kept is a keeper process and what it said.
type kept struct {
	t       *testing.T
	process *exec.Cmd
	said    chan told
	output  *strings.Builder // of the command; to be read after the end
}

func start(t *testing.T, renewals int, onLost, stdin string, command ...string) *kept {
	t.Helper()
	return startWith(t, nil, renewals, onLost, stdin, command...)
}

func startWith(t *testing.T, environment []string, renewals int, onLost, stdin string, command ...string) *kept {
	t.Helper()
	k := &kept{t: t, said: make(chan told, 1000), output: &strings.Builder{}}
	k.process = exec.Command(os.Args[0], append([]string{strconv.Itoa(renewals), onLost}, command...)...)
	k.process.Env = append(append(os.Environ(), as+"=keeper"), environment...)
	k.process.Stdin = strings.NewReader(stdin)
	k.process.Stderr = k.output
	k.process.WaitDelay = patience // the command may outlive the keeper, with the streams
	out, err := k.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := k.process.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(k.said)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var next told
			if json.Unmarshal(lines.Bytes(), &next) == nil {
				k.said <- next
			}
		}
	}()
	t.Cleanup(func() {
		_ = k.process.Process.Signal(syscall.SIGCONT)
		_ = k.process.Process.Kill()
		_ = k.process.Wait()
	})
	return k
}

// await gives the first of what the keeper says that fits, and the end of the lease by then.
func (k *kept) await(fits func(told) bool) (told, time.Duration) {
	k.t.Helper()
	var until time.Duration
	for limit := time.After(patience); ; {
		select {
		case next, open := <-k.said:
			if !open {
				_ = k.process.Wait()
				k.t.Fatalf("the keeper ended; output: %s", k.output)
			}
			until = max(until, next.Until)
			if fits(next) {
				return next, until
			}
		case <-limit:
			k.t.Fatal("the keeper said nothing that fits")
		}
	}
}

func (k *kept) started() told {
	k.t.Helper()
	first, _ := k.await(func(told) bool { return true })
	if first.Group == 0 {
		k.t.Fatalf("not started: %+v", first)
	}
	return first
}

func (k *kept) result() *Result {
	k.t.Helper()
	last, _ := k.await(func(next told) bool { return next.Result != nil })
	return last.Result
}

// stalls notices how long the machine let this process wait for a processor: no limit can be kept meanwhile. It returns
// whether what came too late can be laid to that.
func stalls(t *testing.T) (excuse func() bool) {
	const beat = 5 * time.Millisecond
	var worst atomic.Int64
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	go func() {
		for {
			began := time.Now()
			select {
			case <-stop:
				return
			case <-time.After(beat):
			}
			worst.Store(max(worst.Load(), int64(time.Since(began)-beat)))
		}
	}()
	return func() bool {
		stalled := time.Duration(worst.Load())
		if stalled > killBefore/4 { // what is to be done in that time takes several turns
			t.Logf("the machine was so busy that a process had to wait for %v", stalled)
			return true
		}
		return false
	}
}

// gone waits until no process of the group lives, and says how much was left of the lease then.
func gone(t *testing.T, group int, until time.Duration) time.Duration {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if !anyAlive(t, group) {
			return until - boottime()
		}
	}
	t.Fatal("the group is still there")
	return 0
}

// anyAlive looks for processes of the group that have not ended; one that nobody waited for has.
func anyAlive(t *testing.T, group int) bool {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range stats {
		content, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state parent group …
		fields := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))
		if fields[2] == strconv.Itoa(group) && fields[0] != "Z" && fields[0] != "X" {
			return true
		}
	}
	return false
}

// stubborn is a command that ignores TERM, and so does what it left in its group.
var stubborn = []string{"sh", "-c", `trap "" TERM; sh -c 'trap "" TERM; while :; do sleep 0.2; done' & while :; do sleep 0.2; done`}

func TestEndsOfCommands(t *testing.T) {
	for name, test := range map[string]struct {
		stdin, script, output string
		code, signal          int
	}{
		"code":           {script: "exit 7", code: 7},
		"signal":         {script: "kill -USR1 $$", code: 128 + int(syscall.SIGUSR1), signal: int(syscall.SIGUSR1)},
		"standard input": {stdin: "hello", script: "cat >&2", output: "hello"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := start(t, 100, OnLostTerm, test.stdin, "sh", "-c", test.script)
			k.started()
			if r := k.result(); r.Code != test.code || r.Signal != test.signal || r.Cause != "" {
				t.Errorf("result %+v", r)
			}
			_ = k.process.Wait()
			if k.output.String() != test.output {
				t.Errorf("output %q", k.output)
			}
		})
	}
}

func TestCommandsThatCannotRun(t *testing.T) {
	t.Parallel()
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("no program"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"no-such-command-here", plain} {
		k := start(t, 0, OnLostTerm, "", command)
		said, _ := k.await(func(told) bool { return true })
		if said.Failed == nil || said.Failed.NotFound == (command == plain) || said.Failed.Denied != (command == plain) {
			t.Errorf("%s: %+v", command, said)
		}
	}
}

// A lease that is not renewed: TERM comes early enough to be obeyed, and KILL before the end.
func TestLeaseEnds(t *testing.T) {
	t.Parallel()
	excuse := stalls(t)
	k := start(t, 2, OnLostTerm, "", "sh", "-c", `trap "echo obeyed >&2; exit 3" TERM; while :; do sleep 0.05; done`)
	k.started()
	if r := k.result(); r.Code != 3 || r.Cause != CauseLease || r.Left < killBefore || r.Left > termBefore {
		t.Errorf("one that obeys: %+v", r)
	}
	k = start(t, 2, OnLostTerm, "", stubborn...)
	k.started()
	// On a busy machine the keeper may be the quicker one.
	if r := k.result(); r.Signal != int(syscall.SIGKILL) || r.Cause != CauseLease && r.Cause != CauseGuard || r.Left > killBefore || r.Left <= 0 && !excuse() {
		t.Errorf("one that does not: %+v", r)
	}
	k = start(t, 0, OnLostKill, "", "sh", "-c", `trap "echo obeyed >&2; exit 3" TERM; while :; do sleep 0.05; done`)
	k.started()
	if r := k.result(); r.Signal != int(syscall.SIGKILL) || r.Left > killBefore || r.Left <= 0 && !excuse() {
		t.Errorf("one that is not asked: %+v", r)
	}
	k = start(t, 0, OnLostTerm, "", "sh", "-c", `trap "exit 3" TERM; kill -STOP $$; while :; do sleep 0.05; done`)
	k.started()
	if r := k.result(); r.Code != 3 || r.Left < killBefore {
		t.Errorf("one that was stopped: %+v", r)
	}
	k = start(t, 0, OnLostIgnore, "", "sleep", "2")
	k.started()
	if r := k.result(); r.Code != 0 || r.Cause != "" || r.Left > 0 {
		t.Errorf("one that is let alone: %+v", r)
	}
}

// What the command leaves in its group does not outlive it, and ends before the lock would be given back.
func TestLeftBehind(t *testing.T) {
	t.Parallel()
	k := start(t, 100, OnLostTerm, "", "sh", "-c", `sh -c 'trap "" TERM; while :; do sleep 0.05; done' & exit 5`)
	first := k.started()
	if r := k.result(); r.Code != 5 || r.Cause != "" {
		t.Errorf("%+v", r)
	}
	if anyAlive(t, first.Group) {
		t.Error("something is left in the group")
	}
}

// Whichever of the two processes is killed or stopped, the group is gone before the lease ends.
func TestEitherProcessFails(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		for _, victim := range []string{"keeper", "guard"} {
			t.Run(fmt.Sprint(victim, " ", signal), func(t *testing.T) {
				t.Parallel()
				excuse := stalls(t)
				renewals := 100
				if victim == "guard" && signal == syscall.SIGSTOP {
					renewals = 3 // a guard that is stopped is missed when the lease is about to end, not before
				}
				k := start(t, renewals, OnLostTerm, "", stubborn...)
				first := k.started()
				_, until := k.await(func(next told) bool { return next.Until != 0 }) // it lives from renewals
				pid := first.Guard
				if victim == "keeper" {
					pid = k.process.Process.Pid
				}
				if err := syscall.Kill(pid, signal); err != nil {
					t.Fatal(err)
				}
				if victim == "guard" && signal == syscall.SIGSTOP {
					// The keeper renews on, and ends the group only when the lease does.
					last, until := k.await(func(next told) bool { return next.Result != nil })
					if r := last.Result; r.Cause != CauseGuard || until == 0 || r.Left <= 0 && !excuse() {
						t.Errorf("%+v", r)
					}
					if anyAlive(t, first.Group) {
						t.Error("something is left in the group")
					}
					return
				}
				if left := gone(t, first.Group, until); left <= 0 && !excuse() {
					t.Errorf("the group was gone %v after the lease", -left)
				} else {
					t.Logf("gone %v before the end of the lease", left)
				}
				if victim == "keeper" && signal == syscall.SIGSTOP {
					if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
						t.Fatal(err)
					}
				}
				if !(victim == "keeper" && signal == syscall.SIGKILL) {
					want := map[string]Cause{"keeper": CauseLease, "guard": CauseGuard}[victim]
					if r := k.result(); r.Cause != want {
						t.Errorf("%+v, not %q", r, want)
					}
				}
			})
		}
	}
}

// A lock that is revoked while the guard is stopped: the keeper ends the command, also if it goes on to hold the session.
func TestRevokedWhileTheGuardIsStopped(t *testing.T) {
	t.Parallel()
	k := startWith(t, []string{revokeAfter + "=300ms"}, 100, OnLostTerm, "", stubborn...)
	first := k.started()
	if err := syscall.Kill(first.Guard, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if r := k.result(); r.Cause != CauseGuard || r.Left <= 0 {
		t.Errorf("%+v", r)
	}
	if anyAlive(t, first.Group) {
		t.Error("something is left")
	}
}

// Processes with groups and sessions of their own do not outlive the lease; a daemon may outlive a command that ended by
// itself.
func TestDescendants(t *testing.T) {
	for name, script := range map[string]string{
		"timeout":     `timeout 60 sh -c 'echo $$ >&2; while :; do sleep 0.05; done'; true`,
		"job control": `set -m; sh -c 'echo $$ >&2; trap "" TERM; while :; do sleep 0.05; done' & wait`,
		"session":     `setsid sh -c 'echo $$ >&2; trap "" TERM; while :; do sleep 0.05; done' & wait`,
		"orphan":      `(setsid sh -c 'echo $$ >&2; trap "" TERM; while :; do sleep 0.05; done' &); while :; do sleep 0.05; done`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := start(t, 0, OnLostTerm, "", "bash", "-c", script)
			k.started()
			// On a busy machine the keeper may be the quicker one.
			if r := k.result(); r.Cause != CauseLease && r.Cause != CauseGuard || r.Left <= 0 {
				t.Errorf("%+v", r)
			}
			_ = k.process.Wait()
			pid, err := strconv.Atoi(strings.TrimSpace(k.output.String()))
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(pid, 0); err == nil {
				t.Errorf("process %d is left", pid)
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		})
	}
	t.Run("daemon", func(t *testing.T) {
		t.Parallel()
		k := start(t, 100, OnLostTerm, "", "sh", "-c", `setsid sh -c 'echo $$ >&2; exec sleep 60' >/dev/null & sleep 0.2`)
		k.started()
		if r := k.result(); r.Cause != "" || r.Code != 0 {
			t.Errorf("%+v", r)
		}
		_ = k.process.Process.Kill()
		time.Sleep(50 * time.Millisecond)
		pid, err := strconv.Atoi(strings.TrimSpace(k.output.String()))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Errorf("the daemon did not stay: %v", err)
		}
	})
}

// A process that has ended and that nobody waits for is no reason to keep the lock.
func TestZombie(t *testing.T) {
	t.Parallel()
	k := start(t, 100, OnLostTerm, "", "sh", "-c", `( sleep 0.2 & exec setsid sleep 5 ) & sleep 0.5; exit 3`)
	k.started()
	began := time.Now()
	if r := k.result(); r.Code != 3 || r.Cause != "" {
		t.Errorf("%+v", r)
	}
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("it took %v", took)
	}
}

// A guard that is stopped before it says that the command runs is not waited for longer than the lease lasts.
func TestGuardHangsAtTheStart(t *testing.T) {
	t.Parallel()
	began := time.Now()
	k := startWith(t, []string{asGuard + "=hung guard"}, 0, OnLostTerm, "", "true")
	said, _ := k.await(func(told) bool { return true })
	if said.Error == "" || time.Since(began) > patience/2 {
		t.Errorf("%+v after %v", said, time.Since(began))
	}
}

func TestTerms(t *testing.T) {
	good := Terms{Command: []string{"true"}, OnLost: OnLostTerm, TermBefore: time.Second, KillBefore: LeastBefore}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Terms){
		"no command":     func(t *Terms) { t.Command = nil },
		"on loss":        func(t *Terms) { t.OnLost = "pray" },
		"late":           func(t *Terms) { t.KillBefore = LeastBefore - 1 },
		"in wrong order": func(t *Terms) { t.TermBefore = LeastBefore - 1 },
	} {
		bad := good
		if change(&bad); bad.Validate() == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
