package fsm

// acquire is R8's exactly once, before R5 decides.
func (m *model) acquire(a *Acquire, seq Seq) Outcome {
	if a.Session == 0 {
		return m.acquireOwn(a, seq)
	}
	v := m.alive(a.Session)
	if v == nil {
		return Outcome{Code: SessionGone}
	}
	if !v.named {
		return Outcome{Code: OwnSession, Session: v.number}
	}
	m.done(v, a.Done)
	if r := m.request(v, a.Number); r != nil {
		return m.again(r, m.same(r, a), a.Wait)
	}
	if v.finished[a.Number] {
		return Outcome{Code: Finished, Session: v.number}
	}
	var out Outcome
	if uint64(m.count(v, true)+m.count(v, false)) >= m.limits.Requests {
		out = Outcome{Code: OverQuota, Quota: QuotaRequests}
	} else {
		out = m.queue(v, a, seq)
	}
	if out.Code != OK {
		v.finished[a.Number] = true
	}
	return out
}

func (m *model) acquireOwn(a *Acquire, seq Seq) Outcome {
	if v := m.byID(a.ID); v != nil {
		r := m.request(v, 0)
		switch {
		case m.gone(v) || r == nil:
			return Outcome{Code: Finished, Session: v.number}
		case v.owner != a.Owner || v.asked != a.TTL:
			return Outcome{Code: Mismatch}
		}
		v.memory = max(v.memory, a.Wait+60_000)
		return m.again(r, m.same(r, a), a.Wait)
	}
	if m.full() {
		return Outcome{Code: OverQuota, Quota: QuotaSessions}
	}
	if a.Keyed && m.tombstones() >= m.limits.Tombstones {
		return Outcome{Code: OverQuota, Quota: QuotaTombstones}
	}
	v := m.add(&modelSession{
		id: a.ID, keyed: a.Keyed, owner: a.Owner, ttl: a.TTL, asked: a.TTL, deadline: never, memory: a.Wait + 60_000,
	})
	out := m.queue(v, a, seq)
	if out.Code != OK && out.Code != Deadlock { // one that was queued has taken its session with it
		m.bury(v)
	}
	return out
}

// same compares a repeated acquire with what the first one asked for; the value may have been changed since.
func (m *model) same(r *modelRequest, a *Acquire) bool {
	same := r.of == nil && r.task == a.Task && r.priority == a.Priority && r.maxHold == a.MaxHold && r.delay == a.Delay && len(r.locks) == len(a.Locks)
	for i := range r.locks {
		same = same && r.locks[i].asked == a.Locks[i]
	}
	return same
}

// again answers a repeated acquire or convert.
func (m *model) again(r *modelRequest, same bool, wait uint64) Outcome {
	switch {
	case !same:
		return Outcome{Code: Mismatch, Session: r.session.number}
	case m.over(r):
		return Outcome{Code: Finished, Session: r.session.number}
	case !r.granted && r.deadline != never:
		r.deadline = max(r.deadline, m.clock+wait+10_000)
	}
	return Outcome{Code: Queued, Session: r.session.number, Request: r.seq, Replayed: true}
}

// at calls f with every hold and every waiting request at a lock, in their order.
func (m *model) at(name string, f func(*modelRequest, *modelLock)) {
	for _, r := range m.inOrder() {
		if r.down() || r.granted && !r.holds() {
			continue
		}
		for i := range r.locks {
			if l := &r.locks[i]; l.Name == name && !l.back {
				f(r, l)
			}
		}
	}
}

// limit returns the limit that is in use at a lock, also by a conversion of this entry.
func (m *model) limit(name string) (limit uint32) {
	m.at(name, func(_ *modelRequest, l *modelLock) { limit = max(limit, l.Limit) })
	for _, r := range m.requests {
		if r.down() && !r.granted && r.locks[0].Name == name {
			limit = max(limit, r.locks[0].Limit)
		}
	}
	return limit
}

func (m *model) queue(v *modelSession, a *Acquire, seq Seq) Outcome {
	for _, w := range a.Locks {
		waiters, multiple := uint64(0), uint64(0)
		m.at(w.Name, func(r *modelRequest, l *modelLock) {
			if !r.granted {
				waiters++
				if len(r.locks) > 1 {
					multiple++
				}
			}
		})
		limit := m.limit(w.Name)
		switch {
		case w.Limit != 0 && limit != 0 && limit != w.Limit:
			return Outcome{Code: ModeConflict, Limit: limit, Name: w.Name}
		case waiters >= m.limits.Waiters:
			return Outcome{Code: OverQuota, Quota: QuotaWaiters, Name: w.Name}
		case len(a.Locks) > 1 && multiple >= m.limits.Multiple:
			return Outcome{Code: OverQuota, Quota: QuotaMultiple, Name: w.Name}
		}
	}
	r := &modelRequest{
		seq: seq, session: v, number: a.Number, task: a.Task, trace: a.Trace, priority: a.Priority, maxHold: a.MaxHold, delay: a.Delay,
	}
	for _, w := range a.Locks {
		r.locks = append(r.locks, modelLock{Want: w, asked: w, value: a.Value})
	}
	return m.wait(r, a.Wait)
}

// wait has a new request wait, unless that would be a deadlock (R7).
func (m *model) wait(r *modelRequest, wait uint64) Outcome {
	r.try, r.since, r.wall, r.deadline, r.depth = wait == 0, m.clock, m.wall, never, -1
	if !r.try && !r.down() {
		r.deadline = m.clock + wait + 10_000
	}
	m.requests = append(m.requests, r)
	out := Outcome{Code: OK, Session: r.session.number, Request: r.seq}
	if r.try || r.down() {
		return out
	}
	if w := m.deadlock(r); w != nil {
		m.stuck[r.seq.Pos] = w
		m.end(r, endDeadlock)
		return Outcome{Code: Deadlock, Session: r.session.number}
	}
	return out
}

// hold finds a live hold of one lock.
func (m *model) hold(v *modelSession, number uint64, name string, token uint64) (*modelRequest, *modelLock) {
	r := m.request(v, number)
	if r == nil || !r.holds() || m.over(r) {
		return nil, nil
	}
	for i := range r.locks {
		if l := &r.locks[i]; l.Name == name && !l.back && l.token == token {
			return r, l
		}
	}
	return nil, nil
}

// convert is R9.
func (m *model) convert(c *Convert, seq Seq) Outcome {
	v := m.alive(c.Session)
	if v == nil {
		return Outcome{Code: SessionGone}
	}
	if !v.named {
		return Outcome{Code: OwnSession, Session: v.number}
	}
	m.done(v, c.Done)
	if r := m.request(v, c.Number); r != nil {
		return m.again(r, m.sameConversion(r, c), c.Wait)
	}
	if v.finished[c.Number] {
		return Outcome{Code: Finished, Session: v.number}
	}
	out := m.startConversion(v, c, seq)
	if out.Code != OK {
		v.finished[c.Number] = true
	}
	return out
}

func (m *model) sameConversion(r *modelRequest, c *Convert) bool {
	if r.of == nil || r.of.number != c.Of || r.locks[0].Want != c.Want {
		return false
	}
	for _, l := range r.of.locks {
		if l.Name == c.Name {
			return r.granted && l.former == c.Token || !r.granted && l.token == c.Token
		}
	}
	return false
}

func (m *model) startConversion(v *modelSession, c *Convert, seq Seq) Outcome {
	hold, l := m.hold(v, c.Of, c.Name, c.Token)
	limit := m.limit(c.Name)
	rival := false
	m.at(c.Name, func(r *modelRequest, _ *modelLock) { rival = rival || r.of != nil && !r.try && !m.over(r) })
	switch {
	case hold == nil:
		return Outcome{Code: NotHeld, Session: v.number}
	case m.token() >= MaxToken:
		return Outcome{Code: Exhausted}
	case l.Mode == c.Mode:
		return Outcome{Code: SameMode, Session: v.number}
	case l.conversion != nil && !l.conversion.granted:
		m.stuck[seq.Pos] = nil
		return Outcome{Code: Deadlock, Session: v.number}
	case c.Limit != 0 && limit != 0 && limit != c.Limit:
		return Outcome{Code: ModeConflict, Limit: limit, Name: c.Name}
	case c.Mode == Exclusive && rival: // the second of two
		m.stuck[seq.Pos] = nil
		return Outcome{Code: Deadlock, Session: v.number}
	}
	former := l.conversion
	r := &modelRequest{seq: seq, session: v, number: c.Number, task: hold.task, of: hold, locks: []modelLock{{Want: c.Want, asked: c.Want}}}
	l.conversion = r
	out := m.wait(r, c.Wait)
	if out.Code != OK {
		l.conversion = former
	} else if former != nil {
		m.end(former, endHoldGone)
	}
	return out
}

// converted has a conversion take effect.
func (m *model) converted(r *modelRequest) {
	for i := range r.of.locks {
		l := &r.of.locks[i]
		if l.Name != r.locks[0].Name {
			continue
		}
		// Alone with the lock, it begins a new period in either mode.
		l.Want, l.former, l.token = r.locks[0].Want, l.token, m.token()
		waited := m.clock - r.since
		r.granted, r.try, r.since, r.wall, r.deadline = true, false, m.clock, m.wall, never
		r.locks[0].token, r.locks[0].back = l.token, true
		m.events = append(m.events, Event{Kind: EventGranted, Request: r.seq, Grant: m.grant(r), Waited: waited})
		m.tell(r.of, l, NoticeConverted, "", "")
	}
}

func (m *model) value(c *Value) Outcome {
	v := m.alive(c.Session)
	if v == nil {
		return Outcome{Code: SessionGone}
	}
	r, l := m.hold(v, c.Number, c.Name, c.Token)
	if r == nil {
		return Outcome{Code: NotHeld, Session: v.number}
	}
	l.value = c.Value
	m.tell(r, l, NoticeValue, "", "")
	return Outcome{Code: OK, Session: v.number}
}
