package fsm

import "math"

// deadlockSteps bounds the looks of one deadlock check; a request that it cannot judge with them may wait, and its wait's
// deadline ends what slips through (R7).
const deadlockSteps = 10_000

// entrySteps bounds all checks of one entry together, so that nobody can make Apply slow with many hard ones (R3).
const entrySteps = 4 * deadlockSteps

// MaxCycle bounds the steps of a cycle that is shown; a longer one is cut short.
const MaxCycle = 64

// deadlock judges a request that has just been queued: if it can never be granted while every task that does not wait
// lets go of everything, it is part of, or behind, a deadlock, and the result is a cycle that shows why (R7).
//
// The check has two halves. The first follows who waits for whom and is done, nearly always, when it meets no task twice:
// then everybody ahead lets go in turn. Only when it does meet one, the second plays out on a copy of the state what the
// rule says: tasks that do not wait let go, what can be granted is granted, and so on. That is exact also for semaphores,
// priorities and several locks, where a circle of waiting need not be a deadlock.
func (s *State) deadlock(r *request) []Step {
	if r.task == "" {
		return nil // not judged
	}
	if !r.converts() && countOf(s.taskHolds, r.asTask(), 1) == 0 && countOf(s.taskWaits, r.asTask(), 2) == 1 && s.isLast(r) {
		return nil // nobody waits for a task that holds nothing, waits for nothing else and stands before nobody
	}
	x := search{state: s, left: min(deadlockSteps, s.steps), seen: map[Seq]bool{}}
	before := x.left
	found := x.meetsItself(r)
	s.steps -= before - x.left
	if !found || x.left <= 0 {
		return nil
	}
	return s.playOut(r)
}

// isLast reports whether nobody stands behind the request in any of its queues.
func (s *State) isLast(r *request) bool {
	for i := range r.locks {
		at, last := r.place(i), true
		s.queue.AscendGreaterOrEqual(at, func(p place) bool {
			if p.lock == at.lock && p.order == at.order {
				return true
			}
			last = p.lock != at.lock
			return false
		})
		if !last {
			return false
		}
	}
	return true
}

// search follows waiting requests to those that are in their way.
type search struct {
	state *State
	left  int
	seen  map[Seq]bool // true while it is being followed, false afterwards
	last  *session     // that was looked at; often the next one is the same
}

// over is what State.over is, quicker.
func (x *search) over(r *request) bool {
	if x.last == nil || x.last.number != r.session {
		x.last = x.state.peekSession(r.session)
	}
	return r.converts() && x.state.over(r) || x.state.clock > r.deadline || x.state.gone(x.last)
}

// meetsItself reports whether a circle of waiting is reachable from a request. Others that wait for one lock only, of a
// task that waits for nothing else, need not be followed: they wait for the holders of that lock and for the tangled ones
// ahead, as the request itself does, and let go as soon as they were granted.
func (x *search) meetsItself(r *request) (found bool) {
	if following, seen := x.seen[r.seq]; seen {
		return following
	}
	x.seen[r.seq] = true
	for i := 0; i < len(r.locks) && !found && x.left > 0; i++ {
		at := r.place(i)
		x.left--
		x.state.eachHold(at.lock, func(p place) bool {
			x.left--
			found = p.seq != r.of && x.taskMeets(p.seq, 1)
			return !found && x.left > 0
		})
		if found || x.left <= 0 || x.state.tangled.Len() == 0 {
			continue
		}
		x.state.tangled.AscendGreaterOrEqual(place{lock: at.lock}, func(p place) bool {
			if p.lock != at.lock {
				return false
			}
			ahead := p.order.Less(at.order)
			if !ahead && i == 0 {
				return false
			}
			x.left--
			if p.seq != r.seq {
				// Those behind overtake where the request does not stand yet, and keep what they get when they wait for more.
				found = x.taskMeets(p.seq, map[bool]int{true: 1, false: 2}[ahead])
			}
			return !found && x.left > 0
		})
	}
	x.seen[r.seq] = false
	return found
}

// taskMeets follows everything that the task of a request waits for, if that is so many requests at least.
func (x *search) taskMeets(seq Seq, least int) (found bool) {
	s := x.state
	r := s.findRequest(seq)
	if r.task == "" || x.over(r) || (least > 1 && countOf(s.taskWaits, r.asTask(), least) < least) {
		return false
	}
	eachOf(s.taskWaits, r.asTask(), func(waits Seq) bool {
		x.left--
		w := s.findRequest(waits)
		found = !x.over(w) && x.meetsItself(w)
		return !found && x.left > 0
	})
	return found
}

// playOut plays the rule out on a copy, as far as it concerns the request, and returns a cycle when it is stuck at the
// end. Beyond the bound on its steps it gives up, and the request may wait.
func (s *State) playOut(r *request) []Step {
	copied := s.fork()
	copied.left, copied.looks = math.MaxInt, math.MaxInt
	g := game{s: copied, left: min(deadlockSteps, s.steps), seen: map[uint64]bool{}}
	before := g.left
	complete := g.gather(r)
	if s.steps -= before - g.left; !complete {
		return nil
	}
	g.begin(r.seq)
	if g.play(r.seq) {
		return nil
	}
	return g.cycle(r.seq)
}

// game is the part of a copied state that decides about one request.
type game struct {
	s     *State
	left  int
	locks []uint64 // that matter
	seen  map[uint64]bool
	holds []Seq // at these locks, in order
	waits []Seq
}

// gather collects the locks that matter: those of a request, of everybody who holds or waits there, and so on. It reports
// whether that stayed within the bound.
func (g *game) gather(judged *request) bool {
	add := func(r *request) {
		for _, p := range r.locks {
			if p.lock != 0 && !g.seen[p.lock] {
				g.seen[p.lock] = true
				g.locks = append(g.locks, p.lock)
			}
		}
	}
	add(judged)
	seen := map[Seq]bool{}
	for i := 0; i < len(g.locks) && g.left > 0; i++ {
		lock := g.locks[i]
		visit := func(list *[]Seq) func(place) bool {
			return func(p place) bool {
				g.left--
				r := g.s.findRequest(p.seq)
				if !seen[p.seq] {
					seen[p.seq] = true
					*list = append(*list, p.seq)
				}
				if !r.granted {
					add(r)
				}
				if r.task != "" {
					eachOf(g.s.taskWaits, r.asTask(), func(waits Seq) bool {
						if waits != p.seq {
							g.left--
							add(g.s.findRequest(waits))
						}
						return g.left > 0
					})
				}
				return g.left > 0
			}
		}
		g.s.eachHold(lock, visit(&g.holds))
		g.s.eachWait(lock, visit(&g.waits))
	}
	return g.left > 0
}

// begin takes out what is not judged or is over already: requests without a task, tries, and those of dead sessions.
func (g *game) begin(judged Seq) {
	// Only what concerns the locks that matter is judged. Their delays end by themselves.
	look, walk := g.s.look, g.s.walk
	g.s.look, g.s.walk = tree(order.Less), tree(func(a, b uint64) bool { return a < b })
	for _, seq := range g.waits {
		if o := g.s.findRequest(seq).order(); look.Has(o) {
			g.s.look.ReplaceOrInsert(o)
		}
	}
	for _, n := range g.locks {
		if walk.Has(n) {
			g.s.walk.ReplaceOrInsert(n)
		}
		if l, _ := g.s.locks.Get(&lock{number: n}); l.delay != 0 {
			g.s.editLock(n).delay = 0
			g.s.lookFirst(n)
		}
	}
	for _, seq := range g.waits {
		if r := g.s.findRequest(seq); r != nil && seq != judged && (r.task == "" || r.try || g.s.over(r)) {
			g.s.end(g.s.editRequest(seq), endTried)
		}
	}
	for _, seq := range g.holds {
		g.letGo(seq)
	}
}

// letGo ends a hold whose task does not wait.
func (g *game) letGo(seq Seq) {
	r := g.s.findRequest(seq)
	if r == nil || !r.granted {
		return
	}
	if r.task == "" || g.s.over(r) || countOf(g.s.taskWaits, r.asTask(), 1) == 0 {
		g.s.end(g.s.editRequest(seq), endReleased)
	}
}

// play goes on until nothing more can be granted, and reports whether the judged request was.
func (g *game) play(judged Seq) bool {
	for {
		g.s.events = nil
		g.s.pass()
		var granted []Seq
		for _, e := range g.s.events {
			if e.Kind == EventGranted {
				granted = append(granted, e.Request)
			}
		}
		if len(granted) == 0 {
			return false
		}
		for _, seq := range granted {
			if seq == judged {
				return true
			}
		}
		// Who was granted what it waited for waits no more, and lets go of this and of what it held before.
		for _, seq := range granted {
			r := g.s.peekRequest(seq)
			if r == nil {
				continue // its task has let go of it for another one's sake
			}
			var held []Seq
			eachOf(g.s.taskHolds, r.asTask(), func(q Seq) bool {
				held = append(held, q)
				return true
			})
			for _, q := range held {
				g.letGo(q)
			}
		}
	}
}

// cycle follows, from the judged request, one that is in the way of each, until one comes again. Whoever is left is stuck,
// so whoever is in the way waits as well.
func (g *game) cycle(judged Seq) []Step {
	var steps []Step
	at := map[Seq]int{}
	for seq := judged; ; {
		if first, again := at[seq]; again {
			steps = steps[first:]
			return steps[:min(len(steps), MaxCycle)]
		}
		at[seq] = len(steps)
		r := g.s.peekRequest(seq)
		if r.granted {
			return steps // of a task that does not wait: it has let go
		}
		lock, inTheWay := g.blocker(r)
		v, other := g.s.peekSession(r.session), g.s.peekSession(inTheWay.session)
		steps = append(steps, Step{Task: r.task, Owner: v.owner, WaitsFor: lock, HeldBy: other.owner})
		if seq = inTheWay.seq; inTheWay.granted {
			eachOf(g.s.taskWaits, inTheWay.asTask(), func(w Seq) bool {
				seq = w
				return false
			})
		}
	}
}

// blocker returns the first lock that a stuck request cannot have, and one hold or request that is in its way there.
func (g *game) blocker(r *request) (lock string, inTheWay *request) {
	i := 0
	for i < len(r.locks)-1 && g.s.can(r, i) {
		i++
	}
	at := r.place(i)
	var excludes, counts place // what counts is shared as the request is: only a limit is in the way
	visit := func(p place) bool {
		switch {
		case p.seq == r.of:
		case p.mode == Exclusive || at.mode == Exclusive:
			excludes = p
		case counts.lock == 0:
			counts = p
		}
		return excludes.lock == 0
	}
	g.s.eachHold(at.lock, visit)
	if barrier, found := first(g.s.barriers, at.lock); found && excludes.lock == 0 && barrier.order.Less(at.order) {
		excludes = barrier
	}
	if excludes.lock == 0 {
		g.s.throughs.AscendRange(place{lock: at.lock}, at, visit)
	}
	if excludes.lock == 0 {
		excludes = counts
	}
	if inTheWay = g.s.peekRequest(excludes.seq); inTheWay == nil {
		inTheWay = r
	}
	return r.locks[i].Name, inTheWay
}
