package check

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/pawl-lock/pawl/jepsen/history"
)

// Modes of holds, in the words of the wire.
const (
	exclusive = "exclusive"
	shared    = "shared"
)

// hold is one acknowledged grant of one lock: what its holder was told, and how long it could believe in it.
type hold struct {
	lock    string
	mode    string
	limit   int64
	token   uint64
	session string
	request uint64
	process int
	asked   time.Duration // the request was first sent then, by whatever operation
	known   time.Duration // the grant was made no later than this
	until   time.Duration // the holder believed in it until then; the server must not have ended it before
	gone    time.Duration // the server has ended it no later than this, Forever when nobody knows
	acquire history.Operation
	release *history.Operation // that was told to be done, of this very hold
	sign    time.Duration      // the last of life in its session
	lease   time.Duration      // until when the lease was told to last, 0 when it was not told
	ends    []int              // Ops that bound until
	ranks   time.Duration      // its place in the queue was known no later than this
	seen    time.Duration      // a look that showed it ended then, 0 when there was none
	former  *hold              // that a conversion made this one of, nil when it was acquired
}

func (h *hold) exclusive() bool { return h.mode != shared }

// shown are the Ops to show for a hold.
func (h *hold) shown() []int { return append(h.acquire.Indexes(), h.ends...) }

// endsAt takes note that belief ended at t, as the Op shows.
func (h *hold) endsAt(t time.Duration, op int) {
	if t < h.until {
		h.until, h.ends = t, []int{op}
	}
}

// request is what is known by its number in a session.
type request struct {
	session string
	number  uint64
}

// gatherer goes over a history to make its holds.
type gatherer struct {
	holds     []*hold
	told      map[int][]*hold // by the index of an OK that tells of them
	byRequest map[request][]*hold
	bySession map[string][]*hold
	asked     map[request]time.Duration
	ranked    map[request]time.Duration
	leases    map[string]time.Duration
	signs     map[string]time.Duration
	newest    map[ofProcess]*hold
}

// ofProcess is a lock that a process has.
type ofProcess struct {
	process int
	lock    string
}

// gather makes the holds of a history, in the order in which they became known.
//
// A conversion makes another hold of one. Belief in a hold begins when its grant is known and ends with the first of: its
// conversion, the invocation of its release (whatever comes of it), the Lease of its Lost op, its session's close or its request's cancel, an operator's force, and, when its
// acquire told a Lease, the latest Lease told in its session. Without any of them nobody knows how long the holder went on
// to believe, and the hold is taken to be believed at no time at all: that accuses nobody wrongly.
func gather(ops []history.Op, operations []history.Operation) []*hold {
	g := &gatherer{
		told: map[int][]*hold{}, byRequest: map[request][]*hold{}, bySession: map[string][]*hold{},
		asked: map[request]time.Duration{}, ranked: map[request]time.Duration{}, leases: map[string]time.Duration{}, signs: map[string]time.Duration{},
		newest: map[ofProcess]*hold{},
	}
	for _, o := range operations {
		g.hears(o)
	}
	for _, o := range operations {
		g.granted(o)
		g.converted(o)
	}
	g.end(ops, operations)
	for _, h := range g.holds {
		if h.until == history.Forever {
			h.until = h.known
		}
	}
	slices.SortStableFunc(g.holds, func(a, b *hold) int { return cmp.Compare(a.known, b.known) })
	return g.holds
}

// end finds what ended the holds. Who tries to end one need not be who acquired it, and may do so before the grant is
// known: so all grants come first.
func (g *gatherer) end(ops []history.Op, operations []history.Operation) {
	begun := make(map[int]history.Operation, len(operations))
	for _, o := range operations {
		begun[o.Invoke.Index] = o
	}
	current := map[int][]*hold{} // what each process has
	for _, op := range ops {
		if told := g.told[op.Index]; told != nil {
			if op.F == history.Convert { // of one lock of several, perhaps
				told = append(slices.DeleteFunc(slices.Clone(current[op.Process]), func(h *hold) bool { return h == told[0].former }), told...)
			}
			current[op.Process] = told
		}
		if op.F == history.Lost {
			for _, h := range current[op.Process] {
				if (op.Lock == "" || op.Lock == h.lock) && (op.Token == 0 || op.Token == h.token) {
					h.lost(op)
				}
			}
		}
		if op.Type != history.Invoke {
			continue
		}
		o := begun[op.Index]
		switch op.F {
		case history.Convert:
			for _, h := range current[op.Process] {
				if h.lock == op.Lock {
					h.convertedBy(o)
				}
			}
		case history.Release:
			holds := current[op.Process]
			if op.Request != 0 {
				holds = g.byRequest[request{op.Session, op.Request}]
			}
			for _, h := range holds {
				if op.Lock == "" || op.Lock == h.lock {
					h.released(o)
				}
			}
		case history.Cancel:
			for _, h := range g.byRequest[request{op.Session, op.Request}] {
				h.released(o)
			}
		case history.Close:
			for _, h := range g.bySession[op.Session] {
				h.released(o)
			}
		case history.Force:
			for _, h := range g.holds {
				if h.asked <= o.End() && (op.Lock == "" || op.Lock == h.lock && (op.Token == 0 || op.Token == h.token)) {
					h.endsAt(op.Time, op.Index)
				}
			}
		}
	}
}

// hears takes note of what an operation says of requests and sessions, whichever process it was.
func (g *gatherer) hears(o history.Operation) {
	in := o.Invoke
	if r := (request{in.Session, in.Request}); in.Request != 0 {
		if _, found := g.asked[r]; !found && (in.F == history.Queue || in.F == history.Acquire) {
			g.asked[r] = in.Time
		}
		if _, found := g.ranked[r]; !found && in.F == history.Queue && o.Outcome() == history.OK {
			g.ranked[r] = o.End()
		}
	}
	if in.Session != "" && !strings.Contains(o.Complete.Error, "session_gone") {
		g.signs[in.Session] = max(g.signs[in.Session], o.End())
	}
	if out := o.Complete; out.Type == history.OK && out.Session != "" {
		g.leases[out.Session] = max(g.leases[out.Session], out.Lease)
	}
}

func (g *gatherer) granted(o history.Operation) {
	op := o.Complete
	queued := op.F == history.Queue && op.Token != 0 // granted at once
	if op.Type != history.OK || op.F != history.Acquire && !queued {
		return
	}
	locks := op.Locks
	if len(locks) == 0 {
		locks = []history.Granted{{Name: op.Lock, Token: op.Token}}
	}
	r := request{op.Session, op.Request}
	for _, granted := range locks {
		if again := g.again(r, granted); again != nil { // the same answer once more, as to a repeated message
			again.known, again.ranks = min(again.known, op.Time), min(again.ranks, op.Time)
			g.told[op.Index] = append(g.told[op.Index], again)
			continue
		}
		h := &hold{
			lock: granted.Name, token: granted.Token, mode: cmp.Or(op.Mode, o.Invoke.Mode, exclusive),
			limit: max(op.Limit, o.Invoke.Limit), session: op.Session, request: op.Request, process: op.Process,
			asked: o.Invoke.Time, known: op.Time, until: history.Forever, gone: history.Forever, acquire: o, ranks: op.Time,
		}
		if asked, found := g.asked[r]; found {
			h.asked = min(h.asked, asked)
		}
		if ranked, found := g.ranked[r]; found {
			h.ranks = min(h.ranks, ranked)
		}
		h.sign = g.signs[op.Session]
		if op.Lease > 0 {
			h.lease = max(op.Lease, g.leases[op.Session])
			h.endsAt(h.lease, op.Index)
		}
		g.holds = append(g.holds, h)
		g.newest[ofProcess{op.Process, h.lock}] = h
		g.told[op.Index] = append(g.told[op.Index], h)
		if op.Request != 0 {
			g.byRequest[r] = append(g.byRequest[r], h)
		}
		if op.Session != "" {
			g.bySession[op.Session] = append(g.bySession[op.Session], h)
		}
	}
}

// converted makes a hold of its own of one whose mode has changed: it has another token. The process has had the one before.
func (g *gatherer) converted(o history.Operation) {
	op, in := o.Complete, o.Invoke
	former := g.newest[ofProcess{in.Process, in.Lock}]
	if in.F != history.Convert || o.Outcome() != history.OK || former == nil {
		return
	}
	h := &hold{
		lock: in.Lock, token: op.Token, mode: cmp.Or(op.Mode, in.Mode), limit: max(op.Limit, in.Limit), session: former.session, request: former.request,
		process: in.Process, asked: in.Time, known: op.Time, until: history.Forever, gone: history.Forever, acquire: o, ranks: op.Time,
		sign: former.sign, former: former,
	}
	if former.lease > 0 {
		h.lease = max(op.Lease, former.lease)
		h.endsAt(h.lease, op.Index)
	}
	g.holds = append(g.holds, h)
	g.newest[ofProcess{in.Process, in.Lock}] = h
	g.told[op.Index] = append(g.told[op.Index], h)
	if r := (request{h.session, h.request}); h.request != 0 {
		g.byRequest[r] = append(g.byRequest[r], h)
	}
	if h.session != "" {
		g.bySession[h.session] = append(g.bySession[h.session], h)
	}
}

func (g *gatherer) again(r request, granted history.Granted) *hold {
	if r.number == 0 {
		return nil
	}
	for _, h := range g.byRequest[r] {
		if h.lock == granted.Name && h.token == granted.Token {
			return h
		}
	}
	return nil
}

func (h *hold) lost(op history.Op) {
	at := op.Lease
	if at == 0 || strings.Contains(op.Note, "revoked") || strings.Contains(op.Note, "cluster_changed") {
		at = h.known // an operator may have taken it at any time since
	}
	h.endsAt(at, op.Index)
	h.release, h.gone = nil, history.Forever
}

// released takes note of what was to end the hold. Belief ends with the invocation. Only what is told to be done, and done
// to this hold, says that the server ended it then.
func (h *hold) released(o history.Operation) {
	h.endsAt(o.Invoke.Time, o.Invoke.Index)
	if o.Outcome() != history.OK {
		return
	}
	h.gone = min(h.gone, o.End())
	// A hold that was lost before may have ended before, whatever was answered.
	if o.Invoke.F == history.Release && h.release == nil && h.until == o.Invoke.Time {
		h.release = &o
	}
}

// convertedBy takes note of what was to change the hold's mode. A reader who becomes a writer goes on as a reader until
// it is told so; a writer who becomes a reader is a writer no more from the invocation on. What was refused has
// changed nothing.
func (h *hold) convertedBy(o history.Operation) {
	switch {
	case o.Outcome() == history.Fail:
		return
	case o.Outcome() == history.OK && !h.exclusive():
		h.endsAt(o.End(), o.Complete.Index)
	default:
		h.endsAt(o.Invoke.Time, o.Invoke.Index)
	}
	if o.Outcome() == history.OK {
		h.gone = min(h.gone, o.End())
	}
}

// byLock sorts holds into their locks, with the names in order.
func byLock(holds []*hold) (names []string, locks map[string][]*hold) {
	locks = map[string][]*hold{}
	for _, h := range holds {
		if locks[h.lock] == nil {
			names = append(names, h.lock)
		}
		locks[h.lock] = append(locks[h.lock], h)
	}
	slices.Sort(names)
	return names, locks
}

// Belief is how long a holder could believe to hold a lock, as far as the history says.
type Belief struct {
	Lock        string
	Mode        string
	Token       uint64
	Process     int
	From, Until time.Duration
	Index       int // of the Op that told of the grant
}

// Beliefs gives those of a history, in order of From; none of one that cannot be.
func Beliefs(ops []history.Op) []Belief {
	operations, err := history.Pair(ops)
	if err != nil {
		return nil
	}
	var beliefs []Belief
	for _, h := range gather(ops, operations) {
		beliefs = append(beliefs, Belief{h.lock, h.mode, h.token, h.process, h.known, max(h.until, h.known), h.acquire.Complete.Index})
	}
	return beliefs
}
