package fsm

import "slices"

// MaxCycle bounds the steps of a cycle that is shown; a longer one is cut short.
const MaxCycle = 64

// cycle follows, from the judged request, one that is in the way of each, until one comes again. Whoever is left is stuck,
// so whoever is in the way waits as well.
func (b *board) cycle(judged int32) []Step {
	b.listHolds()
	type stuck struct {
		w, inTheWay int32
		lock        string
	}
	var path []stuck
	w := judged
	for b.pieces[w].followed != onPath && !b.pieces[w].granted { // a hold here is of a task that does not wait: it has let go
		b.pieces[w].followed = onPath
		lock, inTheWay := b.blocker(w)
		path = append(path, stuck{w, inTheWay, lock})
		w = b.firstWait(inTheWay)
	}
	path = path[max(0, slices.IndexFunc(path, func(s stuck) bool { return s.w == w })):]
	steps := make([]Step, min(len(path), MaxCycle))
	for i := range steps {
		r, other := b.pieces[path[i].w].r, b.pieces[path[i].inTheWay].r
		steps[i] = Step{Task: r.task, Owner: b.sessionOf(r).owner, WaitsFor: path[i].lock, HeldBy: b.sessionOf(other).owner}
	}
	return steps
}

// listHolds lists the holds that are left at each lock, in their order.
func (b *board) listHolds() {
	var holds []int32
	for i := range b.pieces {
		if p := &b.pieces[i]; p.granted && !p.r.converts() {
			holds = append(holds, int32(i))
		}
	}
	b.sort(holds)
	counts := make([]int32, len(b.locks))
	each := func(f func(h, lock int32)) {
		for _, h := range holds {
			for _, s := range b.spotsOf(&b.pieces[h]) {
				if s.lock != none {
					f(h, s.lock)
				}
			}
		}
	}
	each(func(_, lock int32) { counts[lock]++ })
	from := int32(len(b.lists))
	for n := range b.locks {
		b.locks[n].holds = span{from, from}
		from += counts[n]
	}
	b.lists = slices.Grow(b.lists, int(from)-len(b.lists))[:from]
	each(func(h, lock int32) {
		l := &b.locks[lock]
		b.lists[l.holds.to] = h
		l.holds.to++
	})
}

// firstWait returns the first wait of the task of a hold; of a wait it returns that.
func (b *board) firstWait(i int32) int32 {
	p := &b.pieces[i]
	if !p.granted {
		return i
	}
	for _, w := range b.list(b.pieces[p.leader].waits) {
		if p := &b.pieces[w]; !p.out && !p.granted {
			return w
		}
	}
	return i
}

// blocker returns the first lock that a stuck request cannot have, and one hold or request that is in its way there.
func (b *board) blocker(w int32) (lock string, inTheWay int32) {
	p := &b.pieces[w]
	at := b.spotsOf(p)[p.depth]
	l := &b.locks[at.lock]
	var excludes, counts int32 = none, none // what counts is shared as the request is: only a limit is in the way
	visit := func(i int32) {
		other := &b.pieces[i]
		s := &b.spotsOf(other)[other.r.position(l.number)]
		switch {
		case other.r.seq == p.r.of:
		case s.mode == Exclusive || at.mode == Exclusive:
			excludes = i
		case counts == none:
			counts = i
		}
	}
	for _, h := range b.list(l.holds) {
		if visit(h); excludes != none || counts != none && !l.exclusive {
			break
		}
	}
	queue := b.list(l.queue)
	if excludes == none && l.firstStop < at.at {
		excludes = queue[l.firstStop]
	}
	if excludes == none && (at.mode == Exclusive || counts == none) {
		if next := l.throughs.next(0); next < at.at {
			visit(queue[next])
		}
	}
	if next := l.exclusives.next(0); excludes == none && next < at.at {
		visit(queue[next])
	}
	switch {
	case excludes != none:
		inTheWay = excludes
	case counts != none:
		inTheWay = counts
	default:
		inTheWay = w
	}
	return p.r.locks[p.depth].Name, inTheWay
}

// sort puts pieces in the order of their requests.
func (b *board) sort(all []int32) {
	slices.SortFunc(all, func(v, w int32) int {
		if b.pieces[v].r.order().Less(b.pieces[w].r.order()) {
			return -1
		}
		return 1
	})
}
