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

// sameConversion reports whether a request is the conversion with this body.
func (s *State) sameConversion(r *request, c *Convert) bool {
	hold := s.peekRequest(r.of)
	if !r.converts() || hold == nil || hold.number != c.Of || r.locks[0].asked != c.Want {
		return false
	}
	token := hold.locks[hold.part(c.Name)].token
	if r.granted {
		token = hold.locks[hold.part(c.Name)].former
	}
	return token == c.Token
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
	former := p.conversion
	if latest := s.peekRequest(former); latest != nil && !latest.granted {
		// One conversion of a hold at a time, and so one in an entry: two would have one token.
		return Outcome{Code: Deadlock, Session: v.number, Cycle: []Step{s.stepOf(latest, l, v)}}
	}
	if c.Limit != 0 && l.bounded > 0 && l.limit != c.Limit {
		return Outcome{Code: ModeConflict, Limit: l.limit, Name: c.Name}
	}
	rival := s.conversionWaiting(l)
	if c.Mode == Exclusive && rival != nil {
		// Each waits for the other's shared hold to go: the second of two is refused (R9).
		r := &request{task: hold.task, session: v.number}
		other := s.peekSession(rival.session)
		return Outcome{Code: Deadlock, Session: v.number, Cycle: []Step{s.stepOf(r, l, other), s.stepOf(rival, l, v)}}
	}
	r := &request{
		epoch: s.epoch, seq: seq, session: v.number, number: c.Number, try: c.Wait == 0, since: s.clock, wall: s.wall,
		deadline: never, depth: -1, task: hold.task, of: hold.seq, locks: []part{{Want: c.Want, asked: c.Want}},
	}
	p.conversion = seq
	out := Outcome{Code: OK, Session: v.number, Request: seq}
	if c.Mode == Exclusive {
		if out = s.queueUp(v, r, c.Wait); out.Code != OK {
			s.editRequest(hold.seq).locks[i].conversion = former // a refusal changes nothing
			return out
		}
	} else {
		r.try = false
		s.requests.ReplaceOrInsert(filed{seq, r})
		s.owned.ReplaceOrInsert(ownership{v.number, r.number, seq})
		s.bound(l, c.Want) // from now on, as nobody with another limit may come in between
		v.waits++
		s.downs = append(s.downs, seq)
	}
	// The one before took effect, and the token shows that its answer arrived: its number is finished.
	if before := s.editRequest(former); before != nil {
		s.end(before, endHoldGone)
	}
	return out
}

// conversionWaiting returns the conversion to exclusive that waits for a lock, nil when there is none. A try is no wait.
func (s *State) conversionWaiting(l *lock) (found *request) {
	s.eachWait(l.number, func(p place) bool {
		if r := s.peekRequest(p.seq); p.rank == 0 && !r.try && !s.over(r) {
			found = r
		}
		return p.rank == 0 && found == nil
	})
	return found
}

// stepOf says that a request waits for a lock and a session is in its way.
func (s *State) stepOf(r *request, l *lock, inTheWay *session) Step {
	return Step{Task: r.task, Owner: s.peekSession(r.session).owner, WaitsFor: l.name, HeldBy: inTheWay.owner}
}

// convertDowns makes the conversions to shared of this entry, of those holds that the entry has not ended.
func (s *State) convertDowns() {
	for _, seq := range s.downs {
		switch r := s.editRequest(seq); {
		case r == nil:
		case s.over(r): // its session was closed in this entry, and is taken apart in a later one
			s.end(r, endHoldGone)
		default:
			s.finishConversion(r)
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
	if !r.convertsDown() {
		at := r.place(0)
		s.queue.Delete(at)
		s.throughs.Delete(at)
		s.barriers.Delete(at)
		s.leaveQueue(l, r)
	}
	s.holds.Delete(hold.place(i))
	s.unhold(l, p.Want)
	s.unbound(l, p.Want) // the limit of the new mode counts since the conversion began
	p.Mode, p.Limit, p.former = r.locks[0].Mode, r.locks[0].Limit, p.token
	p.token = s.hold(l, p.Want)
	s.holds.ReplaceOrInsert(hold.place(i))
	s.left--

	s.setWaitDeadline(r, never)
	s.untask(r)
	v := s.editSession(r.session)
	v.waits--
	waited := s.clock - r.since
	r.granted, r.try, r.depth, r.since, r.wall = true, false, len(r.locks), s.clock, s.wall
	r.locks[0].lock, r.locks[0].token = 0, p.token
	s.events = append(s.events, Event{Kind: EventGranted, Request: r.seq, Grant: s.grantOf(r), Waited: waited})
	s.notePart(hold, i, NoticeConverted, "", "")
	if r.convertsDown() {
		s.lookFirst(l.number)
	}
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
	r := s.editRequest(seq)
	switch {
	case r == nil:
	case s.gone(s.peekSession(r.session)):
		s.end(r, endReleased)
	default:
		s.end(r, endHoldGone)
	}
}

// unlink has the hold that a conversion is of forget about it.
func (s *State) unlink(r *request) {
	hold := s.editRequest(r.of)
	if hold == nil {
		return
	}
	for i := range hold.locks {
		if hold.locks[i].conversion == r.seq {
			hold.locks[i].conversion = Seq{}
		}
	}
}

// holdsStill reports whether the lock that a conversion is of is still held by its session.
func (s *State) holdsStill(c *Convert) bool {
	r := s.owned1(c.Session, c.Of)
	if r == nil || !r.granted || r.converts() || s.over(r) {
		return false
	}
	i := r.part(c.Name)
	return i >= 0 && r.locks[i].lock != 0
}
