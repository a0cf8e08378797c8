package check

import (
	"strings"
	"time"

	"github.com/pawl-lock/pawl/jepsen/history"
)

// Leases finds who was freed early: a session that the server says is gone, or a hold that it says is lost, while a lease
// that it told of goes on. (That another was granted the lock meanwhile is for Exclusion to find; that it is not freed
// late, for Wakeups.)
type Leases struct{}

// Name is "leases".
func (Leases) Name() string { return "leases" }

// Check looks once at each operation.
func (l Leases) Check(ops []history.Op) Verdict {
	r, v, ok := prepare(l.Name(), ops)
	if !ok {
		return v
	}
	told := map[string]history.Op{} // the OK with the longest lease, by session
	ended := map[string]bool{}      // by itself or an operator: whoever may have done it
	begun := make(map[int]history.Op, len(r.operations))
	for _, o := range r.operations {
		if o.Complete.Type != "" {
			begun[o.Complete.Index] = o.Invoke
		}
	}
	forced := false
	for _, op := range ops {
		switch {
		case op.F == history.Force:
			forced = true
		case op.F == history.Close && op.Type == history.Invoke:
			ended[op.Session] = true
		case op.Type == history.OK && op.Session != "" && op.Lease > 0:
			v.Figures["leases"]++
			if op.Lease > told[op.Session].Lease {
				told[op.Session] = op
			}
		case op.Type == history.Fail && op.Session != "" && strings.Contains(op.Error, "session_gone"):
			v.Figures["sessions said to be gone"]++
			if lease := told[op.Session]; !forced && !ended[op.Session] && op.Time < lease.Lease {
				v.invalid([]int{lease.Index, begun[op.Index].Index, op.Index},
					"%s was told that its session is gone, %s before the end of its lease", process(op.Process), seconds(lease.Lease-op.Time))
			}
		case op.F == history.Lost && strings.Contains(op.Note, "expired"):
			v.Figures["holds said to be expired"]++
		}
	}
	for _, h := range r.holds {
		l.hold(&v, h, ops)
	}
	return v.over("leases")
}

// hold finds a hold that the server says is expired before its lease has ended.
func (Leases) hold(v *Verdict, h *hold, ops []history.Op) {
	if h.lease == 0 {
		return
	}
	for _, i := range h.ends {
		if op := ops[i]; op.F == history.Lost && strings.Contains(op.Note, "expired") && op.Time < h.lease {
			v.invalid(h.shown(), "%s: %s was told that it is expired, %s before the end of its lease", h.lock, who(h), seconds(h.lease-op.Time))
		}
	}
}

// span is a piece of time.
type span struct{ from, to time.Duration }

// disturbed gives the times in which there were faults, each made longer by settle: elections and reconnections take
// their time. Only Heal ends a fault that has no end of its own. They are in order and do not overlap.
func disturbed(ops []history.Op, settle time.Duration) []span {
	var spans []span
	active := map[uint64]int{} // by Sequence
	add := func(from, to time.Duration) {
		if n := len(spans); n > 0 && from <= spans[n-1].to {
			spans[n-1].to = max(spans[n-1].to, to)
			return
		}
		spans = append(spans, span{from, to})
	}
	begun := time.Duration(-1)
	for _, op := range ops {
		switch {
		case op.F == history.Fault && op.Value == history.Begin:
			if len(active) == 0 {
				begun = op.Time
			}
			active[op.Sequence]++
		case op.F == history.Fault:
			if active[op.Sequence]--; active[op.Sequence] <= 0 {
				delete(active, op.Sequence)
			}
			if begun < 0 { // an end without its beginning: it may have gone on for ever so long
				begun = 0
			}
		case op.F == history.Heal:
			clear(active)
		default:
			continue
		}
		if len(active) == 0 && begun >= 0 {
			add(begun, op.Time+settle)
			begun = -1
		}
	}
	if begun >= 0 {
		add(begun, history.Forever)
	}
	return spans
}

// calm is how much of the time from…to lies outside all spans.
func calm(spans []span, from, to time.Duration) time.Duration {
	quiet := to - from
	for _, s := range spans {
		if s.from >= to {
			break
		}
		if s.to > from {
			quiet -= min(s.to, to) - max(s.from, from)
		}
	}
	return max(quiet, 0)
}
