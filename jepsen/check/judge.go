package check

import (
	"fmt"
	"slices"
	"time"

	"github.com/pawl-lock/pawl/jepsen/history"
)

// run is what most checkers begin with.
type run struct {
	operations []history.Operation
	holds      []*hold
}

// prepare gives false, with the verdict, for a history that cannot be: nothing that is based on it would be worth a thing.
func prepare(name string, ops []history.Op) (run, Verdict, bool) {
	operations, err := history.Pair(ops)
	if err != nil {
		return run{}, Verdict{Checker: name, Outcome: Unknown, Why: "the history cannot be: " + err.Error()}, false
	}
	return run{operations, gather(ops, operations)}, Verdict{Checker: name, Outcome: Valid, Figures: map[string]int64{}}, true
}

// invalid makes the verdict the first violation that is found; further ones are only counted.
func (v *Verdict) invalid(shown []int, why string, values ...any) {
	v.Figures["violations"]++
	if v.Outcome == Invalid {
		return
	}
	v.Outcome, v.Why = Invalid, fmt.Sprintf(why, values...)
	shown = slices.Clone(shown)
	slices.Sort(shown)
	v.Shown = slices.Compact(shown)
}

// over makes a pass over nothing unknown: figure is what must not be 0.
func (v Verdict) over(figure string) Verdict {
	if v.Outcome == Valid && v.Figures[figure] == 0 {
		v.Outcome, v.Why = Unknown, "there was nothing to judge: no "+figure
	}
	return v
}

// seconds is how a verdict says a time.
func seconds(d time.Duration) string { return d.Round(time.Microsecond).String() }

// who is how a verdict names the holder.
func who(h *hold) string { return process(h.process) }

func process(number int) string { return fmt.Sprintf("process %d", number) }
