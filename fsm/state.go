package fsm

import (
	"cmp"

	"github.com/google/btree"
)

// State is everything that the log made true. It is changed by Apply only; it is not safe for concurrent use (Machine
// adds the lock). The zero value is not usable: NewState.
type State struct {
	epoch uint64 // rises with every Snapshot; an object of an older epoch is copied before it is changed

	index   uint64 // of the last entry
	term    uint64
	cluster ID
	level   uint64 // feature level (R13)
	base    uint64 // token = base + index (R10)
	begin   uint64 // index of the current begin-term entry (R3)
	elapsed uint64 // the largest elapsed seen under it
	clock   uint64 // the lease clock, ms
	node    string // who leads, as its begin-term entry said
	url     string
	limits  Limits
	raised  []ID // ids of the latest raises, oldest first, at most maxRaised

	lastSession uint64 // numbers given so far
	lastLock    uint64
	tombstones  uint64

	// Objects. Reached by code that applies entries through edit… only.
	sessions *btree.BTreeG[*session] // by number
	locks    *btree.BTreeG[*lock]    // by number
	requests *btree.BTreeG[filed]    // by seq

	// Indexes over them, derived and rebuilt by Restore.
	ids      *btree.BTreeG[named[ID]]     // sessions by id
	names    *btree.BTreeG[named[string]] // locks by name
	owned    *btree.BTreeG[ownership]     // requests by session and number
	queue    *btree.BTreeG[place]         // waiting requests by lock and order
	barriers *btree.BTreeG[place]         // of these, the ones that let nobody pass
	throughs *btree.BTreeG[place]         // of these, the ones that could have this lock and wait for a later one
	holds    *btree.BTreeG[place]         // granted requests by lock and order
	due      *btree.BTreeG[deadline]      // what ends by itself
	ttls     *btree.BTreeG[named[uint64]] // live sessions by TTL
	// For deadlocks among tasks (R7).
	taskWaits *btree.BTreeG[tasked] // waiting requests by task
	taskHolds *btree.BTreeG[tasked] // granted requests by task
	tangled   *btree.BTreeG[place]  // places of waiting requests for several locks, and of tasks that wait more than once

	// Work that an entry left over (R3, R5).
	look *btree.BTreeG[order]  // requests to judge again
	walk *btree.BTreeG[uint64] // locks along whose queue the judging goes on
	rem  *btree.BTreeG[uint64] // closed sessions to take apart

	// The budgets of an entry, always workBudget and lookBudget: only tests make them small.
	works, looks int

	// Of the entry that is being applied.
	now      uint64 // its token
	wall     uint64
	left     int // work it may still do
	events   []Event
	notices  []Notice
	tries    []Seq // the tries it brought that nobody has judged yet
	unjudged []Seq // the tries that nobody had time to judge
	downs    []Seq // the conversions to shared that it brought
	steps    int   // how many its deadlock checks may still take

	// Keys to look objects up with while an entry is applied: a new one each time would cost as much as the rest. Readers,
	// of which several go at once, must not use them.
	sessionKey session
	lockKey    lock

	board *board // for deadlock checks; empty between them
}

// maxRaised is how many raises are remembered, so that a repeated one does nothing.
const maxRaised = 64

type named[K any] struct {
	key    K
	number uint64
}

// filed is a request under its key, which is here so that to find it touches no other requests.
type filed struct {
	seq Seq
	r   *request
}

type ownership struct {
	session uint64
	number  uint64
	seq     Seq
}

// place is a request at one of its locks.
type place struct {
	lock uint64
	order
	mode  Mode
	limit uint32
}

// deadline is something that ends when the lease clock is above at.
type deadline struct {
	at   uint64
	kind dueKind
	id   uint64 // number of the session
	seq  Seq    // of the request
}

type dueKind uint8

const (
	dueSession   dueKind = 1
	dueWait      dueKind = 2
	dueTombstone dueKind = 3
	dueHold      dueKind = 4 // a hold with a maximum
	dueDelay     dueKind = 5 // a lock-delay; id is the number of the lock
)

const degree = 32

func tree[T any](less btree.LessFunc[T]) *btree.BTreeG[T] { return btree.NewG(degree, less) }

func placeLess(a, b place) bool {
	if a.lock != b.lock {
		return a.lock < b.lock
	}
	return a.order.Less(b.order)
}

func byNumber[T cmp.Ordered](a, b named[T]) bool {
	if a.key != b.key {
		return a.key < b.key
	}
	return a.number < b.number
}

// NewState returns the state before the first entry.
func NewState() *State {
	s := &State{level: 1, limits: DefaultLimits, works: workBudget, looks: lookBudget}
	s.empty()
	return s
}

// empty puts empty trees in the place of all holds, waits and sessions, in O(1).
func (s *State) empty() {
	s.sessions = tree(func(a, b *session) bool { return a.number < b.number })
	s.locks = tree(func(a, b *lock) bool { return a.number < b.number })
	s.requests = tree(func(a, b filed) bool { return a.seq.Less(b.seq) })
	s.ids = tree(func(a, b named[ID]) bool { return string(a.key[:]) < string(b.key[:]) })
	s.names = tree(func(a, b named[string]) bool { return a.key < b.key })
	s.owned = tree(func(a, b ownership) bool {
		if a.session != b.session {
			return a.session < b.session
		}
		if a.number != b.number {
			return a.number < b.number
		}
		return a.seq.Less(b.seq)
	})
	s.queue, s.barriers, s.throughs, s.holds = tree(placeLess), tree(placeLess), tree(placeLess), tree(placeLess)
	s.due = tree(func(a, b deadline) bool {
		if a.at != b.at {
			return a.at < b.at
		}
		if a.kind != b.kind {
			return a.kind < b.kind
		}
		if a.id != b.id {
			return a.id < b.id
		}
		return a.seq.Less(b.seq)
	})
	s.ttls = tree(byNumber[uint64])
	s.taskWaits, s.taskHolds, s.tangled = tree(taskedLess), tree(taskedLess), tree(placeLess)
	s.look = tree(order.Less)
	s.walk = tree(func(a, b uint64) bool { return a < b })
	s.rem = tree(func(a, b uint64) bool { return a < b })
	s.tombstones = 0
}

// editSession returns session n for changing, nil when there is none.
func (s *State) editSession(n uint64) *session {
	s.sessionKey.number = n
	v, ok := s.sessions.Get(&s.sessionKey)
	if !ok {
		return nil
	}
	if v.epoch != s.epoch {
		v = v.clone()
		v.epoch = s.epoch
		s.sessions.ReplaceOrInsert(v)
	}
	return v
}

// editLock returns lock n for changing, nil when there is none.
func (s *State) editLock(n uint64) *lock {
	s.lockKey.number = n
	v, ok := s.locks.Get(&s.lockKey)
	if !ok {
		return nil
	}
	if v.epoch != s.epoch {
		c := *v
		v = &c
		v.epoch = s.epoch
		s.locks.ReplaceOrInsert(v)
	}
	return v
}

// editRequest returns the request at seq for changing, nil when there is none.
func (s *State) editRequest(seq Seq) *request {
	v := s.peekRequest(seq)
	if v == nil {
		return nil
	}
	if v.epoch != s.epoch {
		v = v.clone()
		v.epoch = s.epoch
		s.requests.ReplaceOrInsert(filed{seq, v})
	}
	return v
}

// sessionByID returns the number of the session with this id, 0 when there is none. Tombstones are found too.
func (s *State) sessionByID(id ID) uint64 {
	v, _ := s.ids.Get(named[ID]{key: id})
	return v.number
}

// lockNamed returns the number of the lock of this name, 0 when it has no state.
func (s *State) lockNamed(name string) uint64 {
	v, _ := s.names.Get(named[string]{key: name})
	return v.number
}

// makeLock returns the lock of this name for changing, new when it had no state.
func (s *State) makeLock(name string) *lock {
	if n := s.lockNamed(name); n != 0 {
		return s.editLock(n)
	}
	s.lastLock++
	l := &lock{epoch: s.epoch, number: s.lastLock, name: name}
	s.locks.ReplaceOrInsert(l)
	s.names.ReplaceOrInsert(named[string]{name, l.number})
	return l
}

// dropIdle forgets a lock that nobody holds or waits for (R11).
func (s *State) dropIdle(l *lock) {
	if l.idle() {
		s.locks.Delete(l)
		s.names.Delete(named[string]{key: l.name})
		s.walk.Delete(l.number)
	}
}

// makeSession adds a session with this deadline.
func (s *State) makeSession(v session) *session {
	s.lastSession++
	v.epoch, v.number = s.epoch, s.lastSession
	n := &v
	s.sessions.ReplaceOrInsert(n)
	s.ids.ReplaceOrInsert(named[ID]{v.id, v.number})
	at := n.deadline
	n.deadline = never
	s.setDeadline(n, at)
	return n
}

// setDeadline moves the end of a session, and keeps the index of TTLs: it has every session that must renew.
func (s *State) setDeadline(v *session, at uint64) {
	kind := dueSession
	if v.tomb {
		kind = dueTombstone
	}
	if v.deadline != never {
		s.due.Delete(deadline{at: v.deadline, kind: kind, id: v.number})
	}
	if v.deadline = at; at != never {
		s.due.ReplaceOrInsert(deadline{at: at, kind: kind, id: v.number})
	}
	if !v.tomb && at != never {
		s.ttls.ReplaceOrInsert(named[uint64]{v.ttl, v.number})
	}
}

func (s *State) dropSession(v *session) {
	s.setDeadline(v, never)
	s.ttls.Delete(named[uint64]{v.ttl, v.number})
	s.ids.Delete(named[ID]{key: v.id})
	s.sessions.Delete(v)
	s.rem.Delete(v.number)
	if v.tomb {
		s.tombstones--
	}
}

// gone reports whether a session is over for every purpose, also when it has not been taken apart yet (R3).
func (s *State) gone(v *session) bool {
	return v == nil || v.closed || v.tomb || s.clock > v.deadline
}

// over reports whether a request must not be granted or answered any more, though it may still be in the way: its session
// is gone, or its own deadline has passed, or that of the hold that it converts (R3).
func (s *State) over(r *request) bool {
	if r.converts() {
		if hold := s.peekRequest(r.of); hold == nil || s.clock > hold.deadline {
			return true
		}
	}
	return s.clock > r.deadline || s.gone(s.peekSession(r.session))
}

func (s *State) peekRequest(seq Seq) *request {
	found, _ := s.requests.Get(filed{seq: seq})
	return found.r
}

func (s *State) peekSession(n uint64) *session {
	v, _ := s.sessions.Get(&session{number: n})
	return v
}

// first returns the first place at a lock.
func first(t *btree.BTreeG[place], lock uint64) (place, bool) {
	var found place
	t.AscendGreaterOrEqual(place{lock: lock}, func(p place) bool {
		found = p
		return false
	})
	return found, found.lock == lock
}
