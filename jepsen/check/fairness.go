package check

import (
	"cmp"
	"slices"

	"github.com/pawl-lock/pawl/jepsen/history"
)

// Fairness finds who overtook: of two exclusive requests of the same lock that were both granted, the one whose place in
// the queue was known before the other was sent must have the smaller token. Only numbered requests that were told their
// place (Queue) are judged. Grants in one entry have one token and are no overtaking.
type Fairness struct{}

// Name is "fairness".
func (Fairness) Name() string { return "fairness" }

// Check looks once at each hold, in O(n log n).
func (f Fairness) Check(ops []history.Op) Verdict {
	r, v, ok := prepare(f.Name(), ops)
	if !ok {
		return v
	}
	queued := map[request]history.Operation{}
	for _, o := range r.operations {
		if in := o.Invoke; in.F == history.Queue && o.Outcome() == history.OK {
			if _, found := queued[request{in.Session, in.Request}]; !found {
				queued[request{in.Session, in.Request}] = o
			}
		}
	}
	names, locks := byLock(r.holds)
	for _, name := range names {
		holds := slices.DeleteFunc(locks[name], func(h *hold) bool { return !h.exclusive() || h.request == 0 })
		ranked := slices.Clone(holds)
		slices.SortStableFunc(ranked, func(a, b *hold) int { return cmp.Compare(a.ranks, b.ranks) })
		slices.SortStableFunc(holds, func(a, b *hold) int { return cmp.Compare(a.asked, b.asked) })
		var last *hold // of those that had their place before: who was granted last
		for _, h := range holds {
			for len(ranked) > 0 && ranked[0].ranks < h.asked {
				if last == nil || ranked[0].token > last.token {
					last = ranked[0]
				}
				ranked = ranked[1:]
			}
			if last == nil {
				continue
			}
			v.Figures["pairs"]++
			if last.token > h.token {
				place := queued[request{last.session, last.request}]
				mine := queued[request{h.session, h.request}]
				v.invalid(slices.Concat(place.Indexes(), last.acquire.Indexes(), mine.Indexes(), h.acquire.Indexes()),
					"%s: %s (token %d) overtook %s (token %d), which stood in the queue before", name, who(h), h.token, who(last), last.token)
			}
		}
	}
	return v.over("pairs")
}
