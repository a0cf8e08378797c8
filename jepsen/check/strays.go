package check

import "github.com/pawl-lock/pawl/jepsen/history"

// Strays finds a release that was done although it named the token of another grant: it must be refused, so that no late or
// mistaken message ends a hold that it does not mean. (Whose hold it ended, Exclusion finds.)
type Strays struct{}

// Name is "strays".
func (Strays) Name() string { return "strays" }

// Check looks once at each operation.
func (s Strays) Check(ops []history.Op) Verdict {
	r, v, ok := prepare(s.Name(), ops)
	if !ok {
		return v
	}
	for _, o := range r.operations {
		if o.Invoke.F != history.Stray || o.Outcome() == history.Info {
			continue
		}
		v.Figures["strays"]++
		if o.Outcome() == history.OK {
			v.invalid(o.Indexes(), "process %d released with token %d, which is of another grant", o.Invoke.Process, o.Invoke.Token)
		}
	}
	return v.over("strays")
}
