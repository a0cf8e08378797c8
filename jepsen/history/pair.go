package history

import (
	"fmt"
	"math"
	"time"
)

// Forever is later than any time in a history.
const Forever = time.Duration(math.MaxInt64)

// Alone says whether an Op of this name is an event of its own, neither invocation nor completion.
func Alone(f string) bool {
	switch f {
	case Lost, Fault, Heal:
		return true
	}
	return false
}

// Operation is an invocation with its completion.
type Operation struct {
	Invoke   Op
	Complete Op // the zero Op when there is none
}

// Outcome is OK, Fail or Info; an operation that was never completed is Info, for nobody knows what became of it.
func (o Operation) Outcome() Type {
	if o.Complete.Type == "" {
		return Info
	}
	return o.Complete.Type
}

// End is when the operation was completed, Forever when it was not.
func (o Operation) End() time.Duration {
	if o.Complete.Type == "" {
		return Forever
	}
	return o.Complete.Time
}

// Indexes gives those of the invocation and, if there is one, the completion.
func (o Operation) Indexes() []int {
	if o.Complete.Type == "" {
		return []int{o.Invoke.Index}
	}
	return []int{o.Invoke.Index, o.Complete.Index}
}

// Pair joins invocations with their completions, in the order of the invocations. The events that stand alone are left
// out, and so are digests that nobody waited for. Anything else that does not fit is an error: a process that
// begins a second operation before its first has ended or after one ended as Info, a completion of what was not begun.
func Pair(ops []Op) ([]Operation, error) {
	var (
		operations []Operation
		open       = map[int]int{} // process → place in operations
		ended      = map[int]bool{}
		last       time.Duration
	)
	for i, op := range ops {
		if op.Index != i {
			return nil, fmt.Errorf("operation %d has index %d", i, op.Index)
		}
		if op.Time < last {
			return nil, fmt.Errorf("operation %d is older than the one before it", i)
		}
		last = op.Time
		place, pending := open[op.Process]
		switch {
		case Alone(op.F):
			if op.Type != Info {
				return nil, fmt.Errorf("operation %d: %s stands alone, and is never %q", i, op.F, op.Type)
			}
		case op.Type == Invoke && pending:
			return nil, fmt.Errorf("operation %d: process %d begins %s before its %s has ended", i, op.Process, op.F, operations[place].Invoke.F)
		case op.Type == Invoke && ended[op.Process]:
			return nil, fmt.Errorf("operation %d: process %d goes on after an unknown outcome", i, op.Process)
		case op.Type == Invoke:
			open[op.Process] = len(operations)
			operations = append(operations, Operation{Invoke: op})
		case op.Type != OK && op.Type != Fail && op.Type != Info:
			return nil, fmt.Errorf("operation %d has the unknown type %q", i, op.Type)
		case !pending && op.F == Digest:
		case !pending || operations[place].Invoke.F != op.F:
			return nil, fmt.Errorf("operation %d completes %s, which process %d has not begun", i, op.F, op.Process)
		default:
			operations[place].Complete = op
			delete(open, op.Process)
			ended[op.Process] = op.Type == Info
		}
	}
	return operations, nil
}
