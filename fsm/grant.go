package fsm

import "github.com/google/btree"

// pass makes the grants of an entry (R5): it judges the requests in `look`, in the one total order that all requests
// share. Whether a request can have a lock depends on earlier ones only, so one ordered pass is a fixpoint. A request
// that changes where it stands puts those behind it into `look`; along the locks in `walk`, whose holds changed, the
// judging goes on from one to the next until somebody is not let through. The algorithm is that of the appendix of the
// design; handing an exclusive lock over looks at two requests however long the queue is.
func (s *State) pass() {
	for looks := 0; s.left > 0 && looks < s.looks; looks++ {
		next, found := s.look.DeleteMin()
		if !found {
			break
		}
		s.judge(s.editRequest(next.seq))
	}
}

// judge sees how far a request gets, grants it when it gets everything, and has those judged again whom that concerns.
func (s *State) judge(r *request) {
	all := len(r.locks)
	k := 0
	for k < all && s.can(r, k) {
		k++
	}
	if k == all && (s.over(r) || s.now >= MaxToken) {
		k = all - 1 // not granted any more, but in the way until it is taken apart
	}
	if r.try && k < all {
		s.end(r, endTried)
		return
	}
	old := r.depth
	s.stand(r, k)
	for i := range r.locks {
		l := r.locks[i].lock
		_, walked := s.walk.Get(l)
		if !walked && k < all && (old >= i) == (k >= i) && (old > i) == (k > i) {
			continue
		}
		s.walk.ReplaceOrInsert(l)
		if k == i {
			s.lookThroughs(r.place(i))
		} else {
			s.lookBehind(r.place(i))
		}
	}
	if k == all {
		s.grant(r)
	}
}

// judgeTries ends the tries of the entry that the pass had no time for. A try cannot wait for a later entry, and one of free
// locks is not to be refused because others end or are granted: so those that nobody else waits beside are judged, in their
// order, with a second budget. That is what the pass would have done, since whether a request can have a lock depends on
// those at the lock alone. The others are left unjudged, as if they had not come.
func (s *State) judgeTries() {
	s.left = s.works
	for _, seq := range s.tries {
		r := s.editRequest(seq)
		if r == nil || r.granted {
			continue
		}
		if s.left <= 0 || !s.waitsAlone(r) {
			s.leaveUnjudged(r)
			continue
		}
		s.look.Delete(r.order())
		s.judge(r)
	}
}

// waitsAlone reports whether nobody else waits at any lock of a request.
func (s *State) waitsAlone(r *request) bool {
	for _, p := range r.locks {
		if l, _ := s.locks.Get(&lock{number: p.lock}); l.waits != 1 {
			return false
		}
	}
	return true
}

func (s *State) leaveUnjudged(r *request) {
	s.unjudged = append(s.unjudged, r.seq)
	s.end(r, endUnjudged)
}

// can reports whether request r could have its i-th lock, as far as the holds and the requests before it say.
func (s *State) can(r *request, i int) bool {
	at := r.place(i)
	if barrier, found := first(s.barriers, at.lock); found && barrier.order.Less(at.order) {
		return false
	}
	l, _ := s.locks.Get(&lock{number: at.lock})
	if r.converts() {
		return l.delay == 0 && !l.exclusive && l.shared == 1 // its own hold
	}
	if l.delay != 0 || l.exclusive || (at.mode == Exclusive && l.shared > 0) {
		return false
	}
	// The requests that go through here and wait for a later lock count as if they held.
	taken, limit, free := l.shared, at.limit, true
	if l.limited > 0 {
		limit = tighter(limit, l.limit)
	}
	s.throughs.AscendRange(place{lock: at.lock}, at, func(before place) bool {
		if at.mode == Exclusive || before.mode == Exclusive {
			free = false
			return false
		}
		taken++
		limit = tighter(limit, before.limit)
		return true
	})
	return free && (limit == 0 || taken < uint64(limit)) && (at.mode == Exclusive || taken < s.limits.Holders)
}

// tighter returns the smaller of two limits, of which 0 is none.
func tighter(a, b uint32) uint32 {
	if a == 0 || (b != 0 && b < a) {
		return b
	}
	return a
}

// stand records how many of its first locks a request goes through: at these it stands aside for what is compatible, at
// the next it is a barrier, and at the rest it does not stand at all.
func (s *State) stand(r *request, k int) {
	for i := range r.locks {
		at := r.place(i)
		s.barriers.Delete(at)
		s.throughs.Delete(at)
		switch {
		case k > i:
			s.throughs.ReplaceOrInsert(at)
		case k == i:
			s.barriers.ReplaceOrInsert(at)
		}
	}
	r.depth = k
}

// grant turns a waiting request into a hold of all its locks. An exclusive hold's token is the entry's; a shared one has
// the token of its period, which it opens when it is the first (R6).
func (s *State) grant(r *request) {
	if r.converts() {
		s.finishConversion(r)
		return
	}
	v := s.editSession(r.session)
	for i := range r.locks {
		p := &r.locks[i]
		at := r.place(i)
		l := s.editLock(p.lock)
		s.queue.Delete(at)
		s.throughs.Delete(at)
		s.leaveQueue(l, r)
		p.token = s.hold(l, p.Want)
		s.holds.ReplaceOrInsert(at)
		s.left--
	}
	s.setWaitDeadline(r, never)
	s.untask(r)
	waited := s.clock - r.since
	r.granted, r.try, r.since, r.wall = true, false, s.clock, s.wall
	if r.maxHold != 0 {
		s.setWaitDeadline(r, s.clock+r.maxHold)
	}
	if r.task != "" {
		s.taskHolds.ReplaceOrInsert(r.asTask())
	}
	v.waits--
	v.holds++
	if v.nature != natureNamed {
		s.setDeadline(v, s.clock+v.ttl)
	}
	s.events = append(s.events, Event{Kind: EventGranted, Request: r.seq, Grant: s.grantOf(r), Waited: waited})
	s.note(r, NoticeGranted, "", "")
}

// lookFirst has the first request that stands at a lock judged again, and those behind it as long as they get through.
func (s *State) lookFirst(lock uint64) {
	s.walk.ReplaceOrInsert(lock)
	s.lookBehind(place{lock: lock})
}

// lookEverywhere has the queues of all locks judged again. It takes time for each lock with a queue; only a leader with
// another quota of holders asks for it.
func (s *State) lookEverywhere() {
	for next := uint64(1); ; {
		var at place
		s.queue.AscendGreaterOrEqual(place{lock: next}, func(p place) bool {
			at = p
			return false
		})
		if at.lock == 0 {
			return
		}
		s.lookFirst(at.lock)
		next = at.lock + 1
	}
}

// lookBehind has the next request that stands at a lock behind a place judged again. Those that do not stand there are
// stopped by an earlier lock of theirs, whatever becomes of this one, and are left out: else a queue of requests for the
// same two locks would be judged as a whole at each hand-over.
func (s *State) lookBehind(at place) {
	var next place
	for _, standing := range []*btree.BTreeG[place]{s.barriers, s.throughs} {
		standing.AscendGreaterOrEqual(at, func(p place) bool {
			if p.lock == at.lock && p.order == at.order {
				return true
			}
			if p.lock == at.lock && (next.lock == 0 || p.order.Less(next.order)) {
				next = p
			}
			return false
		})
	}
	if next.lock != 0 {
		s.look.ReplaceOrInsert(next.order)
	}
}

// lookThroughs has those judged again that stand through a lock behind a new barrier.
func (s *State) lookThroughs(barrier place) {
	s.throughs.AscendGreaterOrEqual(barrier, func(p place) bool {
		if p.lock != barrier.lock {
			return false
		}
		if p.order != barrier.order {
			s.look.ReplaceOrInsert(p.order)
		}
		return true
	})
}
