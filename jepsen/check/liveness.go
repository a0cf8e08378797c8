package check

import (
	"time"

	"github.com/pawl-lock/pawl/jepsen/history"
)

// Liveness finds what does not come back after all faults were healed: an acquire that does not end within the bound, a
// lock that a new client cannot get (a Final that is not OK).
type Liveness struct {
	// Bound is how long an operation may take after the Heal, or after its invocation when that is later, beyond what its
	// client was ready to wait.
	Bound time.Duration
}

// Name is "liveness".
func (Liveness) Name() string { return "liveness" }

// Check is unknown when nothing was healed or there was no final phase.
func (l Liveness) Check(ops []history.Op) Verdict {
	r, v, ok := prepare(l.Name(), ops)
	if !ok || len(ops) == 0 {
		return v.over("final reads")
	}
	heal := history.Forever
	for _, op := range ops {
		switch op.F {
		case history.Heal:
			heal = min(heal, op.Time)
		case history.Fault:
			if op.Value == history.Begin {
				heal = history.Forever
			}
		}
	}
	if heal == history.Forever {
		v.Outcome, v.Why = Unknown, "nothing says that all faults were healed"
		return v
	}
	end := ops[len(ops)-1].Time
	for _, o := range r.operations {
		if o.End() < heal {
			continue
		}
		from := max(heal, o.Invoke.Time)
		took := min(o.End(), end) - from
		switch o.Invoke.F {
		case history.Final:
			v.Figures["final reads"]++
			if o.Outcome() != history.OK {
				v.invalid(o.Indexes(), "%s: %s could not get it after all faults were healed (%s %s)", o.Invoke.Lock, process(o.Invoke.Process), o.Outcome(), o.Complete.Error)
			}
		case history.Acquire, history.Release:
			v.Figures["operations after the faults"]++
		default:
			continue
		}
		v.Figures["slowest in ms"] = max(v.Figures["slowest in ms"], took.Milliseconds())
		if took > l.Bound {
			v.invalid(o.Indexes(), "%s of %s did not end within %s, after all faults were healed", o.Invoke.F, process(o.Invoke.Process), l.Bound)
		}
	}
	return v.over("final reads")
}
