package fsm

// ending says why a request ends.
type ending uint8

const (
	endReleased  ending = iota // given back, or its session was closed
	endCancelled               // while it waited
	endTried                   // a try that was not granted
	endUnjudged                // a try that nobody had time to judge
	endTimedOut                // its wait went past its deadline
	endExpired                 // its session expired: unclean
	endMaxHold                 // the hold's own maximum was reached: unclean
	endForced                  // by an operator: unclean
	endDeadlock                // it would have waited for its own task
	endHoldGone                // a conversion whose hold has ended
)

// unclean reports whether whoever held the lock may still believe that it does (R9).
func (e ending) unclean() bool { return e == endExpired || e == endMaxHold || e == endForced }

// notice says how the end of a hold is told.
func (e ending) notice() (kind NoticeKind, reason string) {
	switch e {
	case endExpired:
		return NoticeExpired, "session"
	case endMaxHold:
		return NoticeExpired, reasonMaxHold
	case endForced:
		return NoticeRevoked, ""
	}
	return NoticeReleased, ""
}

const reasonMaxHold = "max_hold"

// code is what a caller that still waits is told.
func (e ending) code() Code {
	switch e {
	case endCancelled:
		return Cancelled
	case endTried, endUnjudged, endTimedOut:
		return Held
	case endHoldGone:
		return NotHeld
	}
	return SessionGone
}

func (s *State) release(c *Release) Outcome {
	v := s.editSession(c.Session)
	if s.gone(v) {
		return Outcome{Code: SessionGone}
	}
	r := s.owned1(v.number, c.Number)
	if r == nil || !r.granted || r.converts() || s.clock > r.deadline || (c.Number == 0 && c.Token == 0) {
		return Outcome{Code: NotHeld, Session: v.number}
	}
	// A release names session, request and token, so that a late duplicate never touches another hold (R8).
	matches := false
	for _, p := range r.locks {
		if p.lock != 0 && (c.Name == "" || c.Name == p.Name) && (c.Token == 0 || c.Token == p.token || c.Token == p.former) {
			matches = true
		}
	}
	if !matches {
		return Outcome{Code: NotHeld, Session: v.number}
	}
	out := Outcome{Code: OK, Session: v.number}
	for i, p := range r.locks {
		if p.lock != 0 && (c.Name == "" || c.Name == p.Name) {
			out.Names = append(out.Names, p.Name)
			if c.Name != "" {
				s.giveBack(r, i, endReleased, "", "")
			}
		}
	}
	if c.Name == "" || r.empty() {
		s.end(r, endReleased)
	}
	return out
}

func (r *request) empty() bool {
	for _, p := range r.locks {
		if p.lock != 0 {
			return false
		}
	}
	return true
}

func (s *State) cancel(c *Cancel) Outcome {
	n := c.Session
	if c.Keyed {
		if n = s.sessionByID(c.Key); n == 0 {
			return s.cancelAhead(c)
		}
	}
	v := s.editSession(n)
	if s.gone(v) {
		if c.Keyed {
			return Outcome{Code: Finished}
		}
		return Outcome{Code: SessionGone}
	}
	if v.nature == natureNamed && c.Number == 0 {
		return Outcome{Code: NotHeld}
	}
	r := s.owned1(n, c.Number)
	switch {
	case r == nil && v.nature != natureNamed:
		return Outcome{Code: NotHeld}
	case r == nil && v.isFinished(c.Number):
		return Outcome{Code: Finished, Session: n}
	case r == nil && len(v.finished) >= maxIntervals:
		return Outcome{Code: OverQuota, Quota: QuotaGaps}
	case r == nil:
		// The cancel overtook its acquire: finish the number, so that the late acquire is refused (R8).
		v.finish(c.Number, c.Number)
		return Outcome{Code: Cancelled, Session: n}
	case !r.granted:
		out := Outcome{Code: Cancelled, Session: n}
		out.Holders, out.Waiting = s.holdersOf(r.wanted())
		s.end(r, endCancelled)
		return out
	case s.over(r): // past its maximum already, and no clean end any more
		return Outcome{Code: Finished, Session: n}
	case c.Waiting:
		return Outcome{Code: OK, Session: n, Request: r.seq, Grant: s.grantOf(r), Replayed: true}
	}
	s.end(r, endReleased)
	if r.converts() { // it took effect, and what it converted is held on
		return Outcome{Code: Finished, Session: n}
	}
	return Outcome{Code: Released, Session: n}
}

// cancelAhead leaves a tombstone for a key whose acquire has not come yet. How long that may still wait is not known, so
// it is remembered for the longest wait there is.
func (s *State) cancelAhead(c *Cancel) Outcome {
	if s.tombstones >= s.limits.Tombstones {
		return Outcome{Code: OverQuota, Quota: QuotaTombstones}
	}
	v := s.makeSession(session{id: c.Key, nature: natureKeyed, deadline: never, memory: MaxWait + tombMemory})
	s.bury(v)
	return Outcome{Code: Cancelled}
}

func (r *request) wanted() []Want {
	w := make([]Want, len(r.locks))
	for i, p := range r.locks {
		w[i] = p.Want
	}
	return w
}

// bury ends a session that owns nothing any more. Of one named by a key a tombstone is left, so that a late duplicate of
// its acquire is answered finished and leaves no ghost (R8).
func (s *State) bury(v *session) {
	if v.nature != natureKeyed || v.tomb {
		s.dropSession(v)
		return
	}
	s.setDeadline(v, never)
	s.ttls.Delete(named[uint64]{v.ttl, v.number})
	s.rem.Delete(v.number)
	v.tomb, v.closed, v.owner, v.finished, v.lost = true, false, "", nil, nil
	s.tombstones++
	s.setDeadline(v, s.clock+v.memory)
}

// end takes a request out of everything, whether it waits or holds, and has those judged again whom it stood in the way
// of. A session of its own ends with it.
func (s *State) end(r *request, why ending) {
	v := s.editSession(r.session)
	s.setWaitDeadline(r, never)
	switch {
	case r.granted && r.converts(): // only its number is left
		s.unlink(r)
		s.left--
	case r.granted:
		v.holds--
		for i := range r.locks {
			if r.locks[i].lock != 0 {
				s.giveBack(r, i, why, "", "")
			}
		}
	default:
		v.waits--
		s.stopWaiting(r, why)
	}
	s.forget(r)
	if why != endUnjudged {
		v.finishNumber(r)
	} else if v.nature != natureNamed {
		s.dropSession(v) // without a tombstone: the key was not used
		return
	}
	// A session of its own whose hold was taken from it stays until it would have ended anyway, to tell so.
	if v.nature != natureNamed && why != endMaxHold && why != endForced {
		s.bury(v)
	}
}

// forget takes a request that neither waits nor holds any more out of the state.
func (s *State) forget(r *request) {
	s.untask(r)
	s.owned.Delete(ownership{r.session, r.number, r.seq})
	s.requests.Delete(filed{seq: r.seq})
}

// finishNumber has a repeat of a request answered finished (R8).
func (v *session) finishNumber(r *request) {
	if r.number != 0 {
		v.finish(r.number, r.number)
	}
}

// stopWaiting takes a waiting request out of its queues.
func (s *State) stopWaiting(r *request, why ending) {
	s.look.Delete(r.order())
	if why != endTried && why != endUnjudged && why != endDeadlock {
		s.events = append(s.events, Event{Kind: EventEnded, Request: r.seq, Code: why.code()})
		if r.seq.Index != s.index { // else nobody was told that it waits
			s.note(r, NoticeCancelled, "", "")
		}
	}
	if r.converts() {
		s.unlink(r)
	}
	if r.convertsDown() {
		s.unbound(s.editLock(s.lockNamed(r.locks[0].Name)), r.locks[0].Want)
		s.left--
		return
	}
	for i := range r.locks {
		s.unqueue(r, i)
	}
}

// unqueue takes a waiting request out of the queue of one of its locks.
func (s *State) unqueue(r *request, i int) {
	at := r.place(i)
	l := s.editLock(at.lock)
	s.walk.ReplaceOrInsert(l.number)
	s.lookBehind(at)
	s.queue.Delete(at)
	s.barriers.Delete(at)
	s.throughs.Delete(at)
	s.leaveQueue(l, r)
	s.unbound(l, r.locks[i].Want)
	s.dropIdle(l)
	s.left--
}

// leaveQueue keeps the sums of a lock that a request stops waiting for.
func (s *State) leaveQueue(l *lock, r *request) {
	l.waits--
	if len(r.locks) > 1 {
		l.multiple--
	}
}

// bound and unbound count those with a limit at a lock.
func (s *State) bound(l *lock, w Want) {
	if w.Limit != 0 {
		l.limit = w.Limit
		l.bounded++
	}
}

func (s *State) unbound(l *lock, w Want) {
	if w.Limit != 0 {
		l.bounded--
	}
}

// giveBack ends the hold of one lock of a granted request. After an unclean end the lock is in its delay; what an
// operator asks for in addition he says afterwards.
func (s *State) giveBack(r *request, i int, why ending, reason, by string) {
	s.endConversion(&r.locks[i])
	kind, word := why.notice()
	if reason != "" {
		word = reason
	}
	s.notePart(r, i, kind, word, by)
	if why == endMaxHold || why == endForced {
		s.lose(r, i, word, by)
	}
	at := r.place(i)
	l := s.editLock(at.lock)
	s.holds.Delete(at)
	s.unhold(l, r.locks[i].Want)
	s.unbound(l, r.locks[i].Want)
	r.locks[i].lock = 0
	if why.unclean() && r.delay != 0 {
		s.setDelay(l, s.clock+r.delay)
	}
	s.lookFirst(l.number)
	s.dropIdle(l)
	s.left--
}

// maxLost bounds what a session is told that it lost; the oldest makes room.
const maxLost = 1024

// lose has the session's next renewals tell that it lost a hold.
func (s *State) lose(r *request, i int, reason, by string) {
	v := s.editSession(r.session)
	if len(v.lost) == maxLost {
		v.lost = v.lost[1:]
	}
	v.lost = append(v.lost, Lost{r.number, r.locks[i].Name, r.locks[i].token, reason, by})
}

// setDelay keeps a lock from everybody until the lease clock is above at, and never shortens that.
func (s *State) setDelay(l *lock, at uint64) {
	if at <= l.delay {
		return
	}
	if l.delay != 0 {
		s.due.Delete(deadline{at: l.delay, kind: dueDelay, id: l.number})
	}
	l.delay = at
	s.due.ReplaceOrInsert(deadline{at: at, kind: dueDelay, id: l.number})
	s.notices = append(s.notices, Notice{Kind: NoticeDelayed, Name: l.name})
}

func (s *State) endDelay(l *lock) {
	s.due.Delete(deadline{at: l.delay, kind: dueDelay, id: l.number})
	l.delay = 0
	s.lookFirst(l.number)
	s.dropIdle(l)
	s.left--
}

// setValue changes what is kept with a hold, at its holder's word.
func (s *State) setValue(c *Value) Outcome {
	v := s.editSession(c.Session)
	if s.gone(v) {
		return Outcome{Code: SessionGone}
	}
	r, i := s.held(v.number, c.Number, c.Name, c.Token)
	if r == nil {
		return Outcome{Code: NotHeld, Session: v.number}
	}
	r.locks[i].value = c.Value
	s.notePart(r, i, NoticeValue, "", "")
	return Outcome{Code: OK, Session: v.number}
}

// force ends the holds of a lock that have this token, at most as many as the entry may still do; Count says how many, and
// More whether some are left.
func (s *State) force(c *Force) Outcome {
	n := s.lockNamed(c.Name)
	var holds []Seq
	most, more := max(1, s.left), false
	s.eachHold(n, func(p place) bool {
		r := s.peekRequest(p.seq)
		if i := r.position(n); r.locks[i].token != c.Token || s.over(r) {
			return true
		}
		if more = len(holds) == most; !more {
			holds = append(holds, p.seq)
		}
		return !more
	})
	if n == 0 || len(holds) == 0 {
		return Outcome{Code: NotHeld}
	}
	for _, seq := range holds {
		r := s.editRequest(seq)
		v := s.editSession(r.session)
		s.giveBack(r, r.position(n), endForced, c.Reason, c.By)
		if r.empty() {
			s.setWaitDeadline(r, never)
			v.holds--
			s.forget(r)
			v.finishNumber(r)
		}
	}
	if c.Delay > 0 {
		s.setDelay(s.makeLock(c.Name), s.clock+c.Delay)
	}
	return Outcome{Code: OK, Count: len(holds), More: more}
}

// removals takes apart what is over, as far as the entry's work allows: closed sessions in the order of their numbers,
// then what is past its deadline in the order of the deadlines. What is left stays where it is and is dead all the same
// (R3): its owner is gone, it is only still in the way.
func (s *State) removals() {
	for s.left > 0 {
		n, found := s.rem.Min()
		if !found {
			break
		}
		s.takeApart(s.editSession(n), endReleased)
	}
	for s.left > 0 {
		d, found := s.due.Min()
		if !found || s.clock <= d.at {
			break
		}
		switch d.kind {
		case dueSession:
			s.takeApart(s.editSession(d.id), endExpired)
		case dueWait:
			s.end(s.editRequest(d.seq), endTimedOut)
		case dueTombstone:
			s.dropSession(s.editSession(d.id))
			s.left--
		case dueHold:
			s.end(s.editRequest(d.seq), endMaxHold)
		case dueDelay:
			s.endDelay(s.editLock(d.id))
		}
	}
}

// takeApart ends the requests of a session by number while the entry may still work, and then the session itself.
func (s *State) takeApart(v *session, why ending) {
	for s.left > 0 {
		var first *request
		s.owned.AscendGreaterOrEqual(ownership{session: v.number}, func(o ownership) bool {
			if o.session == v.number {
				first = s.editRequest(o.seq)
			}
			return false
		})
		if first == nil {
			reason := "closed"
			if why == endExpired {
				reason = "expired"
			}
			s.noteSession(v, NoticeSessionEnded, reason)
			s.bury(v)
			s.left--
			return
		}
		s.end(first, why)
		if v.nature != natureNamed { // its session ended with it
			return
		}
	}
}

// backlog reports whether an entry left work for the next one.
func (s *State) backlog() bool {
	if s.rem.Len() > 0 || s.look.Len() > 0 {
		return true
	}
	d, found := s.due.Min()
	return found && s.clock > d.at
}
