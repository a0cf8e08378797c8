package runner

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pawl-lock/pawl/jepsen/check"
	"github.com/pawl-lock/pawl/jepsen/nemesis"
	"github.com/pawl-lock/pawl/jepsen/workload"
)

// returns bounds how long anything may take once all faults are healed: the longest wait of a client, an election, the
// longest lease.
const returns = 60 * time.Second

// promptly is how long a lock may lie idle in virtual time, where nothing but the protocol takes time: 3 ms were seen.
const promptly = 250 * time.Millisecond

// mustFail follows the name of the checker that a workload exists to have fail.
const mustFail = " (must fail)"

// judge has all checkers look at the run: the workload's, and those for every run.
func judge(w workload.Workload, r *Result) {
	for _, c := range append(w.Checkers(), always(r)...) {
		if w, found := c.(check.Wakeups); found && r.Spec.Cluster == "virtual" {
			w.Idle = promptly
			c = w
		}
		v := c.Check(r.Ops)
		if v.Checker == w.MustFail() {
			r.Expected, v.Checker = v, v.Checker+mustFail
			if v.Outcome == check.Invalid {
				v.Outcome = check.Valid
			}
		}
		r.Verdicts = append(r.Verdicts, v)
	}
	r.Verdicts = append(r.Verdicts, faults(r))
}

// judgeAll has these checkers, and those for every run, look at the run.
func judgeAll(checkers []check.Checker, r *Result) {
	for _, c := range append(slices.Clone(checkers), always(r)...) {
		r.Verdicts = append(r.Verdicts, c.Check(r.Ops))
	}
}

// always are the checkers for every run.
func always(r *Result) []check.Checker {
	return []check.Checker{check.Liveness{Bound: returns}, check.Digests{Nodes: r.Spec.Nodes}, check.Logs{Texts: r.Logs}}
}

// faults says whether the faults were made, and healed, as they were meant to be; a run without the one that it is about proves nothing.
func faults(r *Result) check.Verdict {
	v := check.Verdict{Checker: "faults", Outcome: check.Valid, Figures: map[string]int64{}}
	for name, count := range r.Nemesis.Begun {
		v.Figures[name] = int64(count)
		v.Figures["all"] += int64(count)
	}
	switch {
	case len(r.Nemesis.Failed) > 0:
		v.Outcome = check.Invalid
		v.Why = fmt.Sprintf("%.500s", strings.Join(r.Nemesis.Failed, "; "))
	case v.Figures["all"] == 0 && r.Spec.Fault != nemesis.None:
		v.Outcome, v.Why = check.Unknown, "there was no fault"
	}
	return v
}
