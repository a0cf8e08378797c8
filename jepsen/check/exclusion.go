package check

import (
	"cmp"
	"slices"

	"github.com/pawl-lock/pawl/jepsen/history"
)

// Exclusion finds two holders who both believed to hold what only one can: an exclusive lock and anything beside it, or
// more than Limit of a semaphore. This is more than storage with fencing needs, and all that a lock server can promise: by
// the client's rule of leases belief ends before the server may grant again.
type Exclusion struct{}

// Name is "exclusion".
func (Exclusion) Name() string { return "exclusion" }

// Check looks once at each hold, in O(n log n).
func (e Exclusion) Check(ops []history.Op) Verdict {
	r, v, ok := prepare(e.Name(), ops)
	if !ok {
		return v
	}
	names, locks := byLock(r.holds)
	for _, name := range names {
		var believed []*hold // those that go on, at the time of the one looked at
		for _, h := range locks[name] {
			if h.until <= h.known {
				v.Figures["believed at no time"]++
				continue
			}
			v.Figures["holds"]++
			believed = slices.DeleteFunc(believed, func(b *hold) bool { return b.until <= h.known })
			for _, b := range believed {
				if b.exclusive() || h.exclusive() {
					v.invalid(slices.Concat(b.shown(), h.shown()),
						"%s: %s (token %d) and %s (token %d) both believed to hold it, for %s",
						name, who(b), b.token, who(h), h.token, seconds(min(b.until, h.until)-h.known))
				}
			}
			believed = append(believed, h)
			if limit, crowd := crowded(believed); crowd {
				var shown []int
				for _, b := range believed {
					shown = append(shown, b.shown()...)
				}
				v.invalid(shown, "%s: %d believed to have one of %d permits", name, len(believed), limit)
			}
		}
	}
	return v.over("holds")
}

// crowded says whether these are more than the smallest limit among them. They stay few: it is called for one hold at a
// time and is true at the first too many.
func crowded(holds []*hold) (limit int64, crowded bool) {
	for _, h := range holds {
		if h.limit > 0 && (limit == 0 || h.limit < limit) {
			limit = h.limit
		}
	}
	return limit, limit > 0 && int64(len(holds)) > limit
}

// Tokens finds a token that does not rise: on one lock, two successive grants in the wrong order or with the same token
// (but for the shared holds of one period); on all locks together, a grant whose token is not above every token that was
// known before it was asked for. The latter holds because a token is the index of an entry, plus a base that never falls.
type Tokens struct{}

// Name is "tokens".
func (Tokens) Name() string { return "tokens" }

// Check looks once at each hold, in O(n log n).
func (t Tokens) Check(ops []history.Op) Verdict {
	r, v, ok := prepare(t.Name(), ops)
	if !ok {
		return v
	}
	names, locks := byLock(r.holds)
	for _, name := range names {
		t.distinct(&v, locks[name])
		t.rising(&v, locks[name])
	}
	t.rising(&v, slices.DeleteFunc(slices.Clone(r.holds), func(h *hold) bool { return !h.exclusive() }))
	v.Figures["grants"] = int64(len(r.holds))
	v.Figures["locks"] = int64(len(names))
	return v.over("grants")
}

// distinct finds a token of an exclusive hold that another hold of the same lock has, too.
func (Tokens) distinct(v *Verdict, holds []*hold) {
	seen := map[uint64]*hold{}
	for _, h := range holds {
		if h.token == 0 {
			v.invalid(h.acquire.Indexes(), "%s: %s was granted it without a token", h.lock, who(h))
		}
		other := seen[h.token]
		if other != nil && (h.exclusive() || other.exclusive()) {
			v.invalid(slices.Concat(other.acquire.Indexes(), h.acquire.Indexes()),
				"%s: %s and %s have the same token %d", h.lock, who(other), who(h), h.token)
		}
		seen[h.token] = h
	}
}

// rising finds a hold with a token below one that was known before it was asked for. Holds come in the order in which
// they became known.
func (Tokens) rising(v *Verdict, holds []*hold) {
	asked := slices.Clone(holds)
	slices.SortStableFunc(asked, func(a, b *hold) int { return cmp.Compare(a.asked, b.asked) })
	var newest *hold
	for _, h := range asked {
		for len(holds) > 0 && holds[0].known < h.asked {
			if newest == nil || holds[0].token > newest.token {
				newest = holds[0]
			}
			holds = holds[1:]
		}
		// The holds of a shared period have one token, and so have several locks that are granted at once.
		same := newest != nil && newest.token == h.token && newest.lock == h.lock && !newest.exclusive() && !h.exclusive()
		if newest != nil && newest.token >= h.token && !same {
			v.invalid(slices.Concat(newest.acquire.Indexes(), h.acquire.Indexes()),
				"%s: token %d was granted to %s, who asked when %d was known already (%s)", h.lock, h.token, who(h), newest.token, newest.lock)
		}
	}
}
