package fsm

import "math"

// deadlockSteps bounds the looks of one deadlock check; a request that it cannot judge with them may wait, and its wait's
// deadline ends what slips through (R7).
const deadlockSteps = 10_000

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
	if !r.converts() && countOf(s.taskHolds, r.asTask(), 1) == 0 && s.isLast(r) {
		return nil // nobody waits for a task that holds nothing and stands before nobody
	}
	search := search{state: s, left: deadlockSteps, seen: map[Seq]bool{}}
	if !search.meetsItself(r) || search.left <= 0 {
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
}

// meetsItself reports whether a circle of waiting is reachable from a request. Those that wait for one lock only, of a
// task that waits for nothing else, need not be followed: they wait for the holders of that lock and for the tangled ones
// ahead, as the request itself does.
func (x *search) meetsItself(r *request) bool {
	if following, seen := x.seen[r.seq]; seen {
		return following
	}
	x.seen[r.seq] = true
	found := false
	for i := range r.locks {
		at := r.place(i)
		x.state.eachHold(at.lock, func(p place) bool {
			if x.left--; x.left <= 0 {
				return false
			}
			if p.seq != r.of {
				found = x.taskMeets(p.seq)
			}
			return !found
		})
		if found || x.left <= 0 {
			break
		}
		x.state.tangled.AscendRange(place{lock: at.lock}, at, func(p place) bool {
			if x.left--; x.left <= 0 {
				return false
			}
			found = x.taskMeets(p.seq)
			return !found
		})
		if found || x.left <= 0 {
			break
		}
	}
	x.seen[r.seq] = false
	return found
}

// taskMeets follows everything that the task of a request waits for.
func (x *search) taskMeets(seq Seq) (found bool) {
	s := x.state
	r, _ := s.requests.Get(&request{seq: seq})
	if r.task == "" || s.over(r) {
		return false
	}
	eachOf(s.taskWaits, r.asTask(), func(waits Seq) bool {
		if x.left--; x.left <= 0 {
			return false
		}
		w, _ := s.requests.Get(&request{seq: waits})
		found = !s.over(w) && x.meetsItself(w)
		return !found
	})
	return found
}

// playOut plays the rule out on a copy, as far as it concerns the request, and returns a cycle when it is stuck at the
// end. Beyond the bound on its steps it gives up, and the request may wait.
func (s *State) playOut(r *request) []Step {
	copied := s.Snapshot()
	s.epoch++
	copied.epoch = s.epoch + 1 // apart from both: what either changes is copied first
	s.epoch += 2
	copied.left, copied.looks = math.MaxInt, math.MaxInt
	g := game{s: copied, left: deadlockSteps, locks: map[uint64]bool{}}
	for i := range r.locks {
		g.locks[r.locks[i].lock] = true
		g.open = append(g.open, r.locks[i].lock)
	}
	if !g.gather() {
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
	locks map[uint64]bool // that matter
	open  []uint64        // of these, the ones still to look at
	holds []Seq           // at these locks, in order
	waits []Seq
}

// gather collects the locks that matter: those of a request, of everybody who holds or waits there, and so on. It reports
// whether that stayed within the bound.
func (g *game) gather() bool {
	add := func(r *request) {
		for _, p := range r.locks {
			if p.lock != 0 && !g.locks[p.lock] {
				g.locks[p.lock] = true
				g.open = append(g.open, p.lock)
			}
		}
	}
	seen := map[Seq]bool{}
	for len(g.open) > 0 && g.left > 0 {
		lock := g.open[0]
		g.open = g.open[1:]
		visit := func(list *[]Seq) func(place) bool {
			return func(p place) bool {
				g.left--
				r, _ := g.s.requests.Get(&request{seq: p.seq})
				if !seen[p.seq] {
					seen[p.seq] = true
					*list = append(*list, p.seq)
				}
				if !r.granted {
					add(r)
				}
				if r.task != "" {
					eachOf(g.s.taskWaits, r.asTask(), func(waits Seq) bool {
						g.left--
						w, _ := g.s.requests.Get(&request{seq: waits})
						add(w)
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
	for _, seq := range g.waits {
		if r := g.s.editRequest(seq); r != nil && seq != judged && (r.task == "" || r.try || g.s.over(r)) {
			g.s.end(r, endTried)
		}
	}
	for _, seq := range g.holds {
		g.letGo(seq)
	}
}

// letGo ends a hold whose task does not wait.
func (g *game) letGo(seq Seq) {
	r := g.s.editRequest(seq)
	if r == nil || !r.granted {
		return
	}
	if r.task == "" || g.s.over(r) || countOf(g.s.taskWaits, r.asTask(), 1) == 0 {
		g.s.end(r, endReleased)
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
			if r, found := g.s.requests.Get(&request{seq: seq}); found {
				eachHeld := []Seq{}
				eachOf(g.s.taskHolds, r.asTask(), func(q Seq) bool {
					eachHeld = append(eachHeld, q)
					return true
				})
				for _, q := range eachHeld {
					g.letGo(q)
				}
			}
		}
	}
}

// cycle follows, from the judged request, one that is in the way of each, until one comes again.
func (g *game) cycle(judged Seq) []Step {
	var steps []Step
	at := map[Seq]int{}
	for seq := judged; ; {
		if first, again := at[seq]; again {
			return steps[first:]
		}
		at[seq] = len(steps)
		r, found := g.s.requests.Get(&request{seq: seq})
		if !found {
			return steps
		}
		lock, inTheWay := g.blocker(r)
		v, other := g.s.peekSession(r.session), g.s.peekSession(inTheWay.session)
		steps = append(steps, Step{Task: r.task, Owner: v.owner, WaitsFor: lock, HeldBy: other.owner})
		next := inTheWay.seq
		if inTheWay.granted {
			eachOf(g.s.taskWaits, inTheWay.asTask(), func(w Seq) bool {
				next = w
				return false
			})
		}
		if next == seq {
			return steps
		}
		seq = next
	}
}

// blocker returns the first lock that a stuck request cannot have, and one hold or request that is in its way there.
func (g *game) blocker(r *request) (lock string, inTheWay *request) {
	i := 0
	for i < len(r.locks)-1 && g.s.can(r, i) {
		i++
	}
	at := r.place(i)
	var found place
	g.s.eachHold(at.lock, func(p place) bool {
		if p.seq == r.of {
			return true
		}
		found = p
		return at.mode == Shared && p.mode == Shared && found.seq == Seq{}
	})
	if before, ok := first(g.s.barriers, at.lock); ok && found.lock == 0 && before.order.Less(at.order) {
		found = before
	}
	if before, ok := first(g.s.throughs, at.lock); ok && found.lock == 0 && before.order.Less(at.order) {
		found = before
	}
	inTheWay = r
	if found.lock != 0 {
		inTheWay, _ = g.s.requests.Get(&request{seq: found.seq})
	}
	return r.locks[i].Name, inTheWay
}
