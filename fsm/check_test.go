package fsm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/btree"
)

// check returns what is wrong with a state between two entries: every index and sum is built again from the objects and
// compared with the one that is kept, and the rules that hold at all times are looked at.
func check(s *State) error {
	c := checker{s: s, locks: map[uint64]*lock{}, sums: map[uint64]*lock{}, sessions: map[uint64]*session{}, own: map[uint64][]*request{}}
	c.objects()
	if len(c.wrong) == 0 { // else the rest would stumble over what is not there
		c.indexes()
		c.rules()
		c.work()
	}
	return errors.Join(c.wrong...)
}

type checker struct {
	s        *State
	wrong    []error
	sessions map[uint64]*session
	locks    map[uint64]*lock
	sums     map[uint64]*lock // what the sums of a lock should be
	own      map[uint64][]*request
}

func (c *checker) fail(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Errorf(format, args...))
}

func (c *checker) expect(ok bool, format string, args ...any) {
	if !ok {
		c.fail(format, args...)
	}
}

// items returns what is in a tree, in its order.
func items[T any](t *btree.BTreeG[T]) []T {
	all := make([]T, 0, t.Len())
	t.Ascend(func(v T) bool {
		all = append(all, v)
		return true
	})
	return all
}

// allRequests returns the requests of a state in the order of the log.
func allRequests(s *State) []*request {
	all := make([]*request, 0, s.requests.Len())
	s.requests.Ascend(func(f filed) bool {
		all = append(all, f.r)
		return true
	})
	return all
}

// same compares an index with the set that it should be.
func same[T comparable](c *checker, what string, t *btree.BTreeG[T], want []T) {
	set := make(map[T]bool, len(want))
	for _, v := range want {
		c.expect(!set[v], "%s: %v twice", what, v)
		set[v] = true
	}
	for _, v := range items(t) {
		c.expect(set[v], "%s has %v", what, v)
		delete(set, v)
	}
	for v := range set {
		c.fail("%s lacks %v", what, v)
	}
}

// objects collects the objects and looks at their references to each other.
func (c *checker) objects() {
	for _, v := range items(c.s.sessions) {
		c.sessions[v.number] = v
		c.expect(v.number <= c.s.lastSession, "session %d is above the last number", v.number)
		c.expect(v.epoch <= c.s.epoch, "session %d is of a later epoch", v.number)
	}
	for _, l := range items(c.s.locks) {
		c.locks[l.number] = l
		c.sums[l.number] = &lock{}
		c.expect(l.number <= c.s.lastLock, "lock %d is above the last number", l.number)
		c.expect(l.epoch <= c.s.epoch, "lock %d is of a later epoch", l.number)
	}
	for _, r := range allRequests(c.s) {
		c.expect(c.sessions[r.session] != nil, "request %v is of session %d, which is not there", r.seq, r.session)
		c.expect(r.epoch <= c.s.epoch, "request %v is of a later epoch", r.seq)
		c.expect(!r.try, "try %v outlived its entry", r.seq)
		held := r.granted && r.converts()
		for i, p := range r.locks {
			c.expect(i == 0 || r.locks[i-1].Name < p.Name, "locks of request %v are not in order", r.seq)
			c.link(r, p)
			if p.lock == 0 {
				c.expect(r.granted, "request %v waits for a lock that it gave back", r.seq)
				continue
			}
			held = true
			c.expect(c.locks[p.lock] != nil && c.locks[p.lock].name == p.Name, "request %v names lock %d", r.seq, p.lock)
		}
		c.expect(held, "request %v has no lock left", r.seq)
		c.conversion(r)
		c.own[r.session] = append(c.own[r.session], r)
	}
}

// link looks at what the hold of one lock says about its latest conversion, and conversion at the other side.
func (c *checker) link(r *request, p part) {
	if p.conversion == (Seq{}) {
		return
	}
	o := c.s.peekRequest(p.conversion)
	c.expect(r.granted && p.lock != 0 && o != nil && o.of == r.seq && o.locks[0].Name == p.Name, "request %v is converted by %v", r.seq, p.conversion)
}

func (c *checker) conversion(r *request) {
	if !r.converts() {
		return
	}
	c.expect(len(r.locks) == 1 && (r.granted || r.locks[0].Mode == Exclusive), "conversion %v: %+v", r.seq, r.locks)
	hold := c.s.peekRequest(r.of)
	if hold == nil {
		c.fail("conversion %v of no hold", r.seq)
		return
	}
	i := hold.part(r.locks[0].Name)
	c.expect(i >= 0 && hold.granted && !hold.converts() && hold.session == r.session && hold.task == r.task &&
		hold.locks[i].conversion == r.seq && hold.locks[i].lock != 0, "conversion %v of hold %+v", r.seq, hold)
}

// indexes compares each index with what the objects say.
func (c *checker) indexes() {
	s := c.s
	var ids []named[ID]
	var names []named[string]
	var owned []ownership
	var queue, barriers, throughs, holds []place
	var due []deadline
	var ttls []named[uint64]
	var closed []uint64
	tombstones := uint64(0)
	for _, v := range c.sessions {
		ids = append(ids, named[ID]{v.id, v.number})
		kind := dueSession
		if v.tomb {
			kind = dueTombstone
			tombstones++
		}
		if v.deadline != never {
			due = append(due, deadline{at: v.deadline, kind: kind, id: v.number})
			if !v.tomb {
				ttls = append(ttls, named[uint64]{v.ttl, v.number})
			}
		}
		if v.closed {
			closed = append(closed, v.number)
		}
	}
	for _, l := range c.locks {
		names = append(names, named[string]{l.name, l.number})
		if l.delay != 0 {
			due = append(due, deadline{at: l.delay, kind: dueDelay, id: l.number})
		}
	}
	for _, rs := range c.own {
		for _, r := range rs {
			owned = append(owned, ownership{r.session, r.number, r.seq})
			if r.deadline != never {
				kind := map[bool]dueKind{false: dueWait, true: dueHold}[r.granted]
				due = append(due, deadline{at: r.deadline, kind: kind, id: r.session, seq: r.seq})
			}
			for i, p := range r.locks {
				if p.lock == 0 {
					continue
				}
				at := r.place(i)
				sum := c.sums[p.lock]
				if p.Limit != 0 {
					sum.bounded++
					c.expect(c.locks[p.lock].limit == p.Limit, "lock %q has limits %d and %d", p.Name, c.locks[p.lock].limit, p.Limit)
				}
				if r.granted {
					holds = append(holds, at)
					c.hold(sum, p)
					continue
				}
				queue = append(queue, at)
				sum.waits++
				if len(r.locks) > 1 {
					sum.multiple++
				}
				switch {
				case r.depth > i:
					throughs = append(throughs, at)
				case r.depth == i:
					barriers = append(barriers, at)
				}
			}
		}
	}
	same(c, "ids", s.ids, ids)
	same(c, "names", s.names, names)
	same(c, "owned", s.owned, owned)
	same(c, "queue", s.queue, queue)
	same(c, "barriers", s.barriers, barriers)
	same(c, "throughs", s.throughs, throughs)
	same(c, "holds", s.holds, holds)
	same(c, "due", s.due, due)
	same(c, "ttls", s.ttls, ttls)
	same(c, "rem", s.rem, closed)
	c.tasks()
	c.expect(tombstones == s.tombstones, "%d tombstones, counted %d", tombstones, s.tombstones)
	seen := map[ID]bool{}
	for _, v := range ids {
		c.expect(!seen[v.key], "id %x of two sessions", v.key)
		seen[v.key] = true
	}
	lockNames := map[string]bool{}
	for _, v := range names {
		c.expect(!lockNames[v.key], "two locks are called %q", v.key)
		lockNames[v.key] = true
	}
}

// tasks compares the indexes in which deadlocks are looked for (R7).
func (c *checker) tasks() {
	var waits, holds []tasked
	count := map[tasked]int{}
	for _, r := range allRequests(c.s) {
		switch {
		case r.task == "" || (r.granted && r.converts()):
		case r.granted:
			holds = append(holds, r.asTask())
		default:
			waits = append(waits, r.asTask())
			count[tasked{session: r.session, task: r.task}]++
		}
	}
	var tangled []place
	for _, w := range waits {
		r := c.s.peekRequest(w.seq)
		for i := range r.locks {
			if len(r.locks) > 1 || count[tasked{session: r.session, task: r.task}] > 1 {
				tangled = append(tangled, r.place(i))
			}
		}
	}
	same(c, "taskWaits", c.s.taskWaits, waits)
	same(c, "taskHolds", c.s.taskHolds, holds)
	same(c, "tangled", c.s.tangled, tangled)
}

// hold adds one hold to the sums of its lock, with the rules of exclusion, limits and shared periods (R5, R6).
func (c *checker) hold(sum *lock, p part) {
	if p.Mode == Exclusive {
		c.expect(!sum.exclusive, "lock %q is held exclusively twice", p.Name)
		sum.exclusive = true
	} else {
		sum.shared++
		if p.Limit != 0 {
			sum.limited++
			sum.limit = tighter(sum.limit, p.Limit)
		}
		c.expect(p.token == c.locks[p.lock].period, "lock %q: shared token %d in the period of %d", p.Name, p.token, c.locks[p.lock].period)
	}
	c.expect(p.token != 0 && p.token < MaxToken && p.token <= c.s.base+c.s.index, "lock %q has token %d", p.Name, p.token)
}

// rules looks at sums, exclusion, limits, residue and finished numbers.
func (c *checker) rules() {
	for n, l := range c.locks {
		sum := c.sums[n]
		c.expect(l.exclusive == sum.exclusive && l.shared == sum.shared && l.limited == sum.limited &&
			l.bounded == sum.bounded && l.waits == sum.waits && l.multiple == sum.multiple, "sums of lock %q: %+v, counted %+v", l.name, *l, *sum)
		c.expect(!sum.exclusive || sum.shared == 0, "lock %q is exclusive and shared", l.name)
		c.expect(sum.limit == 0 || sum.shared <= uint64(sum.limit), "lock %q has %d holders, limit %d", l.name, sum.shared, sum.limit)
		c.expect(sum.exclusive || sum.shared > 0 || sum.waits > 0 || l.delay != 0, "lock %q is idle and still there (R11)", l.name)
	}
	for n, v := range c.sessions {
		holds, waits := uint64(0), uint64(0)
		for _, r := range c.own[n] {
			switch {
			case r.granted && r.converts():
				c.expect(r.deadline == never, "conversion %v was made and ends", r.seq)
			case r.granted:
				holds++
				c.expect((r.deadline == never) == (r.maxHold == 0), "deadline of hold %v", r.seq)
			default:
				waits++
				c.expect(r.deadline != never, "request %v waits for ever", r.seq)
				c.expect(r.depth >= -1 && r.depth < len(r.locks), "depth %d of request %v", r.depth, r.seq)
			}
			c.expect(!v.isFinished(r.number), "request %d of session %d is alive and finished", r.number, n)
			c.expect((r.number == 0) == (v.nature != natureNamed), "request %d in session %d", r.number, n)
		}
		c.expect(v.holds == holds && v.waits == waits, "sums of session %d", n)
		switch {
		case v.tomb:
			c.expect(v.nature == natureKeyed && holds+waits == 0 && !v.closed && v.deadline != never, "tombstone %d", n)
		case v.closed:
			c.expect(v.deadline == never, "closed session %d has a deadline", n)
		case v.nature == natureNamed:
			c.expect(v.deadline != never, "session %d never ends", n)
		default:
			c.expect((holds+waits == 1 || holds+waits == 0 && len(v.lost) > 0) && (v.deadline == never) == (waits == 1), "session %d of one grant", n)
		}
		c.expect(len(v.lost) <= maxLost, "session %d lost %d", n, len(v.lost))
		c.expect(uint64(len(v.finished)) <= maxIntervals+2*c.s.limits.Requests+1, "session %d has %d intervals", n, len(v.finished))
		for i, f := range v.finished {
			c.expect(f.low >= 1 && f.low <= f.high && (i == 0 || v.finished[i-1].high+1 < f.low), "intervals of session %d: %v", n, v.finished)
		}
	}
}

// work looks at what an entry left over, and, when nothing is left to judge, that no wake-up was missed: every waiting
// request stands where judging all of them anew would put it, and none that is alive could be granted.
func (c *checker) work() {
	s := c.s
	for _, o := range items(s.look) {
		r := s.peekRequest(o.seq)
		c.expect(r != nil && !r.granted && r.order() == o, "look has %v, which does not wait", o)
	}
	for _, n := range items(s.walk) {
		c.expect(c.locks[n] != nil, "walk has lock %d, which is not there", n)
	}
	requests := allRequests(s)
	slices.SortFunc(requests, func(a, b *request) int {
		if a.order().Less(b.order()) {
			return -1
		}
		return 1
	})
	for _, r := range requests {
		_, judged := s.look.Get(r.order())
		c.expect(r.granted || r.depth >= 0 || judged, "request %v is never judged", r.seq)
	}
	if s.look.Len() > 0 || len(c.wrong) > 0 {
		return
	}
	c.expect(s.walk.Len() == 0, "walk is left without look")
	var earlier []*request
	for _, r := range requests {
		if r.granted {
			continue
		}
		k := 0
		for k < len(r.locks) && c.could(r, k, earlier) {
			k++
		}
		if k == len(r.locks) {
			c.expect(s.over(r) || s.base+s.index >= MaxToken, "missed wake-up of request %v", r.seq)
			k--
		}
		c.expect(r.depth == k, "request %v stands at %d, should at %d", r.seq, r.depth, k)
		earlier = append(earlier, r)
	}
}

// could is the grant rule (R5), by brute force over the requests before r.
func (c *checker) could(r *request, i int, earlier []*request) bool {
	want := r.locks[i]
	sum := c.sums[want.lock]
	if c.locks[want.lock].delay != 0 {
		return false
	}
	if r.converts() { // conversions stand first, in the order of the log
		alone := !sum.exclusive && sum.shared == 1
		return alone && !slices.ContainsFunc(earlier, func(e *request) bool { return e.position(want.lock) >= 0 })
	}
	taken, limit := sum.shared, tighter(want.Limit, sum.limit)
	if sum.exclusive || (want.Mode == Exclusive && taken > 0) {
		return false
	}
	for _, e := range earlier {
		j := e.position(want.lock)
		switch {
		case j < 0 || e.depth < j:
		case e.depth == j || want.Mode == Exclusive || e.locks[j].Mode == Exclusive:
			return false
		default:
			taken++
			limit = tighter(limit, e.locks[j].Limit)
		}
	}
	return want.Mode == Exclusive || (taken < c.s.limits.Holders && (limit == 0 || taken < uint64(limit)))
}
