package fsm

import (
	"fmt"

	"github.com/google/btree"
)

// snapshotMagic begins every snapshot, so that a file of another kind is refused with a clear word.
const snapshotMagic = "pawl snapshot\n"

// maxObjects bounds what a decoder makes room for; real bounds are the quotas.
const maxObjects = 1 << 26

// Snapshot returns the state as it is now, to be written while this one goes on changing: the trees are cloned in O(1),
// and objects are copied when they are next changed. The copy must not be applied to.
func (s *State) Snapshot() *State {
	c := *s
	s.epoch++
	c.sessions, c.locks, c.requests = s.sessions.Clone(), s.locks.Clone(), s.requests.Clone()
	c.ids, c.names, c.owned = s.ids.Clone(), s.names.Clone(), s.owned.Clone()
	c.queue, c.barriers, c.throughs, c.holds = s.queue.Clone(), s.barriers.Clone(), s.throughs.Clone(), s.holds.Clone()
	c.due, c.ttls = s.due.Clone(), s.ttls.Clone()
	c.taskWaits, c.taskHolds, c.tangled = s.taskWaits.Clone(), s.taskHolds.Clone(), s.tangled.Clone()
	c.look, c.walk, c.rem = s.look.Clone(), s.walk.Clone(), s.rem.Clone()
	c.events, c.notices, c.tries, c.unjudged, c.downs, c.board = nil, nil, nil, nil, nil, nil
	return &c
}

// fork returns a copy that may be applied to, as the original may: its epoch is that of no object that they share, so each
// copies what it changes first.
func (s *State) fork() *State {
	c := s.Snapshot()
	c.epoch = s.epoch + 1
	return c
}

// Encode returns the bytes of a snapshot (R12): magic, version, everything in sorted order, checksum. Equal states have
// equal bytes.
func (s *State) Encode() []byte {
	c := coder{buf: []byte(snapshotMagic)}
	version := uint64(Version)
	c.number(&version)
	s.fields(&c)
	if err := c.finish(); err != nil {
		panic(fmt.Sprintf("encoding a snapshot: %v", err)) // nothing above the caps gets into the state
	}
	return seal(c.buf)
}

// Decode is the reverse of Encode. It never panics, whatever the bytes are.
func Decode(b []byte) (*State, error) {
	if len(b) < len(snapshotMagic) || string(b[:len(snapshotMagic)]) != snapshotMagic {
		return nil, fmt.Errorf("decoding snapshot: %w: this is no pawl snapshot", errMalformed)
	}
	body, err := unseal(b)
	if err != nil {
		return nil, fmt.Errorf("decoding snapshot: %w", err)
	}
	c := coder{reading: true, buf: body[len(snapshotMagic):]}
	if err := c.version(); err != nil {
		return nil, fmt.Errorf("decoding snapshot: %w", err)
	}
	s := NewState()
	s.fields(&c)
	if err := c.finish(); err != nil {
		return nil, fmt.Errorf("decoding snapshot: %w", err)
	}
	if err := s.rebuild(); err != nil {
		return nil, fmt.Errorf("decoding snapshot: %w", err)
	}
	return s, nil
}

func (s *State) fields(c *coder) {
	c.number(&s.level)
	if c.err == nil && s.level > FeatureLevel {
		c.err = fmt.Errorf("feature level %d, this version supports %d: %w", s.level, FeatureLevel, ErrNewer)
	}
	c.id(&s.cluster)
	for _, v := range []*uint64{
		&s.index, &s.term, &s.base, &s.begin, &s.elapsed, &s.clock, &s.lastSession, &s.lastLock,
	} {
		c.number(v)
	}
	c.text(&s.node, 256, "node")
	c.text(&s.url, 1024, "url")
	s.limits.fields(c)
	list(c, &s.raised, maxRaised, "raises", (*coder).id)
	treeOf(c, s.sessions, "sessions", func(c *coder, v **session) {
		if c.reading {
			*v = &session{}
		}
		(*v).fields(c)
	})
	treeOf(c, s.locks, "locks", func(c *coder, v **lock) {
		if c.reading {
			*v = &lock{}
		}
		(*v).fields(c)
	})
	treeOf(c, s.requests, "requests", func(c *coder, v *filed) {
		if c.reading {
			v.r = &request{}
		}
		v.r.fields(c)
		v.seq = v.r.seq
	})
	treeOf(c, s.look, "look", func(c *coder, v *order) { v.fields(c) })
	treeOf(c, s.walk, "walk", (*coder).number)
	treeOf(c, s.rem, "removals", (*coder).number)
}

// treeOf codes the items of a tree in their order.
func treeOf[T any](c *coder, t *btree.BTreeG[T], what string, each func(*coder, *T)) {
	n := c.length(t.Len(), maxObjects, what)
	if !c.reading {
		t.Ascend(func(v T) bool {
			each(c, &v)
			return c.err == nil
		})
		return
	}
	for range n {
		var v T
		each(c, &v)
		t.AscendGreaterOrEqual(v, func(T) bool {
			c.fail("%s are not in order", what)
			return false
		})
		if c.err != nil {
			return
		}
		t.ReplaceOrInsert(v)
	}
}

func (q *Seq) fields(c *coder) {
	c.number(&q.Index)
	boundedAs(c, &q.Pos, MaxCommands, "position")
}

func (o *order) fields(c *coder) {
	c.bounded(&o.rank, 1+2*MaxPriority, "rank")
	o.seq.fields(c)
}

func (l *Lost) fields(c *coder) {
	c.number(&l.Number)
	c.text(&l.Name, MaxName, "name")
	c.number(&l.Token)
	c.text(&l.Reason, MaxReason, "reason")
	c.text(&l.By, MaxActor, "by")
}

func (v *session) fields(c *coder) {
	c.number(&v.number)
	c.id(&v.id)
	boundedAs(c, &v.nature, uint64(natureKeyed), "nature")
	c.text(&v.owner, MaxOwner, "owner")
	c.number(&v.ttl)
	c.number(&v.asked)
	c.number(&v.deadline)
	c.flag(&v.closed)
	c.flag(&v.tomb)
	c.number(&v.memory)
	list(c, &v.finished, maxObjects, "finished", func(c *coder, i *interval) {
		c.number(&i.low)
		c.number(&i.high)
	})
	c.labels(&v.labels)
	list(c, &v.lost, maxLost, "lost", func(c *coder, l *Lost) { l.fields(c) })
}

func (l *lock) fields(c *coder) {
	c.number(&l.number)
	c.text(&l.name, MaxName, "name")
	c.number(&l.period)
	c.number(&l.delay)
}

func (r *request) fields(c *coder) {
	r.seq.fields(c)
	c.number(&r.session)
	c.number(&r.number)
	c.flag(&r.granted)
	c.number(&r.since)
	c.number(&r.wall)
	c.number(&r.deadline)
	depth := uint64(r.depth + 1)
	c.bounded(&depth, MaxLocks+1, "depth")
	if c.reading {
		r.depth = int(depth) - 1
	}
	c.text(&r.task, MaxTask, "task")
	c.text(&r.trace, MaxTrace, "trace")
	list(c, &r.locks, MaxLocks, "locks", func(c *coder, p *part) {
		p.Want.fields(c)
		c.mode(&p.asked.Mode)
		boundedAs(c, &p.asked.Limit, MaxLimit, "limit")
		if c.reading {
			p.asked.Name = p.Name
		}
		c.number(&p.lock)
		c.number(&p.token)
		c.number(&p.former)
		p.conversion.fields(c)
		c.text(&p.value, MaxValue, "value")
	})
	c.priority(&r.priority)
	c.bounded(&r.maxHold, MaxTTL, "max hold")
	c.bounded(&r.delay, MaxTTL, "lock-delay")
	r.of.fields(c)
}
