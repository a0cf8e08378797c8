package fsm

import (
	"fmt"
	"slices"
	"strings"
)

// grants is R5: one pass over all waiting requests in their order, each judged by brute force.
func (m *model) grants() {
	for _, r := range m.inOrder() {
		if r.granted {
			continue
		}
		switch {
		case m.judge(r) && m.token() < MaxToken && r.of != nil:
			m.converted(r)
		case r.depth == len(r.locks) && m.token() < MaxToken:
			m.give(r)
		case r.try:
			m.end(r, endTried)
		}
	}
}

// give turns a waiting request into a hold.
func (m *model) give(r *modelRequest) {
	waited := m.clock - r.since
	r.granted, r.try, r.since, r.wall, r.deadline = true, false, m.clock, m.wall, never
	if r.maxHold != 0 {
		r.deadline = m.clock + r.maxHold
	}
	for i := range r.locks {
		r.locks[i].token = m.tokenFor(r, r.locks[i].Want)
	}
	if !r.session.named {
		r.session.deadline = m.clock + r.session.ttl
	}
	m.events = append(m.events, Event{Kind: EventGranted, Request: r.seq, Grant: m.grant(r), Waited: waited})
	for i := range r.locks {
		m.tell(r, &r.locks[i], NoticeGranted, "", "")
	}
}

// judge says how many of its locks a request could have, and reports whether it could have all.
func (m *model) judge(r *modelRequest) bool {
	r.depth = 0
	for r.depth < len(r.locks) && m.can(r, r.locks[r.depth].Want) {
		r.depth++
	}
	return r.depth == len(r.locks)
}

// can is R5 for one lock: compatible with every hold and with every earlier request that stands in its way there, and not
// in its delay. A conversion does not mind its own hold.
func (m *model) can(r *modelRequest, w Want) bool {
	if _, delayed := m.delays[w.Name]; delayed {
		return false
	}
	taken, limit, free := uint64(0), w.Limit, true
	m.at(w.Name, func(o *modelRequest, l *modelLock) {
		if !o.granted {
			if !o.before(r) {
				return
			}
			p := slices.IndexFunc(o.locks, func(v modelLock) bool { return v.Name == w.Name })
			if o.depth < p {
				return
			}
			if o.depth == p {
				free = false
				return
			}
		}
		if o == r.of {
			return
		}
		if l.Mode == Exclusive || w.Mode == Exclusive {
			free = false
		}
		taken++
		if l.Limit != 0 && (limit == 0 || l.Limit < limit) {
			limit = l.Limit
		}
	})
	return free && (limit == 0 || taken < uint64(limit)) && (w.Mode == Exclusive || taken < m.limits.Holders)
}

// tokenFor is R6.
func (m *model) tokenFor(r *modelRequest, w Want) uint64 {
	token := m.token()
	if w.Mode == Shared {
		m.at(w.Name, func(o *modelRequest, l *modelLock) {
			if o.granted && o != r {
				token = l.token
			}
		})
	}
	return token
}

// world is a copy of the model in which R7 is played out.
type world struct{ *model }

func (w *world) String() string {
	if w == nil {
		return "the rule of conversions"
	}
	var b strings.Builder
	for _, r := range w.inOrder() {
		fmt.Fprintf(&b, "\n%v of %d %s granted %v depth %d:", r.seq, r.session.number, r.task, r.granted, r.depth)
		for _, l := range r.locks {
			fmt.Fprintf(&b, " %v", l.Want)
		}
	}
	return b.String()
}

// deadlock is R7, literally: it returns the world in which the new request is stuck, nil when it is not.
func (m *model) deadlock(judged *modelRequest) *world {
	if judged.task == "" || m.harmless(judged) {
		return nil
	}
	w, r := m.copyFor(judged)
	gone := func(r *modelRequest) bool { return m.gone(r.session) || m.clock > r.deadline }
	w.drop(func(o *modelRequest) bool { return o.task == "" || gone(o) || o.try && !o.granted })
	for {
		w.drop(func(o *modelRequest) bool {
			return o.granted && !slices.ContainsFunc(w.requests, func(x *modelRequest) bool { return !x.granted && x.taskOf(o) })
		})
		granted := false
		for _, o := range w.inOrder() {
			if o.granted || !w.judge(o) {
				continue
			}
			granted = true
			if o == r {
				return nil
			}
			if o.granted = true; o.of != nil {
				for i := range o.of.locks {
					if l := &o.of.locks[i]; l.Name == o.locks[0].Name {
						l.Want = o.locks[0].Want
					}
				}
				w.drop(func(x *modelRequest) bool { return x == o })
			}
		}
		if !granted {
			return w
		}
	}
}

func (r *modelRequest) taskOf(o *modelRequest) bool {
	return r.session == o.session && r.task == o.task
}

// harmless reports whether nobody can wait for the task of a new request, which can then close no circle.
func (m *model) harmless(r *modelRequest) bool {
	if r.of != nil {
		return false
	}
	for _, o := range m.requests {
		if o == r {
			continue
		}
		if o.taskOf(r) && (o.holds() || !o.granted && !o.try && !o.down()) {
			return false
		}
		for _, l := range r.locks {
			behind := !o.granted && !o.down() && r.before(o) && slices.ContainsFunc(o.locks, func(x modelLock) bool { return x.Name == l.Name })
			if behind {
				return false
			}
		}
	}
	return true
}

// copyFor copies what R7 looks at: holds and waits, without delays, which end by themselves.
func (m *model) copyFor(judged *modelRequest) (*world, *modelRequest) {
	w := &world{&model{limits: m.limits, index: m.index, base: m.base, delays: map[string]uint64{}}}
	copies, sessions := map[*modelRequest]*modelRequest{}, map[*modelSession]*modelSession{}
	for _, r := range m.requests {
		if r.granted && !r.holds() || r.down() {
			continue
		}
		if sessions[r.session] == nil { // what becomes of it afterwards is another matter
			v := *r.session
			sessions[r.session] = &v
		}
		c := *r
		c.locks, c.session = slices.Clone(r.locks), sessions[r.session]
		copies[r] = &c
		w.requests = append(w.requests, &c)
	}
	for _, r := range w.requests {
		if r.of != nil {
			r.of = copies[r.of]
		}
	}
	return w, copies[judged]
}

// drop takes out the requests that f says, and conversions with their holds.
func (w *world) drop(f func(*modelRequest) bool) {
	out := map[*modelRequest]bool{}
	for _, r := range w.requests {
		out[r] = f(r)
	}
	w.requests = slices.DeleteFunc(w.requests, func(r *modelRequest) bool { return out[r] || r.of != nil && out[r.of] })
}

// checkCycle looks at what a refusal for a deadlock shows: the world that decided about it says whether that is a cycle.
func (m *model) checkCycle(pos uint32, o Outcome) error {
	w, refused := m.stuck[pos]
	switch {
	case !refused || o.Code != Deadlock:
		return nil // comparing the codes tells
	case w == nil && len(o.Cycle) != 1 && len(o.Cycle) != 2, w != nil && !w.shows(o.Cycle):
		return fmt.Errorf("command %d: %v is no cycle in %s", pos, o.Cycle, w)
	}
	return nil
}

// shows reports whether a cycle is one of this world: each step is of a stuck request that waits for that lock, and the
// next step is of a request that is in its way there, or whose task holds what is.
func (w *world) shows(cycle []Step) bool {
	for _, r := range w.requests {
		if !r.granted && len(cycle) > 0 && w.follow(r, cycle, r) {
			return true
		}
	}
	return false
}

func (w *world) follow(r *modelRequest, cycle []Step, start *modelRequest) bool {
	step := cycle[0]
	w.judge(r)
	if r.task != step.Task || r.session.owner != step.Owner || r.locks[r.depth].Name != step.WaitsFor {
		return false
	}
	for _, o := range w.inTheWay(r) {
		if o.session.owner != step.HeldBy {
			continue
		}
		for _, next := range w.requests {
			if next.granted || next != o && !(o.granted && next.taskOf(o)) {
				continue
			}
			if len(cycle) == 1 && next == start || len(cycle) > 1 && w.follow(next, cycle[1:], start) {
				return true
			}
		}
	}
	return false
}

// inTheWay lists what keeps a stuck request from the first lock that it cannot have: what excludes it, else what counts.
func (w *world) inTheWay(r *modelRequest) (excludes []*modelRequest) {
	var counts []*modelRequest
	want := r.locks[r.depth].Want
	w.at(want.Name, func(o *modelRequest, l *modelLock) {
		p := slices.IndexFunc(o.locks, func(v modelLock) bool { return v.Name == want.Name })
		switch {
		case o == r.of || !o.granted && (!o.before(r) || o.depth < p):
		case !o.granted && o.depth == p, l.Mode == Exclusive, want.Mode == Exclusive:
			excludes = append(excludes, o)
		default:
			counts = append(counts, o)
		}
	})
	if len(excludes) == 0 {
		return counts
	}
	return excludes
}
