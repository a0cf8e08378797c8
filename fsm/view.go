package fsm

import "strings"

// What readers may see. The methods of this file change nothing; call them inside Machine.Read. `now` is the reader's
// estimate of the lease clock (the state's own is that of the last entry); what is shown stays within its bounds also
// when the estimate is off.

// Holder is one hold of a lock.
type Holder struct {
	Name      string
	Session   ID
	Owner     string
	Task      string
	Trace     string
	Mode      Mode
	Limit     uint32
	Token     uint64
	Value     string
	Held      uint64 // ms
	Remaining uint64 // ms until its session ends unless renewed
}

// Waiter is one request in the queue of a lock.
type Waiter struct {
	Session  ID
	Owner    string
	Task     string
	Mode     Mode
	Limit    uint32
	Priority int64
	Waited   uint64   // ms
	Position int      // 1 is next
	WaitsFor []string // the locks it cannot have yet
}

// LockInfo is a lock with its holders and its queue.
type LockInfo struct {
	Name    string
	Holders []Holder
	Queue   []Waiter
	Delay   uint64 // ms until it can be granted again after an unclean end
	Held    int    // how many hold, when Holders is cut short
	Waiting int    // how many wait, when Queue is cut short
}

// SessionInfo is a session.
type SessionInfo struct {
	Number    uint64
	ID        ID
	Owner     string
	Labels    []Label
	TTL       uint64 // ms
	Remaining uint64 // ms
	Holds     int
	Waits     int
}

func (s *State) holder(p place, name string, now uint64) Holder {
	r := s.peekRequest(p.seq)
	v := s.peekSession(r.session)
	h := Holder{
		Name: name, Session: v.id, Owner: v.owner, Task: r.task, Trace: r.trace, Mode: p.mode, Limit: p.limit,
		Held: now - min(now, r.since), Remaining: remaining(v, now),
	}
	if r.maxHold != 0 {
		h.Remaining = min(h.Remaining, r.deadline-min(r.deadline, now))
	}
	if i := r.position(p.lock); i >= 0 {
		h.Token, h.Value = r.locks[i].token, r.locks[i].value
	}
	return h
}

// remaining is 0 for a session that is closed, and its TTL for one that its wait keeps.
func remaining(v *session, now uint64) uint64 {
	switch {
	case v.closed || v.tomb:
		return 0
	case v.deadline == never:
		return v.ttl
	}
	return min(v.deadline-min(v.deadline, now), v.ttl)
}

// holdersOf returns at most MaxHolders holders of these locks, and how many wait for them.
func (s *State) holdersOf(locks []Want) (holders []Holder, waiting int) {
	for _, w := range locks {
		n := s.lockNamed(w.Name)
		if n == 0 {
			continue
		}
		l, _ := s.locks.Get(&lock{number: n})
		waiting += int(l.waits)
		s.eachHold(n, func(p place) bool {
			if len(holders) == MaxHolders {
				return false
			}
			holders = append(holders, s.holder(p, l.name, s.clock))
			return true
		})
	}
	return holders, waiting
}

func (s *State) eachHold(lock uint64, f func(place) bool) {
	s.holds.AscendGreaterOrEqual(place{lock: lock}, func(p place) bool { return p.lock == lock && f(p) })
}

func (s *State) eachWait(lock uint64, f func(place) bool) {
	s.queue.AscendGreaterOrEqual(place{lock: lock}, func(p place) bool { return p.lock == lock && f(p) })
}

// Clock returns the lease clock at the last entry, in ms.
func (s *State) Clock() uint64 { return s.clock }

// Index returns the log index of the last entry.
func (s *State) Index() uint64 { return s.index }

// Term returns the term of the last entry.
func (s *State) Term() uint64 { return s.term }

// Level returns the cluster's feature level.
func (s *State) Level() uint64 { return s.level }

// Cluster returns the cluster's id, zero before the first begin-term.
func (s *State) Cluster() ID { return s.cluster }

// Leader returns who began the current term and where its API is.
func (s *State) Leader() (node, url string) { return s.node, s.url }

// SessionNumber returns the number by which commands name the session with this id, 0 when it is gone or never was.
func (s *State) SessionNumber(id ID) uint64 {
	n := s.sessionByID(id)
	if n == 0 || s.gone(s.peekSession(n)) {
		return 0
	}
	return n
}

// Lock returns a lock with at most limit holders and waiters; a free one has none.
func (s *State) Lock(name string, now uint64, limit int) LockInfo {
	info := LockInfo{Name: name}
	n := s.lockNamed(name)
	if n == 0 {
		return info
	}
	l, _ := s.locks.Get(&lock{number: n})
	info.Held, info.Waiting = int(l.shared), int(l.waits)
	if l.delay != 0 {
		info.Delay = l.delay + 1 - min(l.delay+1, now)
	}
	if l.exclusive {
		info.Held = 1
	}
	s.eachHold(n, func(p place) bool {
		if len(info.Holders) >= limit {
			return false
		}
		info.Holders = append(info.Holders, s.holder(p, name, now))
		return true
	})
	s.eachWait(n, func(p place) bool {
		if len(info.Queue) >= limit {
			return false
		}
		info.Queue = append(info.Queue, s.waiter(p, len(info.Queue)+1, now))
		return true
	})
	return info
}

func (s *State) waiter(p place, position int, now uint64) Waiter {
	r := s.peekRequest(p.seq)
	v := s.peekSession(r.session)
	w := Waiter{
		Session: v.id, Owner: v.owner, Task: r.task, Mode: p.mode, Limit: p.limit,
		Priority: r.priority, Waited: now - min(now, r.since), Position: position,
	}
	for i, o := range r.locks {
		if i >= r.depth { // the earlier ones it could have
			w.WaitsFor = append(w.WaitsFor, o.Name)
		}
	}
	return w
}

// Locks calls f with the locks whose names begin with prefix and follow after, in byte order, each with at most limit
// holders and waiters, until f returns false.
func (s *State) Locks(prefix, after string, now uint64, limit int, f func(LockInfo) bool) {
	from := max(prefix, after)
	s.names.AscendGreaterOrEqual(named[string]{key: from}, func(n named[string]) bool {
		if after != "" && n.key <= after {
			return true
		}
		if !strings.HasPrefix(n.key, prefix) {
			return n.key < prefix
		}
		return f(s.Lock(n.key, now, limit))
	})
}

// Sessions calls f with the live sessions whose number is above after, in the order of their numbers, until f returns
// false.
func (s *State) Sessions(after, now uint64, f func(SessionInfo) bool) {
	s.sessions.AscendGreaterOrEqual(&session{number: after + 1}, func(v *session) bool {
		if v.tomb || v.closed {
			return true
		}
		return f(SessionInfo{
			Number: v.number, ID: v.id, Owner: v.owner, Labels: v.labels, TTL: v.ttl, Remaining: remaining(v, now),
			Holds: int(v.holds), Waits: int(v.waits),
		})
	})
}

// Progress says where a request stands: queued with its places, granted, or neither (the zero value).
type Progress struct {
	Queued bool
	Grant  *Grant
	Places []Position
}

// Position is a request's place in the queue of one of its locks; 1 is next.
type Position struct {
	Name     string
	Position int
}

// Request tells where the request at seq stands, counting places up to limit.
func (s *State) Request(seq Seq, limit int) Progress {
	r := s.peekRequest(seq)
	switch {
	case r == nil || s.over(r):
		return Progress{}
	case r.granted:
		return Progress{Grant: s.grantOf(r)}
	}
	out := Progress{Queued: true}
	for _, p := range r.locks {
		n := 1
		s.eachWait(p.lock, func(before place) bool {
			if before.seq == seq || n >= limit {
				return false
			}
			n++
			return true
		})
		out.Places = append(out.Places, Position{p.Name, n})
	}
	return out
}

// Refuses reports whether a try for these locks is certain to be refused in this state, and then who is in the way. It
// is cheap, and may say no where Apply would refuse.
func (s *State) Refuses(locks []Want) (holders []Holder, waiting int, refused bool) {
	for _, w := range locks {
		n := s.lockNamed(w.Name)
		if n == 0 {
			continue
		}
		l, _ := s.locks.Get(&lock{number: n})
		if l.exclusive || l.delay != 0 || (w.Mode == Exclusive && l.shared > 0) {
			holders, waiting = s.holdersOf(locks)
			return holders, waiting, true
		}
	}
	return nil, 0, false
}

// Schedule tells a leader when the state machine needs its next entry.
type Schedule struct {
	Clock       uint64 // the lease clock at the last entry, ms
	Begin       uint64 // index of the current begin-term entry
	Elapsed     uint64 // the largest elapsed seen under it, ms
	Due         uint64 // something ends when the clock is above; never (^0) when nothing does
	Backlog     bool   // the last entry left work over: the next is needed at once
	ShortestTTL uint64 // ms, of the live sessions; 0 when there is none
}

// Schedule returns what the state machine needs next.
func (s *State) Schedule() Schedule {
	out := Schedule{Clock: s.clock, Begin: s.begin, Elapsed: s.elapsed, Due: never, Backlog: s.backlog()}
	if d, found := s.due.Min(); found {
		out.Due = d.at
	}
	if t, found := s.ttls.Min(); found {
		out.ShortestTTL = t.key
	}
	return out
}

// Counts returns how many locks, sessions, holds and waits there are.
func (s *State) Counts() (locks, sessions, holds, waits int) {
	return s.locks.Len(), s.sessions.Len() - int(s.tombstones), s.holds.Len(), s.queue.Len()
}

// SessionAlive reports whether the session with this number can still be renewed.
func (s *State) SessionAlive(number uint64) bool { return !s.gone(s.peekSession(number)) }

// SessionLease returns a session's TTL and how much of it is left, in ms; both are 0 when it is gone.
func (s *State) SessionLease(number, now uint64) (ttl, left uint64) {
	v := s.peekSession(number)
	if s.gone(v) {
		return 0, 0
	}
	return v.ttl, remaining(v, now)
}

// Begin returns the index of the current begin-term entry.
func (s *State) Begin() uint64 { return s.begin }

// Unrepeatable calls f with the session of every wait whose caller gave neither number nor key; once for each lock.
func (s *State) Unrepeatable(f func(id ID)) {
	var session session // a key to look sessions up with: a new one each time would cost more than the rest
	s.queue.Ascend(func(p place) bool {
		waiting, _ := s.requests.Get(filed{seq: p.seq})
		session.number = waiting.r.session
		if v, _ := s.sessions.Get(&session); v.nature == natureOwn {
			f(v.id)
		}
		return true
	})
}
