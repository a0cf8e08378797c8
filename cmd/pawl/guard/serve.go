//go:build linux

package guard

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// look is how often the guard compares the clock: its timers do not count the time that the machine was suspended, the
// lease does.
const look = 20 * time.Millisecond

// caught are the signals that would end a guard, or that a terminal sends to it together with the keeper. They are caught
// and not ignored, because what is ignored stays ignored in the command.
var caught = []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGALRM, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU}

// Serve is the guard process: it takes orders from the keeper that started this process, runs the command with its standard
// streams and environment, and returns when nothing of the command is left. now is the clock of the lease, the same in
// all processes of the machine; files is the number that the keeper has given: of the file with the orders, before that for
// reports.
func Serve(now func() time.Duration, files string) error {
	number, err := strconv.Atoi(files)
	if err != nil || number < firstFile || !given(number) || !given(number+1) {
		return errors.New("this process was not started by a keeper")
	}
	// The command must not have them: the keeper sees by their end that the guard is gone.
	syscall.CloseOnExec(number)
	syscall.CloseOnExec(number + 1)
	orders, reports := os.NewFile(uintptr(number), "orders"), os.NewFile(uintptr(number+1), "reports")
	// The parent-death signal of the command comes when the thread ends that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for _, s := range caught {
		if !signal.Ignored(s) { // nohup stays nohup
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
	decoder := json.NewDecoder(orders)
	var first order
	if err := decoder.Decode(&first); err != nil {
		return err
	}
	if first.Terms == nil {
		return errors.New("the first order has no terms")
	}
	if err := first.Terms.Validate(); err != nil {
		return err
	}
	if err := adopt(); err != nil {
		return err
	}
	w := &watch{Terms: *first.Terms, now: now, reports: json.NewEncoder(reports)}
	return w.run(decoder)
}

// watch is the guard's view of one command.
type watch struct {
	Terms
	now     func() time.Duration
	reports *json.Encoder

	group  int
	cause  Cause
	killAt time.Duration // once the command is being ended; 0 before
	stuck  bool          // and that was told
}

// tell reports to the keeper. A keeper that is gone is noticed by its orders' end.
func (w *watch) tell(r report) { _ = w.reports.Encode(r) }

func (w *watch) run(decoder *json.Decoder) error {
	if w.OnLost != OnLostIgnore && w.Until-w.now() <= w.endBefore() {
		w.tell(report{Failed: &Failed{Text: "the lease was almost over before the command could be started"}})
		return nil
	}
	command := exec.Command(w.Command[0], w.Command[1:]...)
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.SysProcAttr = attributes()
	if err := command.Start(); err != nil {
		w.tell(report{Failed: &Failed{
			Text:     err.Error(),
			NotFound: errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist),
			Denied:   errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOEXEC),
		}})
		return nil
	}
	w.group = command.Process.Pid
	w.tell(report{Started: w.group})

	orders := make(chan order)
	go func() {
		defer close(orders)
		for {
			var next order
			if decoder.Decode(&next) != nil {
				return
			}
			orders <- next
		}
	}()
	statuses := make(chan syscall.WaitStatus, 1)
	go reap(func(pid int, status syscall.WaitStatus) {
		if pid == w.group {
			statuses <- status
		}
	})
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case next, open := <-orders:
			if !open {
				orders = nil
				w.end(CauseOrphaned)
				continue
			}
			w.follow(next)
		case status := <-statuses:
			if status.Stopped() {
				w.tell(report{Stopped: int(status.StopSignal())})
				continue
			}
			return w.finish(status, orders)
		case <-ticker.C:
			w.judge()
		}
	}
}

func (w *watch) follow(next order) {
	w.Until = max(w.Until, next.Until)
	if next.Signal > 0 {
		// To the group, as a terminal would: who made one of his own does not want it.
		_ = syscall.Kill(-w.group, syscall.Signal(next.Signal)) // it may be gone
	}
	if next.End != "" {
		w.end(next.End)
	}
	w.judge()
}

// judge does what is due. What has begun is not taken back by a renewal that comes late.
func (w *watch) judge() {
	if w.OnLost == OnLostIgnore {
		return
	}
	now := w.now()
	if w.cause == "" && now >= w.Until-w.endBefore() {
		w.end(CauseLease)
	}
	if w.cause != "" && (now >= w.killAt || now >= w.Until-w.KillBefore) {
		w.killGroup()
		w.kill(family())
	}
}

// kill is called again and again until nothing is left: some of them may be making children.
func (w *watch) kill(members []member) { w.send(members, syscall.SIGKILL) }

// killGroup kills most of them, and is quicker than looking for all. The number is the command's as long as that was not
// waited for.
func (w *watch) killGroup() { _ = syscall.Kill(-w.group, syscall.SIGKILL) }

func (w *watch) send(members []member, s syscall.Signal) {
	if err := signalAll(members, s); err != nil && !w.stuck {
		w.stuck = true
		w.tell(report{Stuck: err.Error()})
	}
}

// end has the command end within the grace, and no later than the lease wants it.
func (w *watch) end(cause Cause) {
	if w.cause != "" || w.OnLost == OnLostIgnore {
		return
	}
	w.cause = cause
	w.tell(report{Ending: &Ending{Cause: cause, Left: w.Until - w.now()}})
	w.terminate(family())
	w.judge()
}

func (w *watch) terminate(members []member) {
	w.killAt = w.now()
	if w.OnLost != OnLostKill {
		w.killAt += w.grace()
		w.send(members, syscall.SIGTERM)
		// One that is stopped could not obey before it is killed. With the lock lost it had better stay where it is.
		if w.cause != CauseLost {
			w.send(members, syscall.SIGCONT)
		}
	}
}

// finish ends what the command has left, and reports when nothing of it is: only then the lock may be given back. When the
// command ended by itself, what it has put into a session of its own, as daemons are, may stay.
func (w *watch) finish(status syscall.WaitStatus, orders <-chan order) error {
	own := session()
	left := func() []member {
		members := family()
		if w.cause == "" {
			members = slices.DeleteFunc(members, func(m member) bool { return m.session != own })
		}
		return members
	}
	members := left()
	if w.killAt == 0 && len(members) > 0 {
		w.terminate(members)
	}
	for ; len(members) > 0; members = left() {
		select {
		case next, open := <-orders:
			if !open {
				orders = nil
				continue
			}
			w.Until = max(w.Until, next.Until)
		case <-time.After(look / 4):
		}
		if now := w.now(); now >= w.killAt || (w.OnLost != OnLostIgnore && now >= w.Until-w.KillBefore) {
			w.kill(members)
		}
	}
	w.tell(report{Result: resultOf(status, w.cause, w.Until-w.now())})
	return nil
}

func resultOf(status syscall.WaitStatus, cause Cause, left time.Duration) *Result {
	r := &Result{Code: status.ExitStatus(), Cause: cause, Left: left}
	if status.Signaled() {
		r.Signal = int(status.Signal())
		r.Code = 128 + r.Signal
	}
	return r
}
