package fsm

import (
	"fmt"
	"slices"
)

// workBudget is how many holds and waits one entry ends or grants at most, and lookBudget how many requests it judges;
// both bound the time that Apply takes (R3).
const (
	workBudget = 1000
	lookBudget = 4000
)

// Apply makes entry e, which the log has at this index and term, true. An error means that this node must stop: the
// entry is of a newer version or another cluster, and guessing would make two nodes disagree (R2).
func (s *State) Apply(index, term uint64, e *Entry) (*Result, error) {
	s.index, s.term = index, term
	if e.Begin != nil {
		if err := s.beginTerm(e.Begin); err != nil {
			return nil, err
		}
		return &Result{Index: index, Term: term, Applied: true, Clock: s.clock}, nil
	}
	if e.Stamp.Begin != s.begin {
		// A stamp under another beginning: a deposed leader's, or one from before the clock was begun anew. Nothing at
		// all may come of it, else a grant would be counted on a clock that stands still (R3).
		return &Result{Index: index, Term: term, Clock: s.clock}, nil
	}
	if e.Stamp.Elapsed > s.elapsed {
		s.clock += e.Stamp.Elapsed - s.elapsed
		s.elapsed = e.Stamp.Elapsed
	}
	s.wall, s.left, s.events, s.tries, s.downs, s.notices = e.Wall, s.works, nil, s.tries[:0], s.downs[:0], nil
	s.unjudged = s.unjudged[:0]
	s.now, s.steps = s.base+index, entrySteps

	result := &Result{Index: index, Term: term, Applied: true, Clock: s.clock, Outcomes: make([]Outcome, len(e.Commands))}
	for i, command := range e.Commands {
		outcome, err := s.run(command, uint32(i))
		if err != nil {
			return nil, err
		}
		result.Outcomes[i] = outcome
	}
	s.removals()
	s.convertDowns()
	s.pass()
	s.judgeTries()
	if s.look.Len() == 0 { // here, because a try that nobody judged may have been the last to look at
		s.walk.Clear(false)
	}
	for i, command := range e.Commands {
		switch c := command.(type) {
		case *Acquire:
			s.settle(c, &result.Outcomes[i])
		case *Convert:
			s.settleConvert(c, &result.Outcomes[i])
		}
	}
	result.Events, result.Notices, result.Wall = s.events, s.notices, s.wall
	s.events, s.notices = nil, nil
	return result, nil
}

func (s *State) beginTerm(b *Begin) error {
	if s.cluster == (ID{}) {
		s.cluster = b.Cluster
		s.base = after(b.Floor, s.index+1)
	} else if s.cluster != b.Cluster {
		return fmt.Errorf("begin-term entry %d is of cluster %x, this state of %x", s.index, b.Cluster, s.cluster)
	}
	s.begin, s.elapsed = s.index, 0
	holders := s.limits.Holders
	s.node, s.url, s.limits = b.Node, b.URL, b.Limits.withDefaults()
	if s.limits.Holders != holders {
		s.lookEverywhere()
	}
	return nil
}

// after returns the smallest base that puts the token of index above floor.
func after(floor, index uint64) uint64 {
	if floor < index {
		return 0
	}
	return floor + 1 - index
}

// run carries out one command; pos is its place in the entry.
func (s *State) run(command Command, pos uint32) (Outcome, error) {
	switch c := command.(type) {
	case nil:
		return Outcome{Code: Skipped}, nil
	case *Open:
		return s.open(c), nil
	case *Renew:
		return s.renew(c), nil
	case *Close:
		return s.close(c), nil
	case *Acquire:
		return s.acquire(c, Seq{s.index, pos}), nil
	case *Release:
		return s.release(c), nil
	case *Cancel:
		return s.cancel(c), nil
	case *Raise:
		return s.raise(c), nil
	case *Convert:
		return s.convert(c, Seq{s.index, pos}), nil
	case *Value:
		return s.setValue(c), nil
	case *Force:
		return s.force(c), nil
	case *Level:
		return s.raiseLevel(c)
	}
	return Outcome{}, fmt.Errorf("command %T has no meaning in this version", command)
}

func (s *State) open(c *Open) Outcome {
	if n := s.sessionByID(c.Session); n != 0 {
		v := s.editSession(n)
		if s.gone(v) || v.nature != natureNamed || v.owner != c.Owner || v.asked != c.TTL {
			return Outcome{Code: SessionGone}
		}
		return Outcome{Code: OK, Session: n, TTL: v.ttl, Lease: v.deadline - s.clock, Replayed: true}
	}
	if s.sessionQuota() {
		return Outcome{Code: OverQuota, Quota: QuotaSessions}
	}
	v := s.makeSession(session{
		id: c.Session, owner: c.Owner, ttl: c.TTL, asked: c.TTL, deadline: s.clock + c.TTL, labels: c.Labels,
	})
	s.noteSession(v, NoticeSessionOpened, "")
	return Outcome{Code: OK, Session: v.number, TTL: v.ttl, Lease: c.TTL}
}

func (s *State) sessionQuota() bool {
	return uint64(s.sessions.Len())-s.tombstones >= s.limits.Sessions
}

func (s *State) renew(c *Renew) Outcome {
	out := Outcome{Code: OK, Renewals: make([]Outcome, len(c.Sessions))}
	for i, r := range c.Sessions {
		out.Renewals[i] = s.renewOne(r)
	}
	return out
}

func (s *State) renewOne(r Renewal) Outcome {
	v := s.editSession(r.Session)
	if s.gone(v) {
		return Outcome{Code: SessionGone, Session: r.Session}
	}
	if r.TTL != 0 && r.TTL != v.ttl {
		s.ttls.Delete(named[uint64]{v.ttl, v.number})
		v.ttl = r.TTL
	}
	s.finishBelow(v, r.Done)
	if at := v.deadline; at != never { // else it is a session of its own that still waits, and kept by its wait
		if v.nature == natureNamed || v.holds > 0 { // of a session of its own that lost its hold only the news is kept
			// The larger of the two, so that a late or reordered renewal does no harm (R4).
			at = max(at, s.clock+v.ttl)
		}
		s.setDeadline(v, at)
	}
	return Outcome{Code: OK, Session: v.number, TTL: v.ttl, Lease: s.lease(v), Count: int(v.holds), Lost: slices.Clone(v.lost)}
}

// lease is how long a session lasts from this entry on.
func (s *State) lease(v *session) uint64 {
	if v.deadline == never {
		return v.ttl
	}
	return v.deadline - s.clock
}

func (s *State) close(c *Close) Outcome {
	v := s.editSession(c.Session)
	if s.gone(v) {
		return Outcome{Code: SessionGone}
	}
	out := Outcome{Code: OK, Session: v.number, Count: int(v.holds)}
	s.doom(v)
	return out
}

// doom marks a session as over. It is taken apart after the commands of the entry, or by later entries when it owns much.
func (s *State) doom(v *session) {
	v.closed = true
	s.setDeadline(v, never)
	s.ttls.Delete(named[uint64]{v.ttl, v.number})
	s.rem.ReplaceOrInsert(v.number)
}

func (s *State) raise(c *Raise) Outcome {
	if slices.Contains(s.raised, c.ID) {
		return Outcome{Code: OK, Base: s.now - 1, Replayed: true}
	}
	s.raised = append(slices.Clip(s.raised), c.ID)
	if len(s.raised) > maxRaised {
		s.raised = slices.Clone(s.raised[1:])
	}
	// Above the floor, and above every token possible so far, of this entry's too (R10).
	s.base = max(s.base+1, after(c.Above, s.index))
	s.now = s.base + s.index
	s.empty()
	s.tries = s.tries[:0]
	s.events = append(s.events, Event{Kind: EventReset})
	s.notices = append(s.notices, Notice{Kind: NoticeRaised, Reason: c.Reason})
	return Outcome{Code: OK, Base: s.now - 1}
}

func (s *State) raiseLevel(c *Level) (Outcome, error) {
	if c.Level > FeatureLevel {
		return Outcome{}, fmt.Errorf("feature level %d, this version supports %d: %w", c.Level, FeatureLevel, ErrNewer)
	}
	if c.Level == s.level+1 {
		s.level = c.Level
	}
	return Outcome{Code: OK}, nil
}
