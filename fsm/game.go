package fsm

import "cmp"

// looksPerStep is how many looks of the play-out count as one step; they are that much cheaper. maxLooks bounds them in one
// check: a request that it cannot judge with them may wait.
const (
	looksPerStep = 8
	maxLooks     = 4 * deadlockSteps
)

// game is what the second half of a deadlock check adds to the board: what the rule says is played out there (R7). It
// grants as State.pass does, in the one order of all requests, but knows nothing of deadlines, tokens or delays, which do
// not decide here.
type game struct {
	looks int
	spots []spot
	sets  bitset  // memory for look and for those of the locks
	waits []int32 // by rank
	look  bitset  // ranks to judge again
	low   int32   // none in look is below
}

// spot is a piece at one of its locks.
type spot struct {
	lock  int32 // none when it does not matter
	at    int32 // place in the queue
	mode  Mode
	limit uint32
}

// tally is what State keeps in a lock and in its trees about who holds and who stands there.
type tally struct {
	exclusive            bool
	shared               uint64
	limited              uint64
	limit                uint32 // of all that have one
	standing             int    // requests that go through
	firstStop            int32  // the first barrier, or end
	barriers             bitset // by place in the queue
	throughs             bitset
	exclusives, limiteds bitset // of the throughs
}

// setUpGame sets the pieces up: the waits that count in their queues, and the holds of tasks that wait. Other tasks have
// let go.
func (b *board) setUpGame() {
	b.looks, b.low = 0, 0
	words := 0
	for _, n := range b.matter {
		queue := b.list(b.locks[n].queue)
		words += 4 * bitsetWords(len(queue))
		for _, w := range queue {
			p := &b.pieces[w]
			if p.spots != none {
				continue // it waits for several locks
			}
			b.setUp(p)
			b.waits = append(b.waits, w)
			if p.leader == none {
				p.leader = w
			}
			b.pieces[p.leader].waiting++
		}
	}
	b.sort(b.waits)
	ranks := bitsetWords(len(b.waits))
	b.sets = b.sets.empty(words + ranks)
	b.look = b.sets[:ranks]
	for rank, w := range b.waits {
		b.pieces[w].rank = int32(rank)
		b.look.set(int32(rank))
	}
	sets := b.sets[ranks:]
	for _, n := range b.matter {
		sets = b.setUpLock(n, sets)
	}
}

// setUp gives a piece its spots.
func (b *board) setUp(p *piece) {
	p.spots = int32(len(b.spots))
	for _, l := range p.r.locks {
		b.spots = append(b.spots, spot{lock: none, mode: l.Mode, limit: l.Limit})
	}
}

// setUpLock has the pieces stand at a lock, and returns the sets that it leaves.
func (b *board) setUpLock(n int32, sets bitset) bitset {
	l := &b.locks[n]
	queue := b.list(l.queue)
	l.firstStop = end
	for _, set := range []*bitset{&l.barriers, &l.throughs, &l.exclusives, &l.limiteds} {
		words := bitsetWords(len(queue))
		*set, sets = sets[:words], sets[words:]
	}
	for at, w := range queue {
		b.put(n, w).at = int32(at)
	}
	for _, h := range b.list(l.holds) {
		p := &b.pieces[h]
		if p.out || p.leader == none || b.pieces[p.leader].waiting == 0 {
			continue
		}
		if p.spots == none {
			p.granted = true
			b.setUp(p)
			leader := &b.pieces[p.leader]
			p.next, leader.holds = leader.holds, h
		}
		l.hold(b.put(n, h), 1)
	}
	return sets
}

// put places a piece at a lock.
func (b *board) put(n, i int32) *spot {
	p := &b.pieces[i]
	l := &b.locks[n]
	s := &b.spots[p.spots+int32(p.r.position(l.number))]
	s.lock = n
	if s.limit != 0 {
		l.limit = s.limit
	}
	return s
}

// hold adds one hold to a lock, or takes it out again.
func (l *tally) hold(s *spot, n int) {
	if s.mode == Exclusive {
		l.exclusive = n > 0
		return
	}
	l.shared += uint64(n)
	if s.limit != 0 {
		l.limited += uint64(n)
	}
}

func (b *board) spotsOf(p *piece) []spot { return b.spots[p.spots : int(p.spots)+len(p.r.locks)] }

// play goes on until nothing more can be granted, and reports whether the judged request was, or may be: beyond the bound
// nobody knows.
func (b *board) play(judged int32) bool {
	var granted []int32
	for {
		granted = granted[:0]
		for {
			rank := b.look.next(b.low)
			if rank == end {
				break
			}
			if b.looks++; b.looks > maxLooks {
				return true
			}
			b.look.clear(rank)
			b.low = rank + 1
			w := b.waits[rank]
			p := &b.pieces[w]
			k := 0
			for k < len(p.r.locks) && b.can(p, k) {
				k++
			}
			if k == int(p.depth) {
				continue
			}
			b.stand(p, k)
			if k < len(p.r.locks) {
				continue
			}
			if w == judged {
				return true
			}
			b.grant(w)
			granted = append(granted, w)
		}
		if len(granted) == 0 {
			return false
		}
		// Who was granted what it waited for waits no more, and lets go of this and of what it held before.
		for _, w := range granted {
			if leader := &b.pieces[b.pieces[w].leader]; leader.waiting == 0 {
				b.letGo(leader)
			}
		}
	}
}

// can is State.can.
func (b *board) can(p *piece, k int) bool {
	s := &b.spotsOf(p)[k]
	l := &b.locks[s.lock]
	if l.firstStop < s.at {
		return false
	}
	if p.r.converts() {
		return !l.exclusive && l.shared == 1 // its own hold
	}
	if l.exclusive {
		return false
	}
	if s.mode == Exclusive {
		return l.shared == 0 && (l.standing == 0 || l.throughs.next(0) >= s.at)
	}
	taken, limit := l.shared, s.limit
	if l.limited > 0 {
		limit = tighter(limit, l.limit)
	}
	if l.standing > 0 {
		if l.exclusives.next(0) < s.at {
			return false
		}
		if l.limiteds.next(0) < s.at {
			limit = tighter(limit, l.limit)
		}
		taken += uint64(l.throughs.count(s.at))
	}
	return (limit == 0 || taken < uint64(limit)) && taken < b.s.limits.Holders
}

// standing says how a request that goes through so many of its locks stands at one of them.
func standing(depth, i int) int { return cmp.Compare(depth, i) }

const (
	absent = iota - 1
	barrier
	through // or it holds
)

// stand records how far a request gets, and has those behind it judged again for whom that matters: the first one that is
// stopped, when there is less in its way, or all who go through, when there is more.
func (b *board) stand(p *piece, k int) {
	old := int(p.depth)
	p.depth = int32(k)
	all := k == len(p.r.locks)
	for i := range b.spotsOf(p) {
		s := &b.spotsOf(p)[i]
		l := &b.locks[s.lock]
		before, after := standing(old, i), standing(k, i)
		if after == before && !all {
			continue
		}
		if before == through {
			l.pass(s, -1)
		}
		if after == through && !all {
			l.pass(s, 1)
		}
		if before == barrier {
			l.barriers.clear(s.at)
			if l.firstStop == s.at {
				l.firstStop = l.barriers.next(s.at + 1)
			}
		}
		if after == barrier {
			l.barriers.set(s.at)
			l.firstStop = min(l.firstStop, s.at)
		}
		switch {
		case before == after: // it holds where it went through, which is the same to those behind
		case before == barrier, after == absent:
			if next := l.barriers.next(s.at + 1); next != end {
				b.judge(l, next)
			}
		default:
			for next := s.at; l.standing > 0; {
				if next = l.throughs.next(next + 1); next == end {
					break
				}
				b.judge(l, next)
			}
		}
	}
}

// pass counts a request among those that go through, or takes it out again.
func (l *tally) pass(s *spot, n int) {
	l.standing += n
	l.throughs.put(s.at, n > 0)
	if s.mode == Exclusive {
		l.exclusives.put(s.at, n > 0)
	}
	if s.limit != 0 {
		l.limiteds.put(s.at, n > 0)
	}
}

// judge has the wait at this place of a queue judged again.
func (b *board) judge(l *boardLock, at int32) {
	rank := b.pieces[b.list(l.queue)[at]].rank
	b.look.set(rank)
	b.low = min(b.low, rank)
}

// grant turns a wait into a hold. A conversion changes the one that there is.
func (b *board) grant(w int32) {
	p := &b.pieces[w]
	p.granted = true
	leader := &b.pieces[p.leader]
	leader.waiting--
	if !p.r.converts() {
		for i := range b.spotsOf(p) {
			s := &b.spotsOf(p)[i]
			b.locks[s.lock].hold(s, 1)
		}
		p.next, leader.holds = leader.holds, w
		return
	}
	n := b.spotsOf(p)[0].lock
	hold := &b.pieces[b.bySeq[p.r.of]]
	for i := range b.spotsOf(hold) {
		if s := &b.spotsOf(hold)[i]; s.lock == n {
			b.locks[n].hold(s, -1)
			s.mode, s.limit = Exclusive, 0
			b.locks[n].hold(s, 1)
		}
	}
}

// letGo ends all holds of a task.
func (b *board) letGo(leader *piece) {
	for h := leader.holds; h != none; h = b.pieces[h].next {
		p := &b.pieces[h]
		p.granted, p.out = false, true
		for i := range b.spotsOf(p) {
			s := &b.spotsOf(p)[i]
			if s.lock == none {
				continue
			}
			l := &b.locks[s.lock]
			l.hold(s, -1)
			if l.firstStop != end {
				b.judge(l, l.firstStop) // who is stopped behind it cannot do better before this one does
			}
		}
	}
	leader.holds = none
}
