package fsm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// grant is what a caller is told about a request: of a conversion, the hold as it is now.
func (m *model) grant(r *modelRequest) *Grant {
	v := r.session
	g := &Grant{Session: v.number, ID: v.id, Owner: v.owner, Number: r.number, TTL: v.ttl, Deadline: v.deadline}
	hold := r
	if r.of != nil {
		hold = r.of
	}
	if hold.maxHold != 0 {
		g.HoldEnds = hold.deadline
	}
	for _, l := range hold.locks {
		if !l.back && (r.of == nil || l.Name == r.locks[0].Name) {
			g.Locks = append(g.Locks, Granted{l.Want, l.token})
		}
	}
	return g
}

func (m *model) find(seq Seq) *modelRequest {
	for _, r := range m.requests {
		if r.seq == seq {
			return r
		}
	}
	return nil
}

// answer is what an acquire hears once the grants of its entry are made.
func (m *model) answer(a *Acquire, out *Outcome) {
	r := m.find(out.Request)
	switch {
	case r != nil:
		m.stands(r, out)
	case a.Session != 0 && m.alive(a.Session) == nil:
		*out = Outcome{Code: SessionGone}
	case a.Wait > 0 || out.Replayed:
		*out = Outcome{Code: Finished}
	default:
		*out = m.held(out.Session, a.Locks, 0)
	}
}

// answerConvert is what a convert hears.
func (m *model) answerConvert(c *Convert, out *Outcome) {
	r, v := m.find(out.Request), m.alive(c.Session)
	switch {
	case r != nil:
		m.stands(r, out)
	case v == nil:
		*out = Outcome{Code: SessionGone}
	case !slices.ContainsFunc(m.requests, func(r *modelRequest) bool {
		return r.session == v && r.number == c.Of && r.holds() && slices.ContainsFunc(r.locks, func(l modelLock) bool { return l.Name == c.Name && !l.back })
	}):
		*out = Outcome{Code: NotHeld, Session: c.Session}
	case c.Wait > 0 || out.Replayed || c.Mode == Shared:
		*out = Outcome{Code: Finished, Session: c.Session}
	default:
		*out = m.held(c.Session, []Want{c.Want}, 1)
	}
}

// stands answers with the grant, or that the request waits, which is told once.
func (m *model) stands(r *modelRequest, out *Outcome) {
	if r.granted {
		out.Code, out.Grant = OK, m.grant(r)
		return
	}
	if out.Code = Queued; !out.Replayed {
		for i := range r.locks {
			m.tell(r, &r.locks[i], NoticeQueued, "", "")
		}
	}
}

// held says who is in the way, but for the caller's own holds; when nobody is, for how long the locks are delayed.
func (m *model) held(session uint64, locks []Want, own int) Outcome {
	out := Outcome{Code: Held, Session: session}
	out.Holders, out.Waiting = m.holders(locks)
	if len(out.Holders) > own || out.Waiting > 0 {
		return out
	}
	for _, w := range locks {
		if until, delayed := m.delays[w.Name]; delayed {
			out.Code, out.Holders, out.Retry = Delayed, nil, max(out.Retry, until+1-m.clock)
		}
	}
	return out
}

func (m *model) holders(locks []Want) (holders []Holder, waiting int) {
	for _, w := range locks {
		m.at(w.Name, func(r *modelRequest, l *modelLock) {
			if !r.granted {
				waiting++
				return
			}
			if len(holders) == MaxHolders {
				return
			}
			v := r.session
			remaining := uint64(0)
			if !m.gone(v) {
				remaining = min(v.deadline-m.clock, v.ttl)
			}
			if r.maxHold != 0 {
				remaining = min(remaining, r.deadline-min(r.deadline, m.clock))
			}
			holders = append(holders, Holder{
				Name: w.Name, Session: v.id, Owner: v.owner, Task: r.task, Trace: r.trace, Mode: l.Mode, Limit: l.Limit,
				Token: l.token, Value: l.value, Held: m.clock - r.since, Remaining: remaining,
			})
		})
	}
	return holders, waiting
}

// describe writes what matters of the model in one order; describeState writes the same of a state.
func (m *model) describe() string {
	var lines []string
	for _, v := range m.sessions {
		line := fmt.Sprintf("session %d %q ttl %d deadline %d tomb %v lost %v finished", v.number, v.id.label(), v.ttl, v.deadline, v.tomb, v.lost)
		if !v.tomb {
			line += fmt.Sprint(slices.Sorted(maps.Keys(v.finished)))
		}
		lines = append(lines, line)
	}
	for _, r := range m.requests {
		line := fmt.Sprintf("request %v of %d/%d granted %v since %d deadline %d", r.seq, r.session.number, r.number, r.granted, r.since, r.deadline)
		if !r.granted {
			line += fmt.Sprintf(" depth %d", r.depth)
		}
		if r.of != nil {
			line += fmt.Sprintf(" converts %v", r.of.seq)
		}
		for _, l := range r.locks {
			line += fmt.Sprintf(" %v=%d was %d back %v %q", l.Want, l.token, l.former, l.back, l.value)
			if l.conversion != nil {
				line += fmt.Sprintf(" converted by %v", l.conversion.seq)
			}
		}
		lines = append(lines, line)
	}
	for _, name := range slices.Sorted(maps.Keys(m.delays)) {
		lines = append(lines, fmt.Sprintf("delay of %s %d", name, m.delays[name]))
	}
	return fmt.Sprintf("clock %d base %d begin %d level %d\n%s", m.clock, m.base, m.begin, m.level, strings.Join(lines, "\n"))
}

func describeState(s *State) string {
	var lines []string
	for _, v := range items(s.sessions) {
		line := fmt.Sprintf("session %d %q ttl %d deadline %d tomb %v lost %v finished", v.number, v.id.label(), v.ttl, v.deadline, v.tomb, v.lost)
		if !v.tomb {
			numbers := []uint64{}
			for _, f := range v.finished {
				for n := f.low; n <= f.high; n++ {
					numbers = append(numbers, n)
				}
			}
			line += fmt.Sprint(numbers)
		}
		lines = append(lines, line)
	}
	for _, r := range allRequests(s) {
		line := fmt.Sprintf("request %v of %d/%d granted %v since %d deadline %d", r.seq, r.session, r.number, r.granted, r.since, r.deadline)
		if !r.granted {
			line += fmt.Sprintf(" depth %d", r.depth)
		}
		if r.converts() {
			line += fmt.Sprintf(" converts %v", r.of)
		}
		for _, p := range r.locks {
			line += fmt.Sprintf(" %v=%d was %d back %v %q", p.Want, p.token, p.former, p.lock == 0, p.value)
			if p.conversion != (Seq{}) {
				line += fmt.Sprintf(" converted by %v", p.conversion)
			}
		}
		lines = append(lines, line)
	}
	for _, n := range items(s.names) {
		if l, _ := s.locks.Get(&lock{number: n.number}); l.delay != 0 {
			lines = append(lines, fmt.Sprintf("delay of %s %d", n.key, l.delay))
		}
	}
	return fmt.Sprintf("clock %d base %d begin %d level %d\n%s", s.clock, s.base, s.begin, s.level, strings.Join(lines, "\n"))
}
