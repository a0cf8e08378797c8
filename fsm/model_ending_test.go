package fsm

import (
	"cmp"
	"slices"
)

// release is R8 and R9: it names session, request and token.
func (m *model) release(c *Release) Outcome {
	v := m.alive(c.Session)
	if v == nil {
		return Outcome{Code: SessionGone}
	}
	r := m.request(v, c.Number)
	if r == nil || !r.holds() || m.over(r) || c.Number == 0 && c.Token == 0 {
		return Outcome{Code: NotHeld, Session: v.number}
	}
	var named []*modelLock
	matches := false
	for i := range r.locks {
		if l := &r.locks[i]; !l.back && (c.Name == "" || c.Name == l.Name) {
			named = append(named, l)
			matches = matches || c.Token == 0 || c.Token == l.token || c.Token == l.former
		}
	}
	if !matches {
		return Outcome{Code: NotHeld, Session: v.number}
	}
	out := Outcome{Code: OK, Session: v.number}
	for _, l := range named {
		m.giveBack(r, l, endReleased, "", "")
		out.Names = append(out.Names, l.Name)
	}
	if !slices.ContainsFunc(r.locks, func(l modelLock) bool { return !l.back }) {
		m.end(r, endReleased)
	}
	return out
}

func (m *model) cancel(c *Cancel) Outcome {
	var v *modelSession
	if c.Keyed {
		v = m.byID(c.Key)
		switch {
		case v == nil && m.tombstones() >= m.limits.Tombstones:
			return Outcome{Code: OverQuota, Quota: QuotaTombstones}
		case v == nil:
			m.add(&modelSession{id: c.Key, keyed: true, tomb: true, deadline: m.clock + 360_000})
			return Outcome{Code: Cancelled}
		case m.gone(v):
			return Outcome{Code: Finished}
		}
	} else if v = m.alive(c.Session); v == nil {
		return Outcome{Code: SessionGone}
	}
	r := m.request(v, c.Number)
	switch {
	case v.named && c.Number == 0, r == nil && !v.named:
		return Outcome{Code: NotHeld}
	case r == nil && v.finished[c.Number]:
		return Outcome{Code: Finished, Session: v.number}
	case r == nil:
		v.finished[c.Number] = true
		return Outcome{Code: Cancelled, Session: v.number}
	case !r.granted:
		out := Outcome{Code: Cancelled, Session: v.number}
		var wants []Want
		for _, l := range r.locks {
			wants = append(wants, l.Want)
		}
		out.Holders, out.Waiting = m.holders(wants)
		m.end(r, endCancelled)
		return out
	case m.over(r):
		return Outcome{Code: Finished, Session: v.number}
	case c.Waiting:
		return Outcome{Code: OK, Session: v.number, Request: r.seq, Grant: m.grant(r), Replayed: true}
	}
	m.end(r, endReleased)
	if r.of != nil { // it took effect, and only its number ends
		return Outcome{Code: Finished, Session: v.number}
	}
	return Outcome{Code: Released, Session: v.number}
}

// force is R9: it ends every hold of a lock that has this token.
func (m *model) force(c *Force) Outcome {
	type hold struct {
		r *modelRequest
		l *modelLock
	}
	var holds []hold
	m.at(c.Name, func(r *modelRequest, l *modelLock) {
		if r.granted && l.token == c.Token && !m.over(r) {
			holds = append(holds, hold{r, l})
		}
	})
	if len(holds) == 0 {
		return Outcome{Code: NotHeld}
	}
	for _, h := range holds {
		m.giveBack(h.r, h.l, endForced, c.Reason, c.By)
		if !slices.ContainsFunc(h.r.locks, func(l modelLock) bool { return !l.back }) {
			m.end(h.r, endForced)
		}
	}
	if c.Delay != 0 {
		m.setDelay(c.Name, m.clock+c.Delay)
	}
	return Outcome{Code: OK, Count: len(holds)}
}

// end takes a request away.
func (m *model) end(r *modelRequest, why ending) {
	told := map[ending]Code{
		endReleased: SessionGone, endExpired: SessionGone, endCancelled: Cancelled, endTimedOut: Held, endHoldGone: NotHeld,
	}
	if code := told[why]; !r.granted && code != 0 {
		m.events = append(m.events, Event{Kind: EventEnded, Request: r.seq, Code: code})
		for i := range r.locks {
			if r.seq.Index != m.index && !r.down() {
				m.tell(r, &r.locks[i], NoticeCancelled, "", "")
			}
		}
	}
	if r.of != nil {
		for i := range r.of.locks {
			if l := &r.of.locks[i]; l.conversion == r {
				l.conversion = nil
			}
		}
	} else if r.granted {
		for i := range r.locks {
			if !r.locks[i].back {
				m.giveBack(r, &r.locks[i], why, "", "")
			}
		}
	}
	m.requests = slices.DeleteFunc(m.requests, func(o *modelRequest) bool { return o == r })
	switch {
	case r.session.named:
		r.session.finished[r.number] = true
	case why == endMaxHold || why == endForced: // until its deadline it tells what it lost
	default:
		m.bury(r.session)
	}
}

// giveBack ends the hold of one lock (R9).
func (m *model) giveBack(r *modelRequest, l *modelLock, why ending, reason, by string) {
	if c := l.conversion; c != nil {
		if m.gone(r.session) {
			m.end(c, endReleased)
		} else {
			m.end(c, endHoldGone)
		}
	}
	kind := NoticeReleased
	switch why {
	case endExpired:
		kind, reason = NoticeExpired, "session"
	case endMaxHold:
		kind, reason = NoticeExpired, "max_hold"
	case endForced:
		kind = NoticeRevoked
	}
	m.tell(r, l, kind, reason, by)
	l.back = true
	if why == endMaxHold || why == endForced {
		r.session.lost = append(r.session.lost, Lost{r.number, l.Name, l.token, reason, by})
	}
	if kind != NoticeReleased && r.delay != 0 {
		m.setDelay(l.Name, m.clock+r.delay)
	}
}

func (m *model) setDelay(name string, until uint64) {
	if until > m.delays[name] {
		m.delays[name] = until
		m.notices = append(m.notices, Notice{Kind: NoticeDelayed, Name: name})
	}
}

// tell is a notice of one lock of a request.
func (m *model) tell(r *modelRequest, l *modelLock, kind NoticeKind, reason, by string) {
	n := Notice{
		Kind: kind, Name: l.Name, Session: r.session.id, Owner: r.session.owner, Task: r.task, Mode: l.Mode, Token: l.token, Reason: reason, By: by,
	}
	if r.granted && kind != NoticeGranted {
		n.Held = m.clock - r.since
	}
	m.notices = append(m.notices, n)
}

// bury ends a session that owns nothing; one with a key is remembered.
func (m *model) bury(v *modelSession) {
	if v.keyed && !v.tomb {
		v.tomb, v.closed, v.owner, v.deadline, v.lost = true, false, "", m.clock+v.memory, nil
		return
	}
	m.sessions = slices.DeleteFunc(m.sessions, func(o *modelSession) bool { return o == v })
}

// removals ends what is over: closed sessions, then whatever is past its deadline, in the order of the deadlines.
func (m *model) removals() {
	for _, v := range slices.Clone(m.sessions) {
		if v.closed {
			m.takeApart(v, endReleased)
		}
	}
	for {
		// The earliest; at one deadline sessions are before waits, tombstones after these, then holds.
		type due struct {
			at, kind, session uint64
			end               func()
		}
		var all []due
		for _, v := range m.sessions {
			if v.tomb {
				all = append(all, due{v.deadline, 3, v.number, func() { m.bury(v) }})
			} else {
				all = append(all, due{v.deadline, 1, v.number, func() { m.takeApart(v, endExpired) }})
			}
		}
		for _, r := range m.requests {
			if r.granted {
				all = append(all, due{r.deadline, 4, r.session.number, func() { m.end(r, endMaxHold) }})
			} else {
				all = append(all, due{r.deadline, 2, r.session.number, func() { m.end(r, endTimedOut) }})
			}
		}
		slices.SortStableFunc(all, func(a, b due) int {
			return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.kind, b.kind), cmp.Compare(a.session, b.session))
		})
		if len(all) == 0 || m.clock <= all[0].at {
			break
		}
		all[0].end()
	}
	for name, until := range m.delays {
		if m.clock > until {
			delete(m.delays, name)
		}
	}
}

func (m *model) takeApart(v *modelSession, why ending) {
	for {
		var next *modelRequest
		for _, r := range m.requests {
			if r.session == v && (next == nil || r.number < next.number) {
				next = r
			}
		}
		if next == nil {
			break
		}
		m.end(next, why)
		if !v.named { // it ended with its one request
			return
		}
	}
	m.tellSession(v, NoticeSessionEnded, map[ending]string{endReleased: "closed", endExpired: "expired"}[why])
	m.bury(v)
}
