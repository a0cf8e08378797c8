package fsm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// model is the state machine once more, as dumb as the design allows: plain lists, everything computed anew in every
// entry, no index, no budget, no work left over. It is written from the rules, not from the code that it judges.
type model struct {
	index, clock, base, begin, elapsed, lastSession uint64

	cluster  ID
	level    uint64
	limits   Limits
	raised   []ID
	sessions []*modelSession // in the order of their numbers, tombstones among them
	requests []*modelRequest // all that live, in the order of the log

	// Of the entry that is being applied.
	wall   uint64
	events []Event
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
}

type modelLock struct {
	Want
	token uint64
	back  bool // given back
}

func newModel() *model { return &model{level: 1, limits: DefaultLimits} }

func (m *model) token() uint64 { return m.base + m.index }

// apply is R2 and R3: the stamp, the commands, the ends, the grants.
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
	m.wall, m.events = e.Wall, nil
	out := &Result{Index: index, Term: term, Applied: true, Clock: m.clock, Outcomes: make([]Outcome, len(e.Commands))}
	for i, c := range e.Commands {
		out.Outcomes[i] = m.run(c, Seq{index, uint32(i)})
	}
	m.removals()
	m.grants()
	for i, c := range e.Commands {
		if a, ok := c.(*Acquire); ok && (out.Outcomes[i].Code == OK || out.Outcomes[i].Code == Queued) {
			m.answer(a, &out.Outcomes[i])
		}
	}
	out.Events = m.events
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
		if r.session == v && r.granted == granted {
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
	return Outcome{Code: OK, Session: v.number, TTL: v.ttl, Lease: v.ttl}
}

// renew is R4.
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
		v.deadline = max(v.deadline, m.clock+v.ttl)
		lease = v.deadline - m.clock
	}
	return Outcome{Code: OK, Session: v.number, TTL: v.ttl, Lease: lease, Count: m.count(v, true)}
}

// done finishes every number below that does not live (R8).
func (m *model) done(v *modelSession, done uint64) {
	for n := uint64(1); n < done && v.named; n++ {
		if m.request(v, n) == nil {
			v.finished[n] = true
		}
	}
}

func (m *model) request(v *modelSession, number uint64) *modelRequest {
	for _, r := range m.requests {
		if r.session == v && r.number == number {
			return r
		}
	}
	return nil
}

// acquire is R8's exactly once, before R5 decides.
func (m *model) acquire(a *Acquire, seq Seq) Outcome {
	if a.Session == 0 {
		return m.acquireOwn(a, seq)
	}
	v := m.alive(a.Session)
	if v == nil {
		return Outcome{Code: SessionGone}
	}
	if !v.named {
		return Outcome{Code: OwnSession, Session: v.number}
	}
	m.done(v, a.Done)
	if r := m.request(v, a.Number); r != nil {
		return m.again(r, a)
	}
	if v.finished[a.Number] {
		return Outcome{Code: Finished, Session: v.number}
	}
	var out Outcome
	if uint64(m.count(v, true)+m.count(v, false)) >= m.limits.Requests {
		out = Outcome{Code: OverQuota, Quota: QuotaRequests}
	} else {
		out = m.queue(v, a, seq)
	}
	if out.Code != OK {
		v.finished[a.Number] = true
	}
	return out
}

func (m *model) acquireOwn(a *Acquire, seq Seq) Outcome {
	if v := m.byID(a.ID); v != nil {
		r := m.request(v, 0)
		switch {
		case m.gone(v) || r == nil:
			return Outcome{Code: Finished, Session: v.number}
		case v.owner != a.Owner || v.asked != a.TTL:
			return Outcome{Code: Mismatch}
		}
		v.memory = max(v.memory, a.Wait+60_000)
		return m.again(r, a)
	}
	if m.full() {
		return Outcome{Code: OverQuota, Quota: QuotaSessions}
	}
	if a.Keyed && m.tombstones() >= m.limits.Tombstones {
		return Outcome{Code: OverQuota, Quota: QuotaTombstones}
	}
	v := m.add(&modelSession{
		id: a.ID, keyed: a.Keyed, owner: a.Owner, ttl: a.TTL, asked: a.TTL, deadline: never, memory: a.Wait + 60_000,
	})
	out := m.queue(v, a, seq)
	if out.Code != OK {
		m.bury(v)
	}
	return out
}

// again answers a repeated acquire.
func (m *model) again(r *modelRequest, a *Acquire) Outcome {
	same := r.task == a.Task && len(r.locks) == len(a.Locks)
	for i := range r.locks {
		same = same && r.locks[i].Want == a.Locks[i]
	}
	switch {
	case !same:
		return Outcome{Code: Mismatch, Session: r.session.number}
	case !r.granted && m.clock > r.deadline:
		return Outcome{Code: Finished, Session: r.session.number}
	case !r.granted && !r.try:
		r.deadline = max(r.deadline, m.clock+a.Wait+10_000)
	}
	return Outcome{Code: Queued, Session: r.session.number, Request: r.seq, Replayed: true}
}

// at calls f with every request at a lock.
func (m *model) at(name string, f func(*modelRequest, *modelLock)) {
	for _, r := range m.requests {
		for i := range r.locks {
			if l := &r.locks[i]; l.Name == name && !l.back {
				f(r, l)
			}
		}
	}
}

func (m *model) queue(v *modelSession, a *Acquire, seq Seq) Outcome {
	for _, w := range a.Locks {
		limit, waiters, multiple := uint32(0), uint64(0), uint64(0)
		m.at(w.Name, func(r *modelRequest, l *modelLock) {
			limit = max(limit, l.Limit)
			if !r.granted {
				waiters++
				if len(r.locks) > 1 {
					multiple++
				}
			}
		})
		switch {
		case w.Limit != 0 && limit != 0 && limit != w.Limit:
			return Outcome{Code: ModeConflict, Limit: limit, Name: w.Name}
		case waiters >= m.limits.Waiters:
			return Outcome{Code: OverQuota, Quota: QuotaWaiters, Name: w.Name}
		case len(a.Locks) > 1 && multiple >= m.limits.Multiple:
			return Outcome{Code: OverQuota, Quota: QuotaMultiple, Name: w.Name}
		}
	}
	r := &modelRequest{
		seq: seq, session: v, number: a.Number, try: a.Wait == 0, since: m.clock, wall: m.wall, deadline: never,
		depth: -1, task: a.Task, trace: a.Trace,
	}
	if !r.try {
		r.deadline = m.clock + a.Wait + 10_000
	}
	for _, w := range a.Locks {
		r.locks = append(r.locks, modelLock{Want: w})
	}
	m.requests = append(m.requests, r)
	return Outcome{Code: OK, Session: v.number, Request: seq}
}

// release is R8 and R9: it names session, request and token.
func (m *model) release(c *Release) Outcome {
	v := m.alive(c.Session)
	if v == nil {
		return Outcome{Code: SessionGone}
	}
	r := m.request(v, c.Number)
	if r == nil || !r.granted || c.Number == 0 && c.Token == 0 {
		return Outcome{Code: NotHeld, Session: v.number}
	}
	var named []*modelLock
	matches := false
	for i := range r.locks {
		if l := &r.locks[i]; !l.back && (c.Name == "" || c.Name == l.Name) {
			named = append(named, l)
			matches = matches || c.Token == 0 || c.Token == l.token
		}
	}
	if !matches {
		return Outcome{Code: NotHeld, Session: v.number}
	}
	out := Outcome{Code: OK, Session: v.number}
	for _, l := range named {
		l.back = true
		out.Names = append(out.Names, l.Name)
	}
	if !slices.ContainsFunc(r.locks, func(l modelLock) bool { return !l.back }) {
		m.end(r, SessionGone)
	}
	return out
}

func (m *model) cancel(c *Cancel) Outcome {
	var v *modelSession
	if c.Keyed {
		v = m.byID(c.Key)
		switch {
		case v == nil && m.tombstones() >= m.limits.Tombstones:
			return Outcome{Code: OverQuota, Quota: QuotaTombstones}
		case v == nil:
			m.add(&modelSession{id: c.Key, keyed: true, tomb: true, deadline: m.clock + 360_000})
			return Outcome{Code: Cancelled}
		case m.gone(v):
			return Outcome{Code: Finished}
		}
	} else if v = m.alive(c.Session); v == nil {
		return Outcome{Code: SessionGone}
	}
	r := m.request(v, c.Number)
	switch {
	case v.named && c.Number == 0, r == nil && !v.named:
		return Outcome{Code: NotHeld}
	case r == nil && v.finished[c.Number]:
		return Outcome{Code: Finished, Session: v.number}
	case r == nil:
		v.finished[c.Number] = true
		return Outcome{Code: Cancelled, Session: v.number}
	case !r.granted:
		out := Outcome{Code: Cancelled, Session: v.number}
		var wants []Want
		for _, l := range r.locks {
			wants = append(wants, l.Want)
		}
		out.Holders, out.Waiting = m.holders(wants)
		m.end(r, Cancelled)
		return out
	case c.Waiting:
		return Outcome{Code: OK, Session: v.number, Request: r.seq, Grant: m.grant(r), Replayed: true}
	}
	m.end(r, SessionGone)
	return Outcome{Code: Released, Session: v.number}
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
	m.sessions, m.requests = nil, nil
	m.events = append(m.events, Event{Kind: EventReset})
	return Outcome{Code: OK, Base: m.token() - 1}
}

// end takes a request away; told is what a caller who waits for it hears, OK for nothing.
func (m *model) end(r *modelRequest, told Code) {
	m.requests = slices.DeleteFunc(m.requests, func(o *modelRequest) bool { return o == r })
	if !r.granted && told != OK {
		m.events = append(m.events, Event{Kind: EventEnded, Request: r.seq, Code: told})
	}
	if r.session.named {
		r.session.finished[r.number] = true
	} else {
		m.bury(r.session)
	}
}

// bury ends a session that owns nothing; one with a key is remembered.
func (m *model) bury(v *modelSession) {
	if v.keyed && !v.tomb {
		v.tomb, v.closed, v.owner, v.deadline = true, false, "", m.clock+v.memory
		return
	}
	m.sessions = slices.DeleteFunc(m.sessions, func(o *modelSession) bool { return o == v })
}

// removals ends what is over: closed sessions, then whatever is past its deadline, in the order of the deadlines.
func (m *model) removals() {
	for _, v := range slices.Clone(m.sessions) {
		if v.closed {
			m.takeApart(v)
		}
	}
	for {
		// The earliest; at one deadline sessions are before waits, and waits before tombstones.
		var dead *modelSession
		for _, v := range m.sessions {
			if m.clock > v.deadline && (dead == nil || v.deadline < dead.deadline || v.deadline == dead.deadline && dead.tomb && !v.tomb) {
				dead = v
			}
		}
		var late *modelRequest
		for _, r := range m.requests {
			if m.clock > r.deadline && (late == nil || cmp.Or(cmp.Compare(r.deadline, late.deadline), cmp.Compare(r.session.number, late.session.number)) < 0) {
				late = r
			}
		}
		switch {
		case dead == nil && late == nil:
			return
		case late == nil || dead != nil && (dead.deadline < late.deadline || dead.deadline == late.deadline && !dead.tomb):
			m.takeApart(dead)
		default:
			m.end(late, Held)
		}
	}
}

func (m *model) takeApart(v *modelSession) {
	var own []*modelRequest
	for _, r := range m.requests {
		if r.session == v {
			own = append(own, r)
		}
	}
	slices.SortFunc(own, func(a, b *modelRequest) int { return cmp.Compare(a.number, b.number) })
	for _, r := range own {
		m.end(r, SessionGone)
	}
	if v.named || len(own) == 0 { // else it ended with its one request
		m.bury(v)
	}
}

// grants is R5: one pass over all waiting requests in the order of the log, each judged by brute force.
func (m *model) grants() {
	for _, r := range slices.Clone(m.requests) {
		if r.granted {
			continue
		}
		r.depth = 0
		for r.depth < len(r.locks) && m.can(r, r.locks[r.depth].Want) {
			r.depth++
		}
		switch {
		case r.depth == len(r.locks) && m.token() < MaxToken:
			r.granted, r.try, r.since, r.wall, r.deadline = true, false, m.clock, m.wall, never
			for i := range r.locks {
				r.locks[i].token = m.tokenFor(r, r.locks[i].Want)
			}
			if !r.session.named {
				r.session.deadline = m.clock + r.session.ttl
			}
			m.events = append(m.events, Event{Kind: EventGranted, Request: r.seq, Grant: m.grant(r)})
		case r.try:
			m.end(r, OK)
		}
	}
}

// can is R5 for one lock: compatible with every hold and with every earlier request that stands in its way there.
func (m *model) can(r *modelRequest, w Want) bool {
	taken, limit, free := uint64(0), w.Limit, true
	m.at(w.Name, func(o *modelRequest, l *modelLock) {
		if !o.granted {
			if !o.seq.Less(r.seq) {
				return
			}
			p := slices.IndexFunc(o.locks, func(v modelLock) bool { return v.Name == w.Name })
			if o.depth < p {
				return
			}
			if o.depth == p {
				free = false
				return
			}
		}
		if l.Mode == Exclusive || w.Mode == Exclusive {
			free = false
		}
		taken++
		if l.Limit != 0 && (limit == 0 || l.Limit < limit) {
			limit = l.Limit
		}
	})
	return free && (limit == 0 || taken < uint64(limit)) && (w.Mode == Exclusive || taken < m.limits.Holders)
}

// tokenFor is R6.
func (m *model) tokenFor(r *modelRequest, w Want) uint64 {
	token := m.token()
	if w.Mode == Shared {
		m.at(w.Name, func(o *modelRequest, l *modelLock) {
			if o.granted && o != r {
				token = l.token
			}
		})
	}
	return token
}

func (m *model) grant(r *modelRequest) *Grant {
	v := r.session
	g := &Grant{Session: v.number, ID: v.id, Owner: v.owner, Number: r.number, TTL: v.ttl, Deadline: v.deadline}
	for _, l := range r.locks {
		if !l.back {
			g.Locks = append(g.Locks, Granted{l.Want, l.token})
		}
	}
	return g
}

// answer is what an acquire hears once the grants of its entry are made.
func (m *model) answer(a *Acquire, out *Outcome) {
	i := slices.IndexFunc(m.requests, func(r *modelRequest) bool { return r.seq == out.Request })
	switch {
	case i >= 0 && m.requests[i].granted:
		out.Code, out.Grant = OK, m.grant(m.requests[i])
	case i >= 0:
		out.Code = Queued
	case a.Session != 0 && m.alive(a.Session) == nil:
		*out = Outcome{Code: SessionGone}
	case a.Wait > 0 || out.Replayed:
		*out = Outcome{Code: Finished}
	default:
		*out = Outcome{Code: Held, Session: out.Session}
		out.Holders, out.Waiting = m.holders(a.Locks)
	}
}

func (m *model) holders(locks []Want) (holders []Holder, waiting int) {
	for _, w := range locks {
		m.at(w.Name, func(r *modelRequest, l *modelLock) {
			if !r.granted {
				waiting++
				return
			}
			if len(holders) == MaxHolders {
				return
			}
			v := r.session
			remaining := uint64(0)
			if !m.gone(v) {
				remaining = min(v.deadline-m.clock, v.ttl)
			}
			holders = append(holders, Holder{
				Name: w.Name, Session: v.id, Owner: v.owner, Task: r.task, Trace: r.trace, Mode: l.Mode, Limit: l.Limit,
				Token: l.token, Held: m.clock - r.since, Remaining: remaining,
			})
		})
	}
	return holders, waiting
}

// describe writes what matters of the model in one order; describeState writes the same of a state.
func (m *model) describe() string {
	var lines []string
	for _, v := range m.sessions {
		line := fmt.Sprintf("session %d %q ttl %d deadline %d tomb %v finished", v.number, v.id.label(), v.ttl, v.deadline, v.tomb)
		if !v.tomb {
			numbers := make([]uint64, 0, len(v.finished))
			for n := range v.finished {
				numbers = append(numbers, n)
			}
			slices.Sort(numbers)
			line += fmt.Sprint(numbers)
		}
		lines = append(lines, line)
	}
	for _, r := range m.requests {
		line := fmt.Sprintf("request %v of %d/%d granted %v since %d deadline %d", r.seq, r.session.number, r.number, r.granted, r.since, r.deadline)
		if !r.granted {
			line += fmt.Sprintf(" depth %d", r.depth)
		}
		for _, l := range r.locks {
			line += fmt.Sprintf(" %v=%d back %v", l.Want, l.token, l.back)
		}
		lines = append(lines, line)
	}
	return fmt.Sprintf("clock %d base %d begin %d level %d\n%s", m.clock, m.base, m.begin, m.level, strings.Join(lines, "\n"))
}

func describeState(s *State) string {
	var lines []string
	for _, v := range items(s.sessions) {
		line := fmt.Sprintf("session %d %q ttl %d deadline %d tomb %v finished", v.number, v.id.label(), v.ttl, v.deadline, v.tomb)
		if !v.tomb {
			numbers := []uint64{}
			for _, f := range v.finished {
				for n := f.low; n <= f.high; n++ {
					numbers = append(numbers, n)
				}
			}
			line += fmt.Sprint(numbers)
		}
		lines = append(lines, line)
	}
	for _, r := range items(s.requests) {
		line := fmt.Sprintf("request %v of %d/%d granted %v since %d deadline %d", r.seq, r.session, r.number, r.granted, r.since, r.deadline)
		if !r.granted {
			line += fmt.Sprintf(" depth %d", r.depth)
		}
		for _, p := range r.locks {
			line += fmt.Sprintf(" %v=%d back %v", p.Want, p.token, p.lock == 0)
		}
		lines = append(lines, line)
	}
	return fmt.Sprintf("clock %d base %d begin %d level %d\n%s", s.clock, s.base, s.begin, s.level, strings.Join(lines, "\n"))
}
