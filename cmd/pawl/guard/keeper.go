//go:build linux

package guard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Config says how Start makes a guard.
type Config struct {
	Terms
	Guard  []string // program and arguments of a process that calls Serve with the number that it gets as a further argument
	Env    []string // of the command
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Now    func() time.Duration // the clock of the lease, the same in all processes of the machine
}

// Guarded is a command that runs under guard. It is safe for concurrent use.
type Guarded struct {
	terms  Terms
	now    func() time.Duration
	guard  *os.Process
	group  int
	events chan Event

	mu     sync.Mutex // over orders, which must not be mixed
	until  time.Duration
	endBy  time.Duration // when the guard must have done what End said; 0 before
	orders *os.File
}

// Event is what happens to the command: it was suspended, is being ended, cannot be, or has ended. The last one has a Result.
type Event struct {
	Stopped syscall.Signal
	Ending  *Ending
	Stuck   string
	Result  *Result
}

// Start starts a guard and, with it, the command. It blocks until the command runs; when that cannot be, the error is a
// *Failed. This process must have no other children: Start waits for all of them from now on.
func Start(c Config) (*Guarded, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := adopt(); err != nil {
		return nil, fmt.Errorf("becoming the parent of orphans: %w", err)
	}
	ordersRead, orders, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ordersRead.Close()
	reports, reportsWrite, err := os.Pipe()
	if err != nil {
		orders.Close()
		return nil, err
	}
	defer reportsWrite.Close()
	free, files := inherited()
	defer func() {
		for _, file := range files {
			_ = file.Close() // of the copies; a nil one only says so
		}
	}()
	process := exec.Command(c.Guard[0], append(c.Guard[1:len(c.Guard):len(c.Guard)], strconv.Itoa(free))...)
	process.Env = c.Env
	process.Stdin, process.Stdout, process.Stderr = c.Stdin, c.Stdout, c.Stderr
	process.ExtraFiles = append(files[:len(files):len(files)], ordersRead, reportsWrite)
	// Not the keeper's group: what stops or ends that, as a terminal does, must not reach the guard.
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := process.Start(); err != nil {
		orders.Close()
		reports.Close()
		return nil, fmt.Errorf("starting the guard: %w", err)
	}
	g := &Guarded{terms: c.Terms, now: c.Now, guard: process.Process, events: make(chan Event), until: c.Until, orders: orders}
	go reap(func(int, syscall.WaitStatus) {})
	decoder := json.NewDecoder(reports)
	g.send(order{Terms: &c.Terms})
	// A guard that is stopped at this moment may have started the command already.
	_ = reports.SetReadDeadline(time.Now().Add(max(min(startWithin, g.left()-c.endBefore()), look)))
	var first report
	if err := decoder.Decode(&first); err != nil || first.Started == 0 {
		g.orders.Close()
		reports.Close()
		g.takeOver()
		if first.Failed != nil {
			return nil, first.Failed
		}
		return nil, errors.New("the guard did not start the command in time")
	}
	_ = reports.SetReadDeadline(time.Time{})
	g.group = first.Started
	go g.follow(decoder, reports)
	return g, nil
}

// Group is the command's process group.
func (g *Guarded) Group() int { return g.group }

// Events gives what happens; after the one with a Result it is closed. Somebody must read it.
func (g *Guarded) Events() <-chan Event { return g.events }

// Extend says that the lease lasts until then.
func (g *Guarded) Extend(until time.Duration) {
	g.mu.Lock()
	longer := until > g.until
	g.until = max(g.until, until)
	g.mu.Unlock()
	if longer {
		g.send(order{Until: until})
	}
}

// Signal sends a signal to the command's group.
func (g *Guarded) Signal(s syscall.Signal) { g.send(order{Signal: int(s)}) }

// End has the command get TERM and, a little later, KILL.
func (g *Guarded) End(cause Cause) {
	g.mu.Lock()
	if g.terms.OnLost != OnLostIgnore && g.endBy == 0 {
		g.endBy = g.now() + g.terms.grace() + g.terms.KillBefore
	}
	g.mu.Unlock()
	g.send(order{End: cause})
}

// startWithin bounds how long a guard may take to start the command.
const startWithin = 5 * time.Second

// sendWithin bounds a write to a guard that does not read, because it is stopped: it is killed when the lease is about to
// end, and till then nothing but the pipe's buffer may be waited for.
const sendWithin = 100 * time.Millisecond

func (g *Guarded) send(o order) {
	g.mu.Lock()
	defer g.mu.Unlock()
	// What could not be written, or only in part, ends the guard's orders, and so the group.
	_ = g.orders.SetWriteDeadline(time.Now().Add(sendWithin))
	_ = json.NewEncoder(g.orders).Encode(o)
}

// left is how much is left of the lease.
func (g *Guarded) left() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.until - g.now()
}

// follow passes on what the guard reports, and takes the guard's place when that is gone or does not act in time.
func (g *Guarded) follow(decoder *json.Decoder, reports *os.File) {
	defer close(g.events)
	done := make(chan struct{})
	defer close(done)
	told := make(chan report)
	go func() {
		defer reports.Close()
		defer close(told)
		for {
			var next report
			if decoder.Decode(&next) != nil {
				return
			}
			select {
			case told <- next:
			case <-done:
				return
			}
		}
	}()
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	late := 0
	for {
		select {
		case next, open := <-told:
			if !open {
				g.events <- Event{Result: g.takeOver()}
				return
			}
			g.events <- Event{Stopped: syscall.Signal(next.Stopped), Ending: next.Ending, Stuck: next.Stuck, Result: next.Result}
			if next.Result != nil {
				return
			}
		case <-ticker.C:
			if !g.overdue() {
				late = 0
				continue
			}
			// When it was the keeper that was stopped, the guard has done it long ago, and its report is about to be read.
			if late++; late > 1 {
				g.events <- Event{Result: g.takeOver()}
				return
			}
		}
	}
}

// overdue says whether the guard should have ended the command by now: it does so at KillBefore.
func (g *Guarded) overdue() bool {
	if g.terms.OnLost == OnLostIgnore {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	// The guard has so long to see the time, and to report that nothing is left.
	given := min(max(g.terms.KillBefore/4, 2*look), LeastBefore)
	return g.until-now <= g.terms.KillBefore-given || g.endBy != 0 && now >= g.endBy
}

// takeOver ends the command in the guard's place: at once, because how long the guard was gone is not known. The guard is one
// of the family, and what it leaves behind is, too.
func (g *Guarded) takeOver() *Result {
	stuck := false
	if g.group != 0 {
		_ = syscall.Kill(-g.group, syscall.SIGKILL) // most of them, and quicker than looking for all
	}
	for members := family(); len(members) > 0; members = family() {
		if err := signalAll(members, syscall.SIGKILL); err != nil && !stuck && g.group != 0 {
			stuck = true
			g.events <- Event{Stuck: err.Error()}
		}
		time.Sleep(look / 4)
	}
	return &Result{Code: 128 + int(syscall.SIGKILL), Signal: int(syscall.SIGKILL), Cause: CauseGuard, Left: g.left()}
}
