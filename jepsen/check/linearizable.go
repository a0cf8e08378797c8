package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/pawl-lock/pawl/jepsen/history"
)

// Linearizable searches, with porcupine, for an order of the grants, conversions, releases and looks of each lock that a single lock
// could have done: exclusive, shared and with a limit, as the holds themselves say. Each lock is searched by itself, and
// its history is cut into windows where its state is certain.
type Linearizable struct {
	// Model is only its name: "mutex", "read-write lock", "semaphore" …
	Model string
	// Tokens makes them part of the model: they rise with each grant, and are one in a shared period.
	Tokens bool
	// Limit bounds the time for the whole history. 0 is a minute.
	Limit time.Duration
}

// maxWindow bounds the calls in one window: porcupine remembers sets of them, which grow with the square.
const maxWindow = 20_000

// Name is "linearizable" with the model's.
func (l Linearizable) Name() string { return "linearizable " + l.Model }

// Check is unknown when the time was not enough.
func (l Linearizable) Check(ops []history.Op) Verdict {
	r, v, ok := prepare(l.Name(), ops)
	if !ok {
		return v
	}
	limit := cmp.Or(l.Limit, time.Minute)
	end := time.Now().Add(limit)
	names, locks := byLock(r.holds)
	for _, name := range names {
		rules := rules{holds: locks[name], tokens: l.Tokens}
		for _, w := range rules.windows(rules.calls(name, r.operations)) {
			v.Figures["windows"]++
			v.Figures["longest window"] = max(v.Figures["longest window"], int64(len(w.calls)))
			left := time.Until(end)
			illegal, unknown := false, len(w.calls) > maxWindow || left <= 0
			if !unknown {
				illegal, unknown = rules.illegal(w.init, w.calls, left)
			}
			switch {
			case illegal:
				v.invalid(l.shown(rules, w, end), "%s: no order explains what happened from %s to %s",
					name, seconds(w.calls[0].from), seconds(w.calls[len(w.calls)-1].to))
			case unknown:
				v.Figures["windows given up"]++
				v.Figures["calls given up"] += int64(len(w.calls))
			default:
				v.Figures["calls"] += int64(len(w.calls))
			}
		}
	}
	if given := v.Figures["calls given up"]; given > 0 && v.Outcome == Valid {
		v.Outcome = Unknown
		v.Why = fmt.Sprintf("%d of %d calls were not judged within %s", given, given+v.Figures["calls"], limit)
	}
	return v.over("calls")
}

// calls are those of one lock, in the order of their beginnings.
func (r rules) calls(name string, operations []history.Operation) []*call {
	var calls []*call
	known := map[uint64]int{}
	everShared := false
	ids := make(map[*hold]int, len(r.holds))
	for id, h := range r.holds {
		ids[h] = id
	}
	for id, h := range r.holds {
		known[h.token] = id
		everShared = everShared || !h.exclusive()
		root := h
		for root.former != nil {
			root = root.former
		}
		c := &call{kind: acquires, hold: h, id: id, root: ids[root], from: h.asked, to: h.known, shown: h.acquire.Indexes()}
		if h.former != nil {
			c.kind, c.was = converts, ids[h.former]
		}
		calls = append(calls, c)
		if h.release != nil {
			calls = append(calls, &call{kind: releases, hold: h, id: id, root: ids[root], from: h.release.Invoke.Time, to: h.release.End(), shown: h.release.Indexes()})
		}
	}
	for _, o := range operations {
		if o.Invoke.F != history.Look || o.Invoke.Lock != name || o.Outcome() != history.OK || everShared {
			continue
		}
		c := &call{kind: looks, token: o.Complete.Token, known: -1, from: o.Invoke.Time, to: o.End(), shown: o.Indexes()}
		if id, found := known[c.token]; found && c.token != 0 {
			c.known = id
			r.holds[id].seen = max(r.holds[id].seen, c.to)
		}
		calls = append(calls, c)
	}
	slices.SortStableFunc(calls, func(a, b *call) int { return cmp.Compare(a.from, b.from) })
	return calls
}

// window is a part of one lock's calls, with the state that it begins in.
type window struct {
	init  lockState
	calls []*call
}

// windows cuts the calls where the state of the lock is certain, so that long histories stay feasible. There are two
// kinds of such moments, and at both every right order of the whole is made of right orders of the parts:
//
//   - Nothing is under way, and every hold that is known and was not released is either still believed in (then it is
//     surely there) or will not be seen (then it is in nobody's way, and whether it is there makes no difference).
//   - An exclusive hold is known and still believed in. Then it alone is there. A grant under way, which is known and
//     believed in later, is made later: both would be there otherwise. A release under way, of another hold, was done
//     before. (A look under way may be on either side: no cut.)
func (r rules) windows(calls []*call) []window {
	byEnd := slices.Clone(calls)
	slices.SortStableFunc(byEnd, func(a, b *call) int { return cmp.Compare(a.to, b.to) })
	var (
		done    []window
		current = window{}
		open    []*call // under way, or done since the last cut
		last    lockState
	)
	for len(byEnd) > 0 {
		at := byEnd[0].to // all that ends now, and begins until now: intervals are closed
		for len(byEnd) > 0 && byEnd[0].to == at {
			if h := byEnd[0].hold; (byEnd[0].kind == acquires || byEnd[0].kind == converts) && r.tokens && h.token > last.last {
				last.last, last.lastExclusive = h.token, h.exclusive()
			} else if c := byEnd[0]; c.kind == looks && r.tokens && c.known < 0 && c.token > last.last {
				last.last, last.lastExclusive = c.token, true
			}
			byEnd = byEnd[1:]
		}
		for len(calls) > 0 && calls[0].from <= at {
			open = append(open, calls[0])
			calls = calls[1:]
		}
		if len(open) > maxWindow && len(byEnd)%256 != 0 {
			continue // it will be given up: look for its end now and then
		}
		holds, later, certain := r.certain(current.init, open, at)
		if !certain {
			continue
		}
		for _, c := range open {
			if !slices.Contains(later, c) {
				current.calls = append(current.calls, c)
			}
		}
		done = append(done, current)
		last.holds = holds
		current = window{init: last}
		open = later
	}
	current.calls = open
	if len(current.calls) > 0 {
		done = append(done, current)
	}
	return done
}

// certain says what is there after the moment at, and which of the calls come after it, if that is certain.
func (r rules) certain(init lockState, open []*call, at time.Duration) (holds []int, later []*call, certain bool) {
	// What was there at the last cut, or was granted since, and was not released.
	holds = append(holds, init.holds...)
	looking := false
	var were []int
	for _, c := range open {
		switch {
		case c.kind == converts && c.to > at:
			return nil, nil, false // it may be either hold
		case c.kind == converts:
			holds, were = append(holds, c.id), append(were, c.was)
		case c.kind == acquires && c.to <= at:
			holds = append(holds, c.id)
		case c.to > at:
			later = append(later, c)
			looking = looking || c.kind == looks
		}
	}
	holds = slices.DeleteFunc(holds, func(id int) bool { return slices.Contains(were, id) })
	for _, id := range holds {
		if h := r.holds[id]; h.exclusive() && h.until > at && !looking {
			return r.alone(id, later, at)
		}
	}
	if len(later) > 0 {
		return nil, nil, false
	}
	holds = slices.DeleteFunc(holds, func(id int) bool {
		release := r.holds[id].release
		return release != nil && release.End() <= at
	})
	for _, id := range holds {
		if h := r.holds[id]; h.until <= at && h.seen > at {
			return nil, nil, false
		}
	}
	holds = slices.DeleteFunc(holds, func(id int) bool { return r.holds[id].until <= at })
	slices.Sort(holds)
	return holds, nil, true
}

// alone is the cut at an exclusive hold that is surely there.
func (r rules) alone(id int, underWay []*call, at time.Duration) (holds []int, later []*call, certain bool) {
	for _, c := range underWay {
		switch {
		case c.kind == acquires && c.hold.until > at:
			later = append(later, c)
		case c.kind == acquires:
			return nil, nil, false
		}
	}
	return []int{id}, later, true
}

// shown are the Ops of a part of the window that is illegal by itself, made small by leaving out whole holds and looks:
// any of them can be taken from a history that is right and it stays right.
func (l Linearizable) shown(r rules, w window, end time.Time) []int {
	calls := w.calls
	const longest = 2000 // what is longer is not made small
	for size := len(calls) / 2; size > 0 && len(calls) <= longest; size /= 2 {
		for from := 0; from < len(calls) && time.Now().Before(end); {
			without := r.without(calls, calls[from:min(from+size, len(calls))])
			if illegal, _ := r.illegal(w.init, without, min(time.Second, time.Until(end))); illegal {
				calls = without
			} else {
				from += size
			}
		}
	}
	var shown []int
	for id, h := range r.holds {
		newest := w.init.last != 0 && h.token == w.init.last && h.known < calls[len(calls)-1].to
		if newest || slices.Contains(w.init.holds, id) {
			shown = append(shown, h.shown()...)
		}
	}
	for _, c := range calls {
		shown = append(shown, c.shown...)
		if c.kind == acquires || c.kind == converts {
			shown = append(shown, c.hold.ends...)
		}
	}
	return shown
}

// without leaves out calls, with all that belongs to the same holds.
func (r rules) without(calls, out []*call) []*call {
	gone := map[int]bool{}
	for _, c := range out {
		if c.kind != looks {
			gone[c.root] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(calls), func(c *call) bool {
		if c.kind == looks {
			return slices.Contains(out, c) || c.known >= 0 && gone[c.known]
		}
		return gone[c.root]
	})
}
