package fsm

import (
	"fmt"
)

// rebuild rebuilds what is derived from the objects, and refuses objects that do not fit together: whatever is accepted
// can be applied to (R12).
func (s *State) rebuild() error {
	b := rebuilder{s: s}
	s.sessions.Ascend(b.session)
	s.locks.Ascend(b.lock)
	s.requests.Ascend(func(f filed) bool { return b.request(f.r) })
	s.sessions.Ascend(b.sessionSums)
	s.locks.Ascend(b.lockSums)
	s.requests.Ascend(func(f filed) bool { return b.tasks(f.r) })
	b.work()
	return b.err
}

type rebuilder struct {
	s   *State
	err error
}

// expect keeps the first thing that is wrong, and reports whether nothing is so far.
func (b *rebuilder) expect(ok bool, format string, args ...any) bool {
	if b.err == nil && !ok {
		b.err = fmt.Errorf("%w: %s", errMalformed, fmt.Sprintf(format, args...))
	}
	return b.err == nil
}

func (b *rebuilder) session(v *session) bool {
	s := b.s
	v.epoch = s.epoch
	b.expect(v.number >= 1 && v.number <= s.lastSession, "session %d", v.number)
	b.expect(v.ttl <= MaxTTL && v.asked <= MaxTTL && v.memory <= MaxWait+tombMemory, "times of session %d", v.number)
	b.expect(s.sessionByID(v.id) == 0, "two sessions with one id")
	s.ids.ReplaceOrInsert(named[ID]{v.id, v.number})
	if v.tomb {
		s.tombstones++
		b.expect(v.nature == natureKeyed && !v.closed && v.deadline != never && v.owner == "", "tombstone %d", v.number)
	}
	b.expect(!v.closed || v.deadline == never, "closed session %d", v.number)
	b.expect(v.nature != natureNamed || v.closed || v.deadline != never, "session %d never ends", v.number)
	b.expect(v.nature == natureNamed || len(v.finished) == 0, "finished numbers of session %d", v.number)
	for i, f := range v.finished {
		ordered := i == 0 || (v.finished[i-1].high < f.low && v.finished[i-1].high+1 < f.low)
		b.expect(f.low >= 1 && f.low <= f.high && f.high <= MaxToken && ordered, "finished numbers of session %d", v.number)
	}
	at := v.deadline
	v.deadline = never
	s.setDeadline(v, at)
	return b.err == nil
}

func (b *rebuilder) lock(l *lock) bool {
	l.epoch = b.s.epoch
	b.expect(l.number >= 1 && l.number <= b.s.lastLock, "lock %d", l.number)
	b.expect(b.s.lockNamed(l.name) == 0, "two locks called %q", l.name)
	b.s.names.ReplaceOrInsert(named[string]{l.name, l.number})
	if l.delay != 0 {
		b.s.due.ReplaceOrInsert(deadline{at: l.delay, kind: dueDelay, id: l.number})
	}
	return b.err == nil
}

func (b *rebuilder) request(r *request) bool {
	s := b.s
	r.epoch = s.epoch
	v := s.editSession(r.session)
	if !b.expect(v != nil && !v.tomb, "request of session %d, which is not there", r.session) {
		return false
	}
	b.expect(r.seq.Index >= 1 && r.seq.Index <= s.index, "request of entry %d", r.seq.Index)
	b.expect((v.nature == natureNamed) == (r.number != 0) && !v.isFinished(r.number), "request %d of session %d", r.number, v.number)
	b.expect(s.owned1(v.number, r.number) == nil, "request %d of session %d twice", r.number, v.number)
	b.expect((r.granted && r.maxHold == 0) == (r.deadline == never), "deadline of request %v", r.seq)
	b.expect(r.depth <= len(r.locks) && r.granted == (r.depth == len(r.locks)), "depth of request %v", r.seq)
	for i := 1; i < len(r.locks); i++ {
		b.expect(r.locks[i-1].Name < r.locks[i].Name, "locks of request %v are not in order", r.seq)
	}
	b.expect(!r.empty() != (r.granted && r.converts()), "request %v without a lock", r.seq)
	b.expect(!r.converts() || (len(r.locks) == 1 && r.maxHold == 0 && v.nature == natureNamed), "conversion %v", r.seq)
	if b.err != nil {
		return false
	}
	s.owned.ReplaceOrInsert(ownership{r.session, r.number, r.seq})
	switch {
	case r.granted && r.converts():
	case r.granted:
		v.holds++
	default:
		v.waits++
	}
	at := r.deadline
	r.deadline = never
	s.setWaitDeadline(r, at)
	for i := range r.locks {
		if !b.place(r, i) {
			return false
		}
	}
	return true
}

// place rebuilds the indexes and sums for one lock of a request.
func (b *rebuilder) place(r *request, i int) bool {
	s, p := b.s, r.locks[i]
	b.expect(r.granted == (p.token != 0) && p.token < MaxToken && p.token <= s.base+s.index, "token %d of request %v", p.token, r.seq)
	if p.lock == 0 {
		return b.expect(r.granted, "request %v waits for nothing", r.seq)
	}
	l := s.editLock(p.lock)
	if !b.expect(l != nil && l.name == p.Name, "request %v for lock %d, which is not there", r.seq, p.lock) {
		return false
	}
	at := r.place(i)
	if at.limit != 0 {
		b.expect(l.bounded == 0 || l.limit == at.limit, "lock %q with two limits", l.name)
		l.limit = at.limit
		l.bounded++
	}
	if r.granted {
		b.expect(!l.exclusive && (at.mode == Shared || l.shared == 0), "lock %q is held twice", l.name)
		s.holds.ReplaceOrInsert(at)
		if at.mode == Exclusive {
			l.exclusive = true
		} else {
			b.expect(p.token == l.period, "lock %q with two periods", l.name)
			l.shared++
			if at.limit != 0 {
				l.limited++
			}
		}
		return b.err == nil
	}
	s.queue.ReplaceOrInsert(at)
	l.waits++
	if len(r.locks) > 1 {
		l.multiple++
	}
	switch {
	case r.depth > i:
		s.throughs.ReplaceOrInsert(at)
	case r.depth == i:
		s.barriers.ReplaceOrInsert(at)
	}
	return b.err == nil
}

// tasks rebuilds what deadlocks are looked for in, and checks that conversions and their holds know each other.
func (b *rebuilder) tasks(r *request) bool {
	s := b.s
	switch {
	case r.task == "" || (r.granted && r.converts()):
	case r.granted:
		s.taskHolds.ReplaceOrInsert(r.asTask())
	default:
		s.waitAsTask(r)
	}
	if r.converts() {
		hold := s.peekRequest(r.of)
		ok := hold != nil && hold.granted && !hold.converts() && hold.session == r.session && hold.task == r.task
		if ok {
			i := hold.part(r.locks[0].Name)
			ok = i >= 0 && hold.locks[i].lock != 0 && hold.locks[i].conversion == r.seq
		}
		b.expect(ok && (r.granted || r.locks[0].Mode == Exclusive), "conversion %v of no hold", r.seq)
	}
	for _, p := range r.locks {
		if p.conversion == (Seq{}) {
			continue
		}
		c := s.peekRequest(p.conversion)
		b.expect(c != nil && c.of == r.seq && c.locks[0].Name == p.Name && p.lock != 0, "request %v is converted by none", r.seq)
	}
	return b.err == nil
}

func (b *rebuilder) sessionSums(v *session) bool {
	if v.nature != natureNamed && !v.tomb {
		b.expect(v.holds+v.waits == 1 || (v.holds+v.waits == 0 && len(v.lost) > 0), "session %d of one grant has %d", v.number, v.holds+v.waits)
		b.expect(v.closed || (v.waits == 1) == (v.deadline == never), "deadline of session %d", v.number)
	}
	_, found := b.s.rem.Get(v.number)
	return b.expect(v.closed == found, "closed session %d", v.number)
}

func (b *rebuilder) lockSums(l *lock) bool { return b.expect(!l.idle(), "lock %q is idle", l.name) }

// work looks at what the entry before left over.
func (b *rebuilder) work() {
	s := b.s
	s.requests.Ascend(func(f filed) bool {
		r := f.r
		_, found := s.look.Get(r.order())
		b.expect(!found || !r.granted, "request %v is to be judged", r.seq)
		return b.expect(found || r.depth >= 0, "request %v is never judged", r.seq)
	})
	s.look.Ascend(func(o order) bool {
		r := s.peekRequest(o.seq)
		return b.expect(r != nil && r.order() == o, "request %v is not there", o.seq)
	})
	s.walk.Ascend(func(n uint64) bool { return b.expect(s.locks.Has(&lock{number: n}), "lock %d is not there", n) })
	s.rem.Ascend(func(n uint64) bool {
		return b.expect(s.sessions.Has(&session{number: n}), "session %d is not there", n)
	})
	b.expect(s.look.Len() > 0 || s.walk.Len() == 0, "locks to walk and nothing to judge")
}
