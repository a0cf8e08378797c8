package check

import (
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// call is one operation on one lock, as porcupine is told of it: a grant, a release, a conversion or a look that was told to
// be done.
//
// What has an unknown outcome is no operation here, and nothing is lost by it. An acquire of which nobody knows may have
// been granted and ended at any time, or never: every history that is right without it is right with it. A release of
// which nobody knows may end its hold at any time after its invocation: so says the hold's until. This keeps what is
// checked free of operations that stay open for ever, each of which would double the work.
type call struct {
	kind  callKind
	hold  *hold // acquire, release, convert
	id    int   // of hold, among all of this lock
	was   int   // convert: the id of the hold before
	root  int   // the id of the first of the holds that were made of one by conversions
	token uint64
	known int // look: the id of the hold with this token, -1 when nobody was told of such a one
	from  time.Duration
	to    time.Duration
	shown []int
}

type callKind int

const (
	acquires callKind = iota
	releases
	looks
	converts
)

// lockState is one lock as the models see it.
type lockState struct {
	holds []int  // ids, in order: those that nothing has ended yet
	last  uint64 // the newest token
	// lastExclusive says that it was that of an exclusive hold: no shared one may have it, too.
	lastExclusive bool
}

func (s lockState) equal(other lockState) bool {
	return s.last == other.last && s.lastExclusive == other.lastExclusive && slices.Equal(s.holds, other.holds)
}

func (s lockState) hash() uint64 {
	h := s.last*0x9e3779b97f4a7c15 + 1
	for _, id := range s.holds {
		h = (h ^ uint64(id)) * 0x100000001b3
	}
	return h
}

// rules say what one lock may do. The model knows no queue and no entries: of what one entry does, all that ends comes
// before all that is granted, and so there is always an order, one after the other, for each lock by itself. (For the
// queues of several locks there need not be one: two ends in one entry equal ending both at once.)
type rules struct {
	holds  []*hold // by id
	tokens bool    // they rise
}

// step does one call to a state, in the order that porcupine tries. A hold may end by itself when its holder believes in
// it no more: there is no call for that. So a hold that is in the way is taken to have ended if it may have, at the latest
// moment at which the grant can have been made.
func (r rules) step(s lockState, c *call) (bool, lockState) {
	there := func(id int) bool { return r.holds[id].until > c.to }
	switch c.kind {
	case releases:
		at, found := slices.BinarySearch(s.holds, c.id)
		if !found {
			return false, s
		}
		s.holds = slices.Delete(slices.Clone(s.holds), at, at+1)
		return true, s
	case looks:
		return r.look(s, c, there)
	}
	if c.kind == converts { // at once: what it held goes, and what it gets is granted, if nobody is in the way
		at, found := slices.BinarySearch(s.holds, c.was)
		if !found {
			return false, s
		}
		s.holds = slices.Delete(slices.Clone(s.holds), at, at+1)
	}
	h := c.hold
	limit, count := h.limit, int64(0)
	next := lockState{last: h.token, lastExclusive: h.exclusive()}
	for _, id := range s.holds {
		other := r.holds[id]
		incompatible := h.exclusive() || other.exclusive()
		switch {
		case there(id) && incompatible:
			return false, s
		case there(id):
			count++
			if other.limit > 0 && (limit == 0 || other.limit < limit) {
				limit = other.limit
			}
			if r.tokens && other.token != h.token { // one period, one token
				return false, s
			}
			next.holds = append(next.holds, id)
		case !incompatible: // it may have ended, or else be there: its own release will tell
			next.holds = append(next.holds, id)
		}
	}
	if limit > 0 && count >= limit {
		return false, s
	}
	if r.tokens && (h.token < s.last || h.token == s.last && (h.exclusive() || s.lastExclusive)) {
		return false, s
	}
	at, _ := slices.BinarySearch(next.holds, c.id)
	next.holds = slices.Insert(next.holds, at, c.id)
	if !r.tokens {
		next.last, next.lastExclusive = 0, false
	}
	return true, next
}

// look judges what a read said of an exclusive lock.
func (r rules) look(s lockState, c *call, there func(int) bool) (bool, lockState) {
	if c.known >= 0 {
		_, found := slices.BinarySearch(s.holds, c.known)
		return found, s
	}
	// Free, or held by somebody of whose grant nobody was told.
	if slices.ContainsFunc(s.holds, there) {
		return false, s
	}
	if c.token != 0 && r.tokens {
		if c.token < s.last { // the same is: the hold was looked at before
			return false, s
		}
		s.last, s.lastExclusive = c.token, true
	}
	s.holds = nil
	return true, s
}

func (r rules) model(init lockState) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return init },
		Step: func(state, input, _ any) (bool, any) {
			return r.step(state.(lockState), input.(*call))
		},
		Equal: func(a, b any) bool { return a.(lockState).equal(b.(lockState)) },
		Hash:  func(s any) uint64 { return s.(lockState).hash() },
	}
}

// illegal says whether no order explains these calls. It is false, with unknown, when time ran out.
func (r rules) illegal(init lockState, calls []*call, limit time.Duration) (illegal, unknown bool) {
	operations := make([]porcupine.Operation, len(calls))
	for i, c := range calls {
		operations[i] = porcupine.Operation{Input: c, Call: int64(c.from), Return: int64(c.to)}
	}
	result := porcupine.CheckOperationsTimeout(r.model(init), operations, max(limit, time.Millisecond))
	return result == porcupine.Illegal, result == porcupine.Unknown
}
