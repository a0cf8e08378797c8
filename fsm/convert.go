package fsm

// convert changes the mode of a hold (R9). To shared it takes effect in its own entry, after the ends and before the
// grants; to exclusive it waits, before the whole queue, until the other holders are gone. Either way the hold gets a new
// token and keeps the end that a maximum gives it.
func (s *State) convert(c *Convert, seq Seq) Outcome {
	v := s.editSession(c.Session)
	if s.gone(v) {
		return Outcome{Code: SessionGone}
	}
	if v.nature != natureNamed {
		return Outcome{Code: OwnSession, Session: v.number}
	}
	s.finishBelow(v, c.Done)
	if r := s.owned1(v.number, c.Number); r != nil {
		if !s.sameConversion(r, c) {
			return Outcome{Code: Mismatch, Session: v.number}
		}
		return s.replayed(r, c.Wait)
	}
	if v.isFinished(c.Number) {
		return Outcome{Code: Finished, Session: v.number}
	}
	if len(v.finished) >= maxIntervals {
		return Outcome{Code: OverQuota, Quota: QuotaGaps}
	}
	out := s.startConversion(v, c, seq)
	if out.Code != OK {
		v.finish(c.Number, c.Number)
	}
	return out
}

// held finds a live hold of a session: the request and which of its locks it is.
func (s *State) held(session, number uint64, name string, token uint64) (r *request, i int) {
	r = s.owned1(session, number)
	if r == nil || !r.granted || r.converts() || s.clock > r.deadline {
		return nil, 0
	}
	for i, p := range r.locks {
		if p.lock != 0 && p.Name == name && p.token == token {
			return r, i
		}
	}
	return nil, 0
}

func (s *State) sameConversion(r *request, c *Convert) bool {
	hold, found := s.requests.Get(&request{seq: r.of})
	return r.converts() && found && hold.number == c.Of && r.locks[0].asked == c.Want
}

func (s *State) startConversion(v *session, c *Convert, seq Seq) Outcome {
	hold, i := s.held(v.number, c.Of, c.Name, c.Token)
	if hold == nil {
		return Outcome{Code: NotHeld, Session: v.number}
	}
	if s.now >= MaxToken {
		return Outcome{Code: Exhausted}
	}
	p := &hold.locks[i]
	l := s.editLock(p.lock)
	if p.Mode == c.Mode {
		return Outcome{Code: SameMode, Session: v.number}
	}
	if latest, found := s.requests.Get(&request{seq: p.conversion}); found && (!latest.granted || p.conversion.Index == s.index) {
		// One conversion of a hold at a time, and one in an entry: two would have one token.
		return Outcome{Code: Deadlock, Session: v.number, Cycle: []Step{s.stepOf(latest, l)}}
	}
	if c.Limit != 0 && l.bounded > 0 && l.limit != c.Limit {
		return Outcome{Code: ModeConflict, Limit: l.limit, Name: c.Name}
	}
	r := &request{
		epoch: s.epoch, seq: seq, session: v.number, number: c.Number, try: c.Wait == 0, since: s.clock, wall: s.wall,
		deadline: never, depth: -1, task: hold.task, of: hold.seq, locks: []part{{Want: c.Want, asked: c.Want}},
	}
	s.endConversion(p) // the one before was done, and the token shows that its answer arrived
	if c.Mode == Exclusive {
		if other, found := first(s.queue, l.number); found && other.rank == 0 {
			// Each waits for the other's shared hold to go: the second of two is refused (R9).
			waiting, _ := s.requests.Get(&request{seq: other.seq})
			return Outcome{Code: Deadlock, Session: v.number, Cycle: []Step{s.stepOf(waiting, l)}}
		}
		p.conversion = seq
		return s.queueUp(v, r, c.Wait)
	}
	p.conversion = seq
	r.try = false
	s.requests.ReplaceOrInsert(r)
	s.owned.ReplaceOrInsert(ownership{v.number, r.number, seq})
	v.waits++
	s.downs = append(s.downs, seq)
	return Outcome{Code: OK, Session: v.number, Request: seq}
}

func (s *State) stepOf(r *request, l *lock) Step {
	v := s.peekSession(r.session)
	return Step{Task: r.task, Owner: v.owner, WaitsFor: l.name, HeldBy: v.owner}
}

// convertDowns makes the conversions to shared of this entry, of those holds that the entry has not ended.
func (s *State) convertDowns() {
	for _, seq := range s.downs {
		if r := s.editRequest(seq); r != nil {
			s.finishConversion(r)
			s.lookFirst(r.locks[0].lock)
		}
	}
	s.downs = s.downs[:0]
}

// finishConversion gives a hold its new mode and token.
func (s *State) finishConversion(r *request) {
	hold := s.editRequest(r.of)
	i := hold.part(r.locks[0].Name)
	p := &hold.locks[i]
	l := s.editLock(p.lock)
	r.locks[0].lock = l.number
	if s.queue.Has(r.place(0)) {
		at := r.place(0)
		s.queue.Delete(at)
		s.throughs.Delete(at)
		s.barriers.Delete(at)
		s.leaveQueue(l, r)
		s.unbound(l, r.locks[0].Want)
	}
	s.holds.Delete(hold.place(i))
	s.unhold(l, p.Want)
	s.unbound(l, p.Want)
	p.Mode, p.Limit, p.former = r.locks[0].Mode, r.locks[0].Limit, p.token
	if p.Limit != 0 {
		l.limit = p.Limit
		l.bounded++
	}
	p.token = s.hold(l, p.Want)
	s.holds.ReplaceOrInsert(hold.place(i))
	s.left--

	s.setWaitDeadline(r, never)
	s.untask(r)
	v := s.editSession(r.session)
	v.waits--
	r.granted, r.try, r.depth, r.since, r.wall = true, false, len(r.locks), s.clock, s.wall
	r.locks[0].lock, r.locks[0].token = 0, p.token
	s.events = append(s.events, Event{Kind: EventGranted, Request: r.seq, Grant: s.grantOf(r)})
	s.notePart(hold, i, NoticeConverted, "", "")
}

// hold adds a hold to the sums of a lock and returns its token.
func (s *State) hold(l *lock, w Want) (token uint64) {
	if w.Mode == Exclusive {
		l.exclusive = true
		return s.now
	}
	if l.shared == 0 {
		l.period = s.now
	}
	l.shared++
	if w.Limit != 0 {
		l.limited++
	}
	return l.period
}

// unhold takes it out again.
func (s *State) unhold(l *lock, w Want) {
	if w.Mode == Exclusive {
		l.exclusive = false
		return
	}
	l.shared--
	if w.Limit != 0 {
		l.limited--
	}
}

// part returns where the lock of this name stands in the request.
func (r *request) part(name string) int {
	for i, p := range r.locks {
		if p.Name == name {
			return i
		}
	}
	return -1
}

// endConversion ends the latest conversion of one lock of a hold, with the hold or because another one follows: a wait
// for it is over, and its number is finished.
func (s *State) endConversion(p *part) {
	seq := p.conversion
	if seq == (Seq{}) {
		return
	}
	p.conversion = Seq{}
	if r := s.editRequest(seq); r != nil {
		s.end(r, endHoldGone)
	}
}

// holdsStill reports whether the hold that a conversion is of is still there.
func (s *State) holdsStill(c *Convert) bool {
	r := s.owned1(c.Session, c.Of)
	return r != nil && r.granted && !s.over(r)
}
