package fsm

import "slices"

// nature says what a session is for.
type nature uint8

const (
	natureNamed nature = 0 // opened by a client, holds many numbered requests
	natureOwn   nature = 1 // opened by an acquire without a session; ends with its hold
	natureKeyed nature = 2 // the same, named by an Idempotency-Key; remembered as a tombstone
)

// session is a client that proves it is alive by renewing, or one grant that somebody keeps alive.
type session struct {
	epoch    uint64
	number   uint64
	id       ID
	nature   nature
	owner    string
	ttl      uint64
	asked    uint64 // the TTL that it was opened with, of which a renewal may have made another; a repeat is compared with it
	deadline uint64 // lease clock; never while it only waits (natureOwn, natureKeyed) and of a tombstone's own otherwise
	closed   bool   // gone for every purpose, still to be taken apart (R3)
	tomb     bool   // gone; only its name is remembered, until deadline
	memory   uint64 // ms that a tombstone is kept: longest wait + 60 s
	holds    uint64 // granted requests
	waits    uint64 // waiting requests
	finished []interval
	labels   []Label
	lost     []Lost // holds that it lost other than by its own doing, until its client has finished their numbers
}

// never is the deadline of what does not end by itself.
const never = ^uint64(0)

// interval is a closed range of finished request numbers.
type interval struct{ low, high uint64 }

func (s *session) clone() *session {
	c := *s
	c.finished, c.lost = slices.Clone(s.finished), slices.Clone(s.lost)
	return &c
}

// isFinished reports whether number n was finished.
func (s *session) isFinished(n uint64) bool {
	i, found := slices.BinarySearchFunc(s.finished, n, func(v interval, n uint64) int {
		switch {
		case v.high < n:
			return -1
		case v.low > n:
			return 1
		}
		return 0
	})
	return found && i < len(s.finished)
}

// finish adds low…high to the finished numbers, joining what touches.
func (s *session) finish(low, high uint64) {
	if low == 0 || low > high {
		return
	}
	i := 0
	for i < len(s.finished) && s.finished[i].high+1 < low {
		i++
	}
	j := i
	for j < len(s.finished) && s.finished[j].low <= high+1 {
		low, high = min(low, s.finished[j].low), max(high, s.finished[j].high)
		j++
	}
	s.finished = slices.Replace(s.finished, i, j, interval{low, high})
}

// maxIntervals bounds the finished intervals of a session, so that a client that never says done cannot grow the state
// (R11).
const maxIntervals = 1024

// lock is a name that somebody holds or waits for. What is held and who waits is in the trees of State; here are the
// sums that make judging a request cheap.
type lock struct {
	epoch     uint64
	number    uint64
	name      string
	exclusive bool
	shared    uint64 // shared holds
	limited   uint64 // of these, with a limit
	period    uint64 // token of the shared period, while shared > 0 (R6)
	limit     uint32 // the limit that all its limited holds and waits have
	bounded   uint64 // how many of its holds and waits have it
	waits     uint64
	multiple  uint64 // of these, requests for several locks
	delay     uint64 // lease clock: it is granted to nobody until the clock is above; 0 when there is none (R9)
}

func (l *lock) idle() bool { return !l.exclusive && l.shared == 0 && l.waits == 0 && l.delay == 0 }

// request is one acquire: first it waits, then it holds.
type request struct {
	epoch    uint64
	seq      Seq
	session  uint64
	number   uint64
	granted  bool
	try      bool   // only within the entry that brings it
	since    uint64 // lease clock: when it was queued, then when it was granted
	wall     uint64 // unix ms at the leader, likewise
	deadline uint64 // lease clock: when the wait ends; of a hold with a maximum, when that ends
	depth    int    // how many of its first locks it goes through; -1 before it is judged
	task     string
	trace    string
	locks    []part
	priority int64
	maxHold  uint64 // ms, 0 is none
	delay    uint64 // ms of lock-delay after an unclean end
	of       Seq    // of a conversion: the request that holds; its one part is the lock as it shall be held
}

// converts reports whether the request is a conversion of a hold, and not a hold itself.
func (r *request) converts() bool { return r.of != Seq{} }

// convertsDown reports whether it is a conversion to shared, which takes effect in its own entry and stands in no queue.
func (r *request) convertsDown() bool { return r.converts() && r.locks[0].Mode == Shared }

// order is a request's place in the one order that all requests share: conversions to exclusive first, then priority,
// then the log (R5).
type order struct {
	rank uint64 // 0 of a conversion, else less for a higher priority
	seq  Seq
}

func (a order) Less(b order) bool { return a.rank < b.rank || (a.rank == b.rank && a.seq.Less(b.seq)) }

func (r *request) order() order {
	if r.converts() {
		return order{seq: r.seq}
	}
	return order{rank: uint64(1 + MaxPriority - r.priority), seq: r.seq}
}

// part is one lock of a request.
type part struct {
	Want
	asked      Want   // as the acquire asked for it; a conversion changes the other one
	lock       uint64 // number of the lock, 0 when it was given back
	token      uint64 // once granted
	former     uint64 // token before the last conversion: it still releases, as the answer may not have arrived (R9)
	conversion Seq    // of the latest conversion of this hold, waiting or done
	value      string
}

func (r *request) clone() *request {
	c := *r
	c.locks = slices.Clone(r.locks)
	return &c
}

// wants reports whether the request is the same as an acquire with this body.
func (r *request) wants(a *Acquire) bool {
	return !r.converts() && r.task == a.Task && r.priority == a.Priority && r.maxHold == a.MaxHold && r.delay == a.Delay &&
		slices.EqualFunc(r.locks, a.Locks, func(p part, w Want) bool { return p.asked == w })
}

// position returns where lock stands in the request.
func (r *request) position(lock uint64) int {
	return slices.IndexFunc(r.locks, func(p part) bool { return p.lock == lock })
}
