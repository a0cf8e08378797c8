package fsm

import (
	"cmp"
	"maps"
	"slices"
)

// model is the state machine once more, as dumb as the design allows: plain lists, everything computed anew in every
// entry, no index, no budget, no work left over. It is written from the rules, not from the code that it judges.
type model struct {
	index, clock, base, begin, elapsed, lastSession uint64

	cluster  ID
	level    uint64
	limits   Limits
	raised   []ID
	sessions []*modelSession   // in the order of their numbers, tombstones among them
	requests []*modelRequest   // all that live, in the order of the log
	delays   map[string]uint64 // locks that are granted to nobody until the clock is above (R9)

	// Of the entry that is being applied.
	wall    uint64
	events  []Event
	notices []Notice
	stuck   map[uint32]*world // what a refusal for a deadlock was decided by; nil when a conversion's own rule did
}

type modelSession struct {
	number       uint64
	id           ID
	named, keyed bool // named: opened by a client; else of one grant
	owner        string
	ttl, asked   uint64
	deadline     uint64
	closed, tomb bool
	memory       uint64
	finished     map[uint64]bool
	lost         []Lost
}

type modelRequest struct {
	seq      Seq
	session  *modelSession
	number   uint64
	granted  bool
	try      bool
	since    uint64
	wall     uint64
	deadline uint64
	depth    int
	task     string
	trace    string
	locks    []modelLock
	priority int64
	maxHold  uint64
	delay    uint64
	of       *modelRequest // of a conversion: the hold
}

type modelLock struct {
	Want
	asked      Want
	token      uint64
	former     uint64
	back       bool // given back
	value      string
	conversion *modelRequest // the latest one of this hold
}

func newModel() *model {
	return &model{level: 1, limits: DefaultLimits, delays: map[string]uint64{}}
}

// clone returns a copy that goes its own way.
func (m *model) clone() *model {
	c := *m
	c.raised, c.delays, c.sessions, c.requests = slices.Clone(m.raised), maps.Clone(m.delays), nil, nil
	sessions, requests := map[*modelSession]*modelSession{}, map[*modelRequest]*modelRequest{nil: nil}
	for _, v := range m.sessions {
		s := *v
		s.finished, s.lost = maps.Clone(v.finished), slices.Clone(v.lost)
		sessions[v] = &s
		c.sessions = append(c.sessions, &s)
	}
	for _, r := range m.requests {
		q := *r
		q.session, q.locks = sessions[r.session], slices.Clone(r.locks)
		requests[r] = &q
		c.requests = append(c.requests, &q)
	}
	for _, r := range c.requests {
		r.of = requests[r.of]
		for i := range r.locks {
			r.locks[i].conversion = requests[r.locks[i].conversion]
		}
	}
	return &c
}

func (m *model) token() uint64 { return m.base + m.index }

// down reports whether a request is a conversion to shared: it takes effect in its entry and stands in no queue.
func (r *modelRequest) down() bool { return r.of != nil && r.locks[0].Mode == Shared }

// holds reports whether a request is a hold; a conversion that was made is only a number.
func (r *modelRequest) holds() bool { return r.granted && r.of == nil }

// before is the order that all requests share (R5).
func (r *modelRequest) before(o *modelRequest) bool {
	rank := func(r *modelRequest) int64 {
		if r.of != nil {
			return -2000
		}
		return -r.priority
	}
	return cmp.Or(cmp.Compare(rank(r), rank(o)), cmp.Compare(r.seq.Index, o.seq.Index), cmp.Compare(r.seq.Pos, o.seq.Pos)) < 0
}

// inOrder returns all requests in that order.
func (m *model) inOrder() []*modelRequest {
	all := slices.Clone(m.requests)
	slices.SortFunc(all, func(a, b *modelRequest) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	return all
}

// apply is R2 and R3: the stamp, the commands, the ends, the conversions to shared, the grants.
func (m *model) apply(index, term uint64, e *Entry) *Result {
	m.index = index
	if b := e.Begin; b != nil {
		if m.cluster == (ID{}) {
			m.cluster = b.Cluster
			if b.Floor >= index+1 {
				m.base = b.Floor - index
			}
		}
		m.begin, m.elapsed, m.limits = index, 0, b.Limits.withDefaults()
		return &Result{Index: index, Term: term, Applied: true, Clock: m.clock}
	}
	if e.Stamp.Begin != m.begin {
		return &Result{Index: index, Term: term, Clock: m.clock}
	}
	if e.Stamp.Elapsed > m.elapsed {
		m.clock += e.Stamp.Elapsed - m.elapsed
		m.elapsed = e.Stamp.Elapsed
	}
	m.wall, m.events, m.notices, m.stuck = e.Wall, nil, nil, map[uint32]*world{}
	out := &Result{Index: index, Term: term, Applied: true, Clock: m.clock, Wall: m.wall, Outcomes: make([]Outcome, len(e.Commands))}
	for i, c := range e.Commands {
		out.Outcomes[i] = m.run(c, Seq{index, uint32(i)})
	}
	m.removals()
	for _, r := range slices.Clone(m.requests) {
		if r.down() && !r.granted {
			m.converted(r)
		}
	}
	m.grants()
	for i, c := range e.Commands {
		if code := out.Outcomes[i].Code; code != OK && code != Queued {
			continue
		}
		switch c := c.(type) {
		case *Acquire:
			m.answer(c, &out.Outcomes[i])
		case *Convert:
			m.answerConvert(c, &out.Outcomes[i])
		}
	}
	out.Events, out.Notices = m.events, m.notices
	return out
}

func (m *model) run(command Command, seq Seq) Outcome {
	switch c := command.(type) {
	case *Open:
		return m.open(c)
	case *Renew:
		out := Outcome{Code: OK, Renewals: make([]Outcome, len(c.Sessions))}
		for i, r := range c.Sessions {
			out.Renewals[i] = m.renew(r)
		}
		return out
	case *Close:
		v := m.alive(c.Session)
		if v == nil {
			return Outcome{Code: SessionGone}
		}
		v.closed = true
		return Outcome{Code: OK, Session: v.number, Count: m.count(v, true)}
	case *Acquire:
		return m.acquire(c, seq)
	case *Release:
		return m.release(c)
	case *Cancel:
		return m.cancel(c)
	case *Convert:
		return m.convert(c, seq)
	case *Value:
		return m.value(c)
	case *Force:
		return m.force(c)
	case *Raise:
		return m.raise(c)
	case *Level:
		if c.Level == m.level+1 {
			m.level++
		}
		return Outcome{Code: OK}
	}
	return Outcome{Code: Skipped}
}

func (m *model) gone(v *modelSession) bool { return v.closed || v.tomb || m.clock > v.deadline }

// alive returns the session of this number unless it is gone.
func (m *model) alive(n uint64) *modelSession {
	for _, v := range m.sessions {
		if v.number == n && !m.gone(v) {
			return v
		}
	}
	return nil
}

func (m *model) byID(id ID) *modelSession {
	for _, v := range m.sessions {
		if v.id == id {
			return v
		}
	}
	return nil
}

func (m *model) count(v *modelSession, granted bool) (n int) {
	for _, r := range m.requests {
		if r.session == v && r.granted == granted && (r.of == nil || !r.granted) {
			n++
		}
	}
	return n
}

func (m *model) tombstones() (n uint64) {
	for _, v := range m.sessions {
		if v.tomb {
			n++
		}
	}
	return n
}

func (m *model) add(v *modelSession) *modelSession {
	m.lastSession++
	v.number, v.finished = m.lastSession, map[uint64]bool{}
	m.sessions = append(m.sessions, v)
	return v
}

func (m *model) full() bool { return uint64(len(m.sessions))-m.tombstones() >= m.limits.Sessions }

func (m *model) open(c *Open) Outcome {
	if v := m.byID(c.Session); v != nil {
		if m.gone(v) || !v.named || v.owner != c.Owner || v.asked != c.TTL {
			return Outcome{Code: SessionGone}
		}
		return Outcome{Code: OK, Session: v.number, TTL: v.ttl, Lease: v.deadline - m.clock, Replayed: true}
	}
	if m.full() {
		return Outcome{Code: OverQuota, Quota: QuotaSessions}
	}
	v := m.add(&modelSession{id: c.Session, named: true, owner: c.Owner, ttl: c.TTL, asked: c.TTL, deadline: m.clock + c.TTL})
	m.tellSession(v, NoticeSessionOpened, "")
	return Outcome{Code: OK, Session: v.number, TTL: v.ttl, Lease: v.ttl}
}

func (m *model) tellSession(v *modelSession, kind NoticeKind, reason string) {
	if v.named {
		m.notices = append(m.notices, Notice{Kind: kind, Session: v.id, Owner: v.owner, Reason: reason})
	}
}

// over reports whether a request is gone for every purpose but standing in the way (R3).
func (m *model) over(r *modelRequest) bool {
	return m.gone(r.session) || m.clock > r.deadline || r.of != nil && m.clock > r.of.deadline
}

// renew is R4. What a session of its own has lost is told until it would have ended anyway.
func (m *model) renew(r Renewal) Outcome {
	v := m.alive(r.Session)
	if v == nil {
		return Outcome{Code: SessionGone, Session: r.Session}
	}
	if r.TTL != 0 {
		v.ttl = r.TTL
	}
	m.done(v, r.Done)
	lease := v.ttl
	if v.deadline != never {
		if v.named || m.count(v, true) > 0 {
			v.deadline = max(v.deadline, m.clock+v.ttl)
		}
		lease = v.deadline - m.clock
	}
	return Outcome{Code: OK, Session: v.number, TTL: v.ttl, Lease: lease, Count: m.count(v, true), Lost: slices.Clone(v.lost)}
}

// done finishes every number below that does not live, and forgets what was lost with it (R8).
func (m *model) done(v *modelSession, done uint64) {
	if !v.named {
		return
	}
	for n := uint64(1); n < done; n++ {
		if m.request(v, n) == nil {
			v.finished[n] = true
		}
	}
	var left []Lost
	for _, l := range v.lost {
		if l.Number >= done {
			left = append(left, l)
		}
	}
	v.lost = left
}

func (m *model) request(v *modelSession, number uint64) *modelRequest {
	for _, r := range m.requests {
		if r.session == v && r.number == number {
			return r
		}
	}
	return nil
}

// raise is R10.
func (m *model) raise(c *Raise) Outcome {
	if slices.Contains(m.raised, c.ID) {
		return Outcome{Code: OK, Base: m.token() - 1, Replayed: true}
	}
	m.raised = append(m.raised, c.ID)
	m.base++
	if m.token() <= c.Above {
		m.base += c.Above + 1 - m.token()
	}
	m.sessions, m.requests, m.delays = nil, nil, map[string]uint64{}
	m.events = append(m.events, Event{Kind: EventReset})
	m.notices = append(m.notices, Notice{Kind: NoticeRaised, Reason: c.Reason})
	return Outcome{Code: OK, Base: m.token() - 1}
}
