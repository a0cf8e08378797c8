package fsm

import "slices"

// waitGrace is how long a wait outlives its caller's wait_ms, so that the caller can repeat the call and find its place
// kept; tombMemory is how long a key is remembered beyond its longest wait (R8). In ms.
const (
	waitGrace  = 10_000
	tombMemory = 60_000
)

// acquire puts a request into the queues of its locks, or answers a repeated one from what became of it. Who is granted
// is decided after all commands of the entry.
func (s *State) acquire(a *Acquire, seq Seq) Outcome {
	if a.Session == 0 {
		return s.acquireOwn(a, seq)
	}
	v := s.editSession(a.Session)
	if s.gone(v) {
		return Outcome{Code: SessionGone}
	}
	if v.nature != natureNamed {
		return Outcome{Code: OwnSession, Session: v.number}
	}
	s.finishBelow(v, a.Done)
	if r := s.owned1(v.number, a.Number); r != nil {
		return s.replay(r, a)
	}
	if v.isFinished(a.Number) {
		return Outcome{Code: Finished, Session: v.number}
	}
	if len(v.finished) >= maxIntervals {
		// Not finished by this refusal: that would need the interval that there is no room for.
		return Outcome{Code: OverQuota, Quota: QuotaGaps}
	}
	if v.holds+v.waits >= s.limits.Requests {
		v.finish(a.Number, a.Number)
		return Outcome{Code: OverQuota, Quota: QuotaRequests}
	}
	out := s.enqueue(v, a, seq)
	if out.Code != OK {
		v.finish(a.Number, a.Number)
	}
	return out
}

// acquireOwn is an acquire without a session: it opens one that ends with its hold.
func (s *State) acquireOwn(a *Acquire, seq Seq) Outcome {
	if n := s.sessionByID(a.ID); n != 0 {
		v := s.editSession(n)
		r := s.owned1(n, 0)
		if s.gone(v) || r == nil {
			return Outcome{Code: Finished, Session: n}
		}
		if v.owner != a.Owner || v.asked != a.TTL {
			return Outcome{Code: Mismatch}
		}
		v.memory = max(v.memory, a.Wait+tombMemory)
		return s.replay(r, a)
	}
	if s.sessionQuota() {
		return Outcome{Code: OverQuota, Quota: QuotaSessions}
	}
	if a.Keyed && s.tombstones >= s.limits.Tombstones {
		return Outcome{Code: OverQuota, Quota: QuotaTombstones}
	}
	nature := natureOwn
	if a.Keyed {
		nature = natureKeyed
	}
	v := s.makeSession(session{
		id: a.ID, nature: nature, owner: a.Owner, ttl: a.TTL, asked: a.TTL, deadline: never, memory: a.Wait + tombMemory,
	})
	out := s.enqueue(v, a, seq)
	if v = s.editSession(v.number); out.Code != OK && v != nil && !v.tomb { // one that was queued has gone with its request
		s.bury(v)
	}
	return out
}

// replay answers a repeated acquire: the same grant, or the same place in the queue with a later deadline.
func (s *State) replay(r *request, a *Acquire) Outcome {
	if !r.wants(a) {
		return Outcome{Code: Mismatch, Session: r.session}
	}
	return s.replayed(r, a.Wait)
}

func (s *State) replayed(r *request, wait uint64) Outcome {
	if s.over(r) { // gone already, and never revived: a wait, or a hold with a maximum
		return Outcome{Code: Finished, Session: r.session}
	}
	if !r.granted {
		s.setWaitDeadline(r, max(r.deadline, s.clock+wait+waitGrace))
	}
	return Outcome{Code: Queued, Session: r.session, Request: r.seq, Replayed: true}
}

// enqueue adds a new request. Its answer is OK when it stands in the queues now; otherwise nothing was changed.
func (s *State) enqueue(v *session, a *Acquire, seq Seq) Outcome {
	if s.now >= MaxToken {
		return Outcome{Code: Exhausted}
	}
	if out, refused := s.refusal(a.Locks); refused {
		return out
	}
	r := &request{
		epoch: s.epoch, seq: seq, session: v.number, number: a.Number, try: a.Wait == 0, since: s.clock, wall: s.wall,
		deadline: never, depth: -1, task: a.Task, trace: a.Trace, locks: make([]part, len(a.Locks)),
		priority: a.Priority, maxHold: a.MaxHold, delay: a.Delay,
	}
	for i, w := range a.Locks {
		r.locks[i] = part{Want: w, asked: w, value: a.Value}
	}
	return s.queueUp(v, r, a.Wait)
}

// queueUp puts a new request into the queues of its locks, unless it would wait for its own task (R7).
func (s *State) queueUp(v *session, r *request, wait uint64) Outcome {
	for i := range r.locks {
		p := &r.locks[i]
		l := s.makeLock(p.Name)
		l.waits++
		if len(r.locks) > 1 {
			l.multiple++
		}
		s.bound(l, p.Want)
		p.lock = l.number
		s.queue.ReplaceOrInsert(r.place(i))
		s.walk.ReplaceOrInsert(l.number)
	}
	s.requests.ReplaceOrInsert(filed{r.seq, r})
	s.owned.ReplaceOrInsert(ownership{v.number, r.number, r.seq})
	s.look.ReplaceOrInsert(r.order())
	v.waits++
	if r.try {
		s.tries = append(s.tries, r.seq)
		return Outcome{Code: OK, Session: v.number, Request: r.seq}
	}
	s.setWaitDeadline(r, s.clock+wait+waitGrace)
	s.waitAsTask(r)
	if cycle := s.deadlock(r); cycle != nil {
		s.end(r, endDeadlock)
		return Outcome{Code: Deadlock, Session: v.number, Cycle: cycle}
	}
	return Outcome{Code: OK, Session: v.number, Request: r.seq}
}

// refusal says why a request for these locks cannot even queue.
func (s *State) refusal(locks []Want) (Outcome, bool) {
	for _, w := range locks {
		n := s.lockNamed(w.Name)
		if n == 0 {
			continue
		}
		l, _ := s.locks.Get(&lock{number: n})
		switch {
		case w.Limit != 0 && l.bounded > 0 && l.limit != w.Limit:
			return Outcome{Code: ModeConflict, Limit: l.limit, Name: w.Name}, true
		case l.waits >= s.limits.Waiters:
			return Outcome{Code: OverQuota, Quota: QuotaWaiters, Name: w.Name}, true
		case len(locks) > 1 && l.multiple >= s.limits.Multiple:
			return Outcome{Code: OverQuota, Quota: QuotaMultiple, Name: w.Name}, true
		}
	}
	return Outcome{}, false
}

// settle completes the answer to an acquire once the grants of its entry were made.
func (s *State) settle(a *Acquire, out *Outcome) {
	if out.Code != OK && out.Code != Queued {
		return
	}
	r := s.peekRequest(out.Request)
	found := r != nil && !s.over(r) // what is gone is not answered, though the work of taking it apart may be left over (R3)
	switch {
	case !found && a.Session != 0 && s.gone(s.peekSession(a.Session)): // closed, or raised, in the same entry
		*out = Outcome{Code: SessionGone}
	case !found && slices.Contains(s.unjudged, out.Request):
		*out = Outcome{Code: Unjudged}
	case !found && (a.Wait > 0 || out.Replayed): // cancelled in the same entry
		*out = Outcome{Code: Finished}
	case !found:
		*out = s.heldOutcome(out.Session, a.Locks, 0)
	case r.granted:
		out.Code = OK
		out.Grant = s.grantOf(r)
	default:
		s.waits(r, out)
	}
}

// waits answers a request that waits at the end of an entry, and tells it when the entry brought it.
func (s *State) waits(r *request, out *Outcome) {
	out.Code = Queued
	if !out.Replayed {
		s.note(r, NoticeQueued, "", "")
	}
}

// heldOutcome says who is in the way at these locks; when nobody is but so many holds of the caller's own, they are in
// their delay.
func (s *State) heldOutcome(session uint64, locks []Want, own int) Outcome {
	out := Outcome{Code: Held, Session: session}
	out.Holders, out.Waiting = s.holdersOf(locks)
	if len(out.Holders) == own && out.Waiting == 0 {
		if out.Retry = s.delayOf(locks); out.Retry > 0 {
			out.Code, out.Holders = Delayed, nil
		}
	}
	return out
}

// delayOf returns how long the longest lock-delay of these locks lasts, in ms; 0 when none has one.
func (s *State) delayOf(locks []Want) (left uint64) {
	for _, w := range locks {
		if l, found := s.locks.Get(&lock{number: s.lockNamed(w.Name)}); found && l.delay != 0 {
			left = max(left, l.delay+1-min(l.delay, s.clock))
		}
	}
	return left
}

func (s *State) grantOf(r *request) *Grant {
	v := s.peekSession(r.session)
	g := &Grant{Session: v.number, ID: v.id, Owner: v.owner, Number: r.number, TTL: v.ttl, Deadline: v.deadline}
	hold := r
	if r.converts() {
		if hold = s.peekRequest(r.of); hold == nil {
			return g
		}
	}
	if hold.maxHold != 0 {
		g.HoldEnds = hold.deadline
	}
	for _, p := range hold.locks {
		if r.converts() && p.Name != r.locks[0].Name {
			continue
		}
		if p.lock != 0 {
			g.Locks = append(g.Locks, Granted{p.Want, p.token})
		}
	}
	return g
}

// owned1 returns the live request of this number of a session for changing, nil when there is none.
func (s *State) owned1(session, number uint64) *request {
	var found *request
	s.owned.AscendGreaterOrEqual(ownership{session: session, number: number}, func(o ownership) bool {
		if o.session == session && o.number == number {
			found = s.editRequest(o.seq)
		}
		return false
	})
	return found
}

// settleConvert completes the answer to a conversion likewise.
func (s *State) settleConvert(c *Convert, out *Outcome) {
	if out.Code != OK && out.Code != Queued {
		return
	}
	r := s.peekRequest(out.Request)
	found := r != nil && !s.over(r)
	switch {
	case !found && s.gone(s.peekSession(c.Session)):
		*out = Outcome{Code: SessionGone}
	case !found && !s.holdsStill(c): // the hold ended in the same entry
		*out = Outcome{Code: NotHeld, Session: c.Session}
	case !found && slices.Contains(s.unjudged, out.Request):
		*out = Outcome{Code: Unjudged}
	case !found && (c.Wait > 0 || out.Replayed || c.Mode == Shared): // cancelled in the same entry
		*out = Outcome{Code: Finished, Session: c.Session}
	case !found:
		*out = s.heldOutcome(c.Session, []Want{c.Want}, 1)
	case r.granted:
		out.Code = OK
		out.Grant = s.grantOf(r)
	default:
		s.waits(r, out)
	}
}

// finishBelow marks every number below done as finished, except those that live: done only closes gaps (R8).
func (s *State) finishBelow(v *session, done uint64) {
	if v.nature != natureNamed || done < 2 {
		return
	}
	// What the client has finished it knows the end of.
	if v.lost = slices.DeleteFunc(v.lost, func(l Lost) bool { return l.Number < done }); len(v.lost) == 0 {
		v.lost = nil
	}
	if len(v.finished) > 0 && v.finished[0].low == 1 && v.finished[0].high >= done-1 {
		return
	}
	low := uint64(1)
	s.owned.AscendRange(ownership{session: v.number}, ownership{session: v.number, number: done}, func(o ownership) bool {
		v.finish(low, o.number-1)
		low = o.number + 1
		return true
	})
	v.finish(low, done-1)
}

func (s *State) setWaitDeadline(r *request, at uint64) {
	kind := dueWait
	if r.granted {
		kind = dueHold
	}
	if r.deadline != never {
		s.due.Delete(deadline{at: r.deadline, kind: kind, id: r.session, seq: r.seq})
	}
	if r.deadline = at; at != never {
		s.due.ReplaceOrInsert(deadline{at: at, kind: kind, id: r.session, seq: r.seq})
	}
}

func (r *request) place(i int) place {
	p := r.locks[i]
	return place{lock: p.lock, order: r.order(), mode: p.Mode, limit: p.Limit}
}
