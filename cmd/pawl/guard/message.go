//go:build linux

package guard

import (
	"fmt"
	"time"
)

// What happens to the command when the lease is about to end.
const (
	OnLostTerm   = "term"   // TERM, and KILL for what is still there later
	OnLostKill   = "kill"   // KILL, without a warning
	OnLostIgnore = "ignore" // nothing: the storage's check of tokens is all there is
)

// Terms say what is run and when it must be gone.
type Terms struct {
	Command []string `json:"command"`
	OnLost  string   `json:"on_lost"`
	// How much of the lease is left when the command gets TERM (unless OnLost says otherwise), and KILL:
	// LeastBefore <= KillBefore <= TermBefore.
	TermBefore time.Duration `json:"term_before"`
	KillBefore time.Duration `json:"kill_before"`
	// Until is when the lease ends, on the clock that both processes are given.
	Until time.Duration `json:"until"`
}

// LeastBefore is the least KillBefore: the two processes look at the clock every 20 ms, and the second one to act needs time
// to see that the first did not.
const LeastBefore = 100 * time.Millisecond

// Validate says what cannot be meant.
func (t *Terms) Validate() error {
	switch {
	case t.KillBefore < LeastBefore:
		return fmt.Errorf("KILL at %v before the end is too late: the least is %v", t.KillBefore, LeastBefore)
	case len(t.Command) == 0:
		return fmt.Errorf("there is no command to run")
	case t.OnLost != OnLostTerm && t.OnLost != OnLostKill && t.OnLost != OnLostIgnore:
		return fmt.Errorf("on loss the command can get %s, %s or %s, not %q", OnLostTerm, OnLostKill, OnLostIgnore, t.OnLost)
	case t.TermBefore < t.KillBefore:
		return fmt.Errorf("KILL at %v before the end and TERM at %v before it are not in order", t.KillBefore, t.TermBefore)
	}
	return nil
}

// endBefore is how much of the lease is left when the command begins to be ended.
func (t *Terms) endBefore() time.Duration {
	if t.OnLost == OnLostKill {
		return t.KillBefore
	}
	return t.TermBefore
}

// grace is how long the group has between TERM and KILL.
func (t *Terms) grace() time.Duration { return t.TermBefore - t.KillBefore }

// order is what the keeper tells the guard; the first one has Terms.
type order struct {
	Terms  *Terms        `json:"terms,omitempty"`
	Until  time.Duration `json:"until,omitempty"` // the lease lasts longer now
	Signal int           `json:"signal,omitempty"`
	End    Cause         `json:"end,omitempty"`
}

// Cause says why the command was ended; "" is that it ended by itself.
type Cause string

const (
	CauseLease    Cause = "lease"    // the lease was about to end
	CauseLost     Cause = "lost"     // the keeper said that the lock is lost
	CauseOrphaned Cause = "orphaned" // the keeper was gone
	CauseGuard    Cause = "guard"    // the guard was gone or stopped
)

// report is what the guard tells the keeper.
type report struct {
	Started int     `json:"started,omitempty"` // the process group
	Failed  *Failed `json:"failed,omitempty"`
	Stopped int     `json:"stopped,omitempty"` // the signal that suspended the command, as a terminal does
	Ending  *Ending `json:"ending,omitempty"`  // the command is being ended
	Stuck   string  `json:"stuck,omitempty"`   // some process of it cannot be
	Result  *Result `json:"result,omitempty"`
}

// Ending says that the command is being ended, and how much was left of the lease when that began.
type Ending struct {
	Cause Cause         `json:"cause"`
	Left  time.Duration `json:"left"`
}

// Failed says that the command could not be started.
type Failed struct {
	Text     string `json:"text"`
	NotFound bool   `json:"not_found"`
	Denied   bool   `json:"denied"` // it is there and cannot be run
}

// Error implements error.
func (f *Failed) Error() string { return f.Text }

// Result is how the command ended.
type Result struct {
	Code   int   `json:"code"`
	Signal int   `json:"signal"` // that ended it; 0 for none
	Cause  Cause `json:"cause"`
	// Left is how much of the lease was left when the last process was gone.
	Left time.Duration `json:"left"`
}
