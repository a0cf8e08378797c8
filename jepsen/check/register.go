package check

import (
	"cmp"
	"slices"

	"github.com/pawl-lock/pawl/jepsen/history"
)

// LostUpdates finds updates of a register that were acknowledged and are not in its history: read-modify-write is done
// under a lock and each write says what it has replaced, so from the last value one can go back from write to write to the
// first. An acknowledged write that is not met on the way is lost. Values are unique in a run. "lost updates" counts them.
type LostUpdates struct{}

// Name is "lost updates".
func (LostUpdates) Name() string { return "lost updates" }

// Check looks once at each write.
func (l LostUpdates) Check(ops []history.Op) Verdict {
	r, v, ok := prepare(l.Name(), ops)
	if !ok {
		return v
	}
	type register struct {
		writes map[int64]history.Operation // by value, also those of which nobody knows
		ok     []history.Operation
		final  *history.Operation
	}
	registers := map[string]*register{}
	var names []string
	for _, o := range r.operations {
		name := o.Invoke.Lock
		reg := registers[name]
		if reg == nil {
			reg = &register{writes: map[int64]history.Operation{}}
			registers[name] = reg
			names = append(names, name)
		}
		switch {
		case isRead(o):
			reg.final = &o
		case o.Invoke.F != history.Write:
		case o.Outcome() == history.Fail:
			v.Figures["refused writes"]++
			// It stays among the writes: that its value is met is a fault of its own.
			reg.writes[o.Invoke.Value] = o
		default:
			if other, twice := reg.writes[o.Invoke.Value]; twice {
				v.Outcome, v.Why = Unknown, "values are not unique"
				v.Shown = slices.Concat(other.Indexes(), o.Indexes())
				return v
			}
			reg.writes[o.Invoke.Value] = o
			if o.Outcome() == history.OK {
				reg.ok = append(reg.ok, o)
			} else {
				v.Figures["unknown writes"]++
			}
		}
	}
	for _, name := range names {
		reg := registers[name]
		v.Figures["writes"] += int64(len(reg.ok))
		switch {
		case reg.final == nil && len(reg.ok) > 0:
			if v.Outcome == Valid {
				v.Outcome, v.Why = Unknown, name+": its last value was not read"
			}
			continue
		case reg.final == nil:
			continue
		}
		met := map[int64]bool{}
		newer := *reg.final
		for value := reg.final.Complete.Value; value != 0; {
			w, found := reg.writes[value]
			if !found || w.Outcome() == history.Fail || met[value] {
				why := "which nobody wrote"
				if found {
					why = "whose write was refused"
				}
				if met[value] {
					why = "which was written twice"
				}
				v.invalid(slices.Concat(w.Indexes(), newer.Indexes()), "%s: there was the value %d, %s", name, value, why)
				break
			}
			met[value] = true
			if newer.Invoke.F == history.Write && stampBelow(newer.Invoke, w.Invoke) {
				v.invalid(slices.Concat(w.Indexes(), newer.Indexes()), "%s: a write with the older stamp (%d, %d) followed one with (%d, %d)",
					name, newer.Invoke.Token, newer.Invoke.Sequence, w.Invoke.Token, w.Invoke.Sequence)
			}
			newer, value = w, w.Invoke.Previous
		}
		replaced := map[int64]history.Operation{} // by what was replaced: who is met
		for value := range met {
			w := reg.writes[value]
			replaced[w.Invoke.Previous] = w
		}
		for _, w := range reg.ok {
			if met[w.Invoke.Value] {
				continue
			}
			v.Figures["lost updates"]++
			shown := w.Indexes()
			if other, found := replaced[w.Invoke.Previous]; found {
				shown = append(shown, other.Indexes()...)
			}
			v.invalid(append(shown, reg.final.Indexes()...), "%s: the write of %d by %s was acknowledged, and is lost", name, w.Invoke.Value, process(w.Invoke.Process))
		}
	}
	if v.Figures["lost updates"] > 1 {
		v.Why += " (and others)"
	}
	return v.over("writes")
}

// isRead says whether it is the read of what is left in the end, and not whether the lock is free then.
func isRead(o history.Operation) bool {
	return o.Invoke.F == history.Final && o.Invoke.Note != history.Free && o.Outcome() == history.OK
}

// stampBelow compares what fencing compares. Writes without a token have no stamp.
func stampBelow(a, b history.Op) bool {
	if a.Token == 0 || b.Token == 0 {
		return false
	}
	return cmp.Or(cmp.Compare(a.Token, b.Token), cmp.Compare(a.Sequence, b.Sequence)) < 0
}

// Set finds elements that were added with an OK and are not in the final read, and elements in it that were refused or
// never added.
type Set struct{}

// Name is "set".
func (Set) Name() string { return "set" }

// Check looks once at each element.
func (s Set) Check(ops []history.Op) Verdict {
	r, v, ok := prepare(s.Name(), ops)
	if !ok {
		return v
	}
	added, finals := map[string]map[int64]history.Operation{}, map[string]history.Operation{}
	for _, o := range r.operations {
		switch {
		case o.Invoke.F == history.Add:
			if added[o.Invoke.Lock] == nil {
				added[o.Invoke.Lock] = map[int64]history.Operation{}
			}
			added[o.Invoke.Lock][o.Invoke.Value] = o
		case isRead(o):
			finals[o.Invoke.Lock] = o
		}
	}
	for _, o := range r.operations { // in the order of the history, so that the first is shown
		if o.Invoke.F != history.Add {
			continue
		}
		v.Figures["adds"]++
		final, read := finals[o.Invoke.Lock]
		there := slices.Contains(final.Complete.Values, o.Invoke.Value)
		switch {
		case !read:
			if v.Outcome == Valid {
				v.Outcome, v.Why = Unknown, o.Invoke.Lock+": what is left was not read"
			}
		case o.Outcome() == history.OK && !there:
			v.Figures["lost updates"]++
			v.invalid(slices.Concat(o.Indexes(), final.Indexes()), "%s: %d was added and is lost", o.Invoke.Lock, o.Invoke.Value)
		case o.Outcome() == history.Fail && there:
			v.invalid(slices.Concat(o.Indexes(), final.Indexes()), "%s: %d was refused and is there", o.Invoke.Lock, o.Invoke.Value)
		}
	}
	for lock, final := range finals {
		seen := map[int64]bool{}
		for _, value := range final.Complete.Values {
			if _, known := added[lock][value]; !known || seen[value] {
				v.invalid(final.Indexes(), "%s: %d was never added, or is there twice", lock, value)
			}
			seen[value] = true
		}
	}
	return v.over("adds")
}

// Bank finds a read of all accounts whose sum is not what there was in the beginning.
type Bank struct {
	// Total is the sum.
	Total int64
}

// Name is "bank".
func (Bank) Name() string { return "bank" }

// Check looks once at each read.
func (b Bank) Check(ops []history.Op) Verdict {
	r, v, ok := prepare(b.Name(), ops)
	if !ok {
		return v
	}
	for _, o := range r.operations {
		if o.Invoke.F == history.Transfer && o.Outcome() == history.OK {
			v.Figures["transfers"]++
		}
		if o.Invoke.F != history.Read && o.Invoke.F != history.Final || len(o.Complete.Values) == 0 || o.Outcome() != history.OK {
			continue
		}
		v.Figures["reads of all"]++
		sum := int64(0)
		for _, balance := range o.Complete.Values {
			sum += balance
		}
		if sum != b.Total {
			v.invalid(o.Indexes(), "%s saw %d in all accounts together, instead of %d", process(o.Invoke.Process), sum, b.Total)
		}
	}
	if v.Figures["transfers"] == 0 {
		return v.over("transfers")
	}
	return v.over("reads of all")
}
