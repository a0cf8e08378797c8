package check

import (
	"slices"

	"github.com/pawl-lock/pawl/jepsen/history"
)

// Requests finds a numbered request that happened twice: OK answers with different tokens, or an OK to one that was sent
// when it was known to be released or cancelled.
type Requests struct{}

// Name is "requests".
func (Requests) Name() string { return "requests" }

// Check looks once at each operation.
func (c Requests) Check(ops []history.Op) Verdict {
	r, v, ok := prepare(c.Name(), ops)
	if !ok {
		return v
	}
	type state struct {
		sent    int
		granted *history.Operation
		ended   *history.Operation // the first that was told to be done
	}
	states := map[request]*state{}
	of := func(op history.Op) *state {
		key := request{op.Session, op.Request}
		if states[key] == nil {
			states[key] = &state{}
		}
		return states[key]
	}
	for _, o := range r.operations {
		in := o.Invoke
		if in.Request == 0 || o.Outcome() != history.OK || in.F != history.Release && in.F != history.Cancel {
			continue
		}
		if s := of(in); s.ended == nil || o.End() < s.ended.End() {
			s.ended = &o
		}
	}
	for _, o := range r.operations {
		in, out := o.Invoke, o.Complete
		if in.Request == 0 || in.F != history.Acquire && in.F != history.Queue {
			continue
		}
		s := of(in)
		s.sent++
		if s.sent == 1 {
			v.Figures["requests"]++
		} else {
			v.Figures["repeats"]++
		}
		if o.Outcome() != history.OK || out.Token == 0 && len(out.Locks) == 0 {
			continue
		}
		if s.ended != nil && s.ended.End() < in.Time {
			v.invalid(slices.Concat(s.ended.Indexes(), o.Indexes()), "request %d of session %s was granted (token %d), though it had been ended by %s",
				in.Request, in.Session, out.Token, s.ended.Invoke.F)
		}
		if s.granted == nil {
			s.granted = &o
			continue
		}
		if first := s.granted.Complete; first.Token != out.Token || !slices.Equal(first.Locks, out.Locks) {
			v.invalid(slices.Concat(s.granted.Indexes(), o.Indexes()), "request %d of session %s was granted twice, with tokens %d and %d",
				in.Request, in.Session, first.Token, out.Token)
		}
	}
	return v.over("requests")
}
