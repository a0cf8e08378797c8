package fsm

// deadlockSteps bounds a deadlock check, in requests looked at; a request that it cannot judge with them may wait, and its
// wait's deadline ends what slips through (R7).
const deadlockSteps = 10_000

// entrySteps bounds all checks of one entry together, so that nobody can make Apply slow with many hard ones (R3).
const entrySteps = 4 * deadlockSteps

// deadlock judges a request that has just been queued: if it can never be granted while every task that does not wait
// lets go of everything, it is part of, or behind, a deadlock, and the result is a cycle that shows why (R7).
//
// The check has two halves. The first follows who waits for whom and is done, nearly always, when it meets no task twice:
// then everybody ahead lets go in turn. Only when it does meet one, the second plays out what the rule says (game.go):
// tasks that do not wait let go, what can be granted is granted, and so on. That is exact also for semaphores, priorities
// and several locks, where a circle of waiting need not be a deadlock.
func (s *State) deadlock(r *request) []Step {
	if r.task == "" {
		return nil // not judged
	}
	if !r.converts() && countOf(s.taskHolds, r.asTask(), 1) == 0 && countOf(s.taskWaits, r.asTask(), 2) == 1 && s.isLast(r) {
		return nil // nobody waits for a task that holds nothing, waits for nothing else and stands before nobody
	}
	b := s.newBoard()
	defer b.wipe()
	allowed := min(deadlockSteps, s.steps)
	b.left = allowed
	judged := b.piece(r.seq)
	worth := b.meetsItself(judged) && b.gather(judged) && b.left > 0
	s.steps -= allowed - b.left
	if !worth {
		return nil
	}
	b.setUpGame()
	stuck := !b.play(judged)
	s.steps -= b.looks / looksPerStep
	if !stuck {
		return nil
	}
	return b.cycle(judged)
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

// meetsItself reports whether a circle of waiting is reachable from a request. Others that wait for one lock only, of a
// task that waits for nothing else, need not be followed: they wait for the holders of that lock and for the tangled ones
// ahead, as the request itself does, and let go as soon as they were granted.
func (b *board) meetsItself(i int32) (found bool) {
	if b.pieces[i].followed != unfollowed {
		return b.pieces[i].followed == following
	}
	b.pieces[i].followed = following
	r := b.pieces[i].r
	for k := 0; k < len(r.locks) && !found && b.left > 0; k++ {
		at := r.place(k)
		b.left--
		for _, h := range b.holdsAt(b.lock(at.lock)) {
			if found || b.left <= 0 {
				break
			}
			found = b.pieces[h].r.seq != r.of && b.taskMeets(h)
		}
		if found || b.left <= 0 || b.s.tangled.Len() == 0 {
			continue
		}
		b.s.tangled.AscendGreaterOrEqual(place{lock: at.lock}, func(p place) bool {
			if p.lock != at.lock {
				return false
			}
			ahead := p.order.Less(at.order)
			if !ahead && k == 0 {
				return false
			}
			b.left--
			if p.seq != r.seq {
				// Those behind overtake where the request does not stand yet, and keep what they get when they wait for more.
				other := b.piece(p.seq)
				found = (ahead || countOf(b.s.taskWaits, b.pieces[other].r.asTask(), 2) == 2) && b.taskMeets(other)
			}
			return !found && b.left > 0
		})
	}
	b.pieces[i].followed = followed
	return found
}

// taskMeets follows everything that the task of a request waits for.
func (b *board) taskMeets(i int32) bool {
	if b.pieces[i].out {
		return false
	}
	for _, w := range b.waitsOf(i) {
		if b.left <= 0 {
			return false
		}
		if !b.pieces[w].out && b.meetsItself(w) {
			return true
		}
	}
	return false
}
