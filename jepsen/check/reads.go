package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/pawl-lock/pawl/jepsen/history"
)

// Reads finds looks at exclusive locks that say what was no more true, or lack what was acknowledged: a grant that is
// known and believed in during the whole look must be shown (no acknowledged grant is lost), one that was released before,
// or followed by a newer grant, must not be; and who looks later sees no older index.
type Reads struct{}

// Name is "reads".
func (Reads) Name() string { return "reads" }

// Check looks at each look and the holds around it, in O(n log n).
func (c Reads) Check(ops []history.Op) Verdict {
	r, v, ok := prepare(c.Name(), ops)
	if !ok {
		return v
	}
	_, locks := byLock(r.holds)
	var seen []history.Operation
	for _, o := range r.operations {
		if o.Invoke.F != history.Look || o.Outcome() != history.OK {
			continue
		}
		v.Figures["looks"]++
		seen = append(seen, o)
		c.look(&v, o, locks[o.Invoke.Lock])
	}
	c.indexes(&v, seen)
	return v.over("looks")
}

func (Reads) look(v *Verdict, o history.Operation, holds []*hold) {
	from, to, token, name := o.Invoke.Time, o.End(), o.Complete.Token, o.Invoke.Lock
	// Those that became known before the look began, the newest first: what matters is among the last.
	before, _ := slices.BinarySearchFunc(holds, from, func(h *hold, t time.Duration) int { return cmp.Compare(h.known, t) })
	const back = 64 // grants that overlap: more than there are clients
	for i := before - 1; i >= max(0, before-back); i-- {
		h := holds[i]
		if !h.exclusive() {
			return
		}
		switch {
		case h.until > to && token != h.token:
			v.invalid(append(o.Indexes(), h.shown()...), "%s: %s holds it with token %d, and a look shows %d", name, who(h), h.token, token)
		case h.release != nil && h.release.End() < from && token == h.token:
			v.invalid(append(o.Indexes(), h.shown()...), "%s: a look shows token %d, which was released before", name, token)
		case token != 0 && token < h.token:
			v.invalid(append(o.Indexes(), h.shown()...), "%s: a look shows token %d, though %d was granted before", name, token, h.token)
		}
	}
}

// indexes finds a look that began after another had ended and reflects an older index.
func (Reads) indexes(v *Verdict, looks []history.Operation) {
	ended := slices.Clone(looks)
	slices.SortStableFunc(ended, func(a, b history.Operation) int { return cmp.Compare(a.End(), b.End()) })
	var newest *history.Operation
	for _, o := range looks {
		for len(ended) > 0 && ended[0].End() < o.Invoke.Time {
			if newest == nil || ended[0].Complete.Log > newest.Complete.Log {
				newest = &ended[0]
			}
			ended = ended[1:]
		}
		if newest != nil && o.Complete.Log != 0 && o.Complete.Log < newest.Complete.Log {
			v.invalid(slices.Concat(newest.Indexes(), o.Indexes()), "%s: a look reflects index %d, after one that reflected %d", o.Invoke.Lock, o.Complete.Log, newest.Complete.Log)
		}
	}
}
