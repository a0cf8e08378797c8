package fsm

// board is what one deadlock check has looked up in the state: both halves of it work on these slices, and look nothing
// up twice. The state itself is not changed. Everything counts its steps when it is looked up or gone through (R7).
type board struct {
	s       *State
	left    int      // steps
	quiet   bool     // nothing in the state is over
	session *session // that was looked at last; often the next one is the same
	pieces  []piece
	bySeq   map[Seq]int32 // in pieces
	locks   []boardLock
	byLock  map[uint64]int32 // in locks
	lists   []int32          // of pieces, cut up
	matter  []int32          // the locks that decide about the judged request
	game
}

// piece is one request on the board, by its place in a slice; none is no piece.
type piece struct {
	r        *request
	out      bool // it is not judged or over already: as a wait it does not count, as a hold it is let go of
	followed uint8
	known    bool // the waits of its task are
	waits    span // of its task
	leader   int32
	added    bool // of a leader: the locks that its task waits for matter

	// For the second half (game.go).
	granted bool
	rank    int32 // of a wait
	depth   int32
	spots   int32 // the first of its spots, one for each of its locks
	waiting int32 // of a leader: how many waits of its task count
	holds   int32 // of a leader: the first hold of its task
	next    int32 // of a hold: the next one of its task
}

const none = -1

const (
	unfollowed = iota
	following
	followed
	onPath // of the cycle that is shown
)

// span is a part of the board's lists.
type span struct{ from, to int32 }

type boardLock struct {
	number  uint64
	known   bool // its holds are
	matters bool
	holds   span
	queue   span // the waits that count, in order
	tally
}

// newBoard returns an empty board, which is the state's own until it is wiped: what a check needs is not allocated again
// for each.
func (s *State) newBoard() *board {
	if s.board == nil {
		s.board = &board{bySeq: map[Seq]int32{}, byLock: map[uint64]int32{}}
	}
	b := s.board
	d, found := s.due.Min()
	b.s = s
	// Whatever is over is closed or past its deadline, and was not taken apart yet.
	b.quiet = s.rem.Len() == 0 && (!found || s.clock <= d.at)
	return b
}

// wipe empties the board, so that it keeps nothing of the state alive but memory, of which it has no more than the bounds
// of a check let it use.
func (b *board) wipe() {
	clear(b.pieces)
	clear(b.locks)
	clear(b.bySeq)
	clear(b.byLock)
	b.s, b.session = nil, nil
	b.pieces, b.locks, b.lists, b.matter = b.pieces[:0], b.locks[:0], b.lists[:0], b.matter[:0]
	b.spots, b.waits = b.spots[:0], b.waits[:0]
}

func (b *board) list(s span) []int32 { return b.lists[s.from:s.to:s.to] }

// piece returns the request at seq, which the state has.
func (b *board) piece(seq Seq) int32 {
	if i, found := b.bySeq[seq]; found {
		return i
	}
	i := int32(len(b.pieces))
	r := b.s.peekRequest(seq)
	b.pieces = append(b.pieces, piece{r: r, out: r.task == "" || r.try || b.over(r), leader: none, holds: none, next: none, spots: none, depth: -1})
	b.bySeq[seq] = i
	return i
}

// over is what State.over is, quicker.
func (b *board) over(r *request) bool {
	if b.quiet {
		return false
	}
	return r.converts() && b.s.over(r) || b.s.clock > r.deadline || b.s.gone(b.sessionOf(r))
}

// sessionOf returns the session of a request.
func (b *board) sessionOf(r *request) *session {
	if b.session == nil || b.session.number != r.session {
		b.s.sessionKey.number = r.session
		b.session, _ = b.s.sessions.Get(&b.s.sessionKey)
	}
	return b.session
}

func (b *board) lock(number uint64) int32 {
	i, found := b.byLock[number]
	if !found {
		i = int32(len(b.locks))
		b.locks = append(b.locks, boardLock{number: number})
		b.byLock[number] = i
	}
	return i
}

// holdsAt returns the holds of a lock. It takes a step for each.
func (b *board) holdsAt(lock int32) []int32 {
	l := &b.locks[lock]
	if !l.known {
		l.known, l.holds.from = true, int32(len(b.lists))
		most := b.left // beyond it the check is given up
		b.s.eachHold(l.number, func(p place) bool {
			b.lists = append(b.lists, b.piece(p.seq))
			most--
			return most > 0
		})
		l.holds.to = int32(len(b.lists))
	}
	b.left -= int(l.holds.to - l.holds.from)
	return b.list(l.holds)
}

// waitsOf returns the waits of the task of a piece. It takes a step for each. The first of them leads the task: pieces are
// of one task when they have one leader.
func (b *board) waitsOf(i int32) []int32 {
	if !b.pieces[i].known {
		waits, most := span{from: int32(len(b.lists))}, b.left
		eachOf(b.s.taskWaits, b.pieces[i].r.asTask(), func(seq Seq) bool {
			b.lists = append(b.lists, b.piece(seq))
			most--
			return most > 0
		})
		waits.to = int32(len(b.lists))
		b.ofOneTask(i, waits)
		for _, w := range b.list(waits) {
			b.ofOneTask(w, waits)
		}
	}
	all := b.list(b.pieces[i].waits)
	b.left -= len(all)
	return all
}

func (b *board) ofOneTask(i int32, waits span) {
	p := &b.pieces[i]
	if p.known, p.waits = true, waits; waits.from < waits.to {
		p.leader = b.lists[waits.from]
	}
}

// gather collects the locks that matter: those of a request, of everybody who holds or waits there, of the other waits of
// their tasks, and so on. It reports whether that stayed within the bound.
func (b *board) gather(judged int32) bool {
	b.add(judged)
	var tangled []order
	for i := 0; i < len(b.matter) && b.left > 0; i++ {
		n := b.matter[i]
		for _, h := range b.holdsAt(n) {
			b.addTask(h)
		}
		tangled = b.tangledAt(n, tangled[:0])
		next := 0
		for _, w := range b.queueAt(n) {
			o := b.pieces[w].r.order()
			for next < len(tangled) && tangled[next].Less(o) {
				next++
			}
			if next < len(tangled) && tangled[next] == o { // else its task waits for nothing else
				b.addTask(w)
			}
		}
	}
	return b.left > 0
}

// queueAt returns the waits at a lock that count, in their order. It takes a step for each.
func (b *board) queueAt(n int32) []int32 {
	queue := span{from: int32(len(b.lists))}
	b.s.eachWait(b.locks[n].number, func(p place) bool {
		b.left--
		if w := b.piece(p.seq); !b.pieces[w].out {
			b.lists = append(b.lists, w)
		}
		return b.left > 0
	})
	queue.to = int32(len(b.lists))
	b.locks[n].queue = queue
	return b.list(queue)
}

// tangledAt returns the tangled ones of these.
func (b *board) tangledAt(n int32, all []order) []order {
	lock := b.locks[n].number
	if b.s.tangled.Len() > 0 {
		b.s.tangled.AscendGreaterOrEqual(place{lock: lock}, func(p place) bool {
			if p.lock == lock {
				all = append(all, p.order)
			}
			return p.lock == lock && len(all) < b.left
		})
	}
	return all
}

// addTask has the locks matter that the task of a piece waits for.
func (b *board) addTask(i int32) {
	p := &b.pieces[i]
	if p.out || b.left <= 0 || p.leader != none && b.pieces[p.leader].added {
		return
	}
	for _, w := range b.waitsOf(i) {
		b.pieces[b.pieces[i].leader].added = true
		if !b.pieces[w].out {
			b.add(w)
		}
	}
}

// add has the locks of a waiting request matter.
func (b *board) add(w int32) {
	for _, p := range b.pieces[w].r.locks {
		n := b.lock(p.lock)
		if l := &b.locks[n]; !l.matters {
			l.matters = true
			b.matter = append(b.matter, n)
		}
	}
}
