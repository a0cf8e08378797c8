package fsm

import (
	"fmt"
	"math/rand/v2"
	"slices"
)

// generator draws entries for a state: few sessions and few locks, so that everything is in everybody's way; every
// earlier command may come again at any time.
type generator struct {
	*rand.Rand
	made    int // commands
	labels  int
	history []Command
	numbers map[uint64]uint64 // the last request number of a session
}

var lockNames = []string{"a", "b", "c", "d", "e"}

func newGenerator(seed uint64) *generator {
	return &generator{Rand: rand.New(rand.NewPCG(seed, 1)), numbers: map[uint64]uint64{}}
}

func pick[T any](g *generator, from ...T) T { return from[g.IntN(len(from))] }

// chance is true n times in a hundred.
func (g *generator) chance(n int) bool { return g.IntN(100) < n }

func (g *generator) step(s *State) step {
	if s.begin == 0 || g.chance(2) {
		b := &Begin{Cluster: label("cluster"), Floor: pick[uint64](g, 0, 0, 40, 1<<30), Node: "n1"}
		if g.chance(40) {
			b.Limits = Limits{
				Sessions: pick[uint64](g, 6, 12), Tombstones: pick[uint64](g, 3, 50), Requests: pick[uint64](g, 3, 6),
				Waiters: pick[uint64](g, 3, 6, 12), Multiple: pick[uint64](g, 1, 3), Holders: pick[uint64](g, 2, 4),
			}
		}
		return step{begin: b}
	}
	st := step{elapsed: g.elapsed(s), stale: g.chance(3)}
	n := pick(g, 1, 1, 1, 1, 2, 2, 3, 4, 1+g.IntN(12))
	if g.chance(4) {
		n = 0
	}
	for range n {
		c := g.command(s)
		if len(g.history) > 0 && g.chance(15) {
			recent := min(len(g.history), 30)
			c = g.history[len(g.history)-1-g.IntN(pick(g, recent, recent, len(g.history)))]
		} else {
			g.history = append(g.history, c)
		}
		st.commands = append(st.commands, c)
	}
	g.made += n
	return st
}

// elapsed moves the clock: mostly little, often exactly to the next deadline or a millisecond beyond.
func (g *generator) elapsed(s *State) uint64 {
	d, found := s.due.Min()
	switch n := g.IntN(100); {
	case found && d.at >= s.clock && n < 8:
		return d.at - s.clock
	case found && d.at >= s.clock && n < 14:
		return d.at + 1 - s.clock
	case n < 20:
		return g.Uint64N(400)
	case n < 21:
		return g.Uint64N(pick[uint64](g, 1000, 1000, 100_000))
	case n < 50:
		return g.Uint64N(4)
	}
	return 0
}

// session draws one, mostly one that can take requests.
func (g *generator) session(s *State) uint64 {
	all := items(s.sessions)
	if !g.chance(20) {
		if alive := slices.DeleteFunc(slices.Clone(all), func(v *session) bool { return v.nature != natureNamed || s.gone(v) }); len(alive) > 0 {
			return pick(g, alive...).number
		}
	}
	if len(all) == 0 || g.chance(25) {
		return 1 + g.Uint64N(s.lastSession+2)
	}
	return pick(g, all...).number
}

// request draws one that lives, nil when none does.
func (g *generator) request(s *State) *request {
	if all := allRequests(s); len(all) > 0 {
		return pick(g, all...)
	}
	return nil
}

func (g *generator) wants() (wants []Want) {
	n := pick(g, 1, 1, 1, 1, 2, 3)
	for i, name := range lockNames {
		if n > 0 && g.IntN(len(lockNames)-i) < n {
			n--
			w := Want{Name: name, Mode: Exclusive}
			if g.chance(55) {
				w.Mode = Shared
				w.Limit = pick(g, 0, 0, uint32(2+i/3), uint32(2+i/3))
				if g.chance(3) {
					w.Limit = 4
				}
			}
			wants = append(wants, w)
		}
	}
	return wants
}

func (g *generator) ttl() uint64  { return pick[uint64](g, 500, 2000, 20_000, 60_000) }
func (g *generator) wait() uint64 { return pick[uint64](g, 0, 0, 1, 500, 3000, 3000, 60_000) }

func (g *generator) command(s *State) Command {
	switch n := g.IntN(100); {
	case n < 6:
		o := &Open{Session: label(fmt.Sprintf("s%d", g.IntN(6)+s.sessions.Len()/20)), Owner: pick(g, "", "me"), TTL: g.ttl()}
		if g.chance(10) {
			o.Labels = []Label{{"team", "blue"}}
		}
		return o
	case n < 14:
		r := &Renew{}
		for range 1 + g.IntN(4) {
			r.Sessions = append(r.Sessions, Renewal{Session: g.session(s), TTL: pick(g, 0, 0, 0, g.ttl())})
			if last := &r.Sessions[len(r.Sessions)-1]; g.chance(20) {
				last.Done = g.Uint64N(g.numbers[last.Session] + 2)
			}
		}
		return r
	case n < 15:
		return &Close{Session: g.session(s)}
	case n < 50:
		return g.acquire(s)
	case n < 56:
		return g.wishes(&Acquire{ID: label(fmt.Sprintf("k%d", g.IntN(6))), Keyed: true, Owner: pick(g, "me", "me", "you"), TTL: g.ttl(), Wait: g.wait(), Locks: g.wants()})
	case n < 59:
		g.labels++
		return g.wishes(&Acquire{ID: label(fmt.Sprintf("o%d", g.labels)), Owner: "me", TTL: g.ttl(), Wait: g.wait(), Locks: g.wants()})
	case n < 70:
		return g.release(s)
	case n < 83:
		return g.convert(s)
	case n < 91:
		return g.cancel(s)
	case n < 93:
		return g.value(s)
	case n < 95:
		return g.force(s)
	case n < 96:
		if g.chance(25) {
			return &Raise{ID: label(fmt.Sprintf("r%d", g.IntN(60))), Above: pick(g, 0, g.Uint64N(1<<20)), Reason: "drill"}
		}
		return &Level{Level: g.Uint64N(2)}
	}
	return &Acquire{Session: g.session(s), Number: 1 + g.Uint64N(5), Wait: g.wait(), Locks: g.wants()}
}

// wishes adds what an acquire may ask for besides its locks.
func (g *generator) wishes(a *Acquire) *Acquire {
	if g.chance(25) {
		a.Priority = pick[int64](g, -1, 1, 1)
	}
	if g.chance(20) {
		a.MaxHold = pick[uint64](g, 1, 300, 2000)
	}
	if g.chance(25) {
		a.Delay = pick[uint64](g, 1, 300, 2000)
	}
	if g.chance(20) {
		a.Value = pick(g, "v", "w")
	}
	if g.chance(65) {
		a.Task = pick(g, "t", "t", "u")
	}
	return a
}

func (g *generator) acquire(s *State) Command {
	n := g.session(s)
	if g.chance(12) { // a number before the last one, or far ahead
		return &Acquire{Session: n, Number: 1 + g.Uint64N(g.numbers[n]+4), Wait: g.wait(), Locks: g.wants()}
	}
	g.numbers[n]++
	a := g.wishes(&Acquire{Session: n, Number: g.numbers[n], Wait: g.wait(), Locks: g.wants()})
	if g.chance(15) {
		a.Done = g.Uint64N(a.Number + 1)
	}
	return a
}

func (g *generator) release(s *State) Command {
	r := g.request(s)
	if r == nil {
		return &Release{Session: g.session(s), Number: 1, Token: 1}
	}
	p := pick(g, r.locks...)
	c := &Release{Session: r.session, Number: r.number, Token: pick(g, p.token, p.token, p.former, 0, p.token+1), Name: pick(g, "", "", p.Name, pick(g, lockNames...))}
	if g.chance(5) {
		c.Session = g.session(s)
	}
	if g.chance(5) {
		c.Number = g.Uint64N(c.Number + 2)
	}
	return c
}

// held draws a hold, rarely something else; nil when there is nothing.
func (g *generator) held(s *State) *request {
	all := allRequests(s)
	if holds := slices.DeleteFunc(slices.Clone(all), func(r *request) bool { return !r.granted || r.converts() }); len(holds) > 0 && !g.chance(5) {
		return pick(g, holds...)
	}
	return g.request(s)
}

func (g *generator) convert(s *State) Command {
	r := g.held(s)
	if r == nil || r.number == 0 && g.chance(90) {
		return g.acquire(s)
	}
	p := pick(g, r.locks...)
	g.numbers[r.session]++
	c := &Convert{Session: r.session, Number: g.numbers[r.session], Of: max(1, r.number), Token: p.token, Want: Want{Name: p.Name, Mode: Exclusive}, Wait: g.wait()}
	if p.Mode == Exclusive != g.chance(8) {
		c.Mode, c.Limit = Shared, pick[uint32](g, 0, 0, 2, 3)
	}
	switch n := g.IntN(100); {
	case n < 3:
		c.Token = p.former
	case n < 6:
		c.Number = 1 + g.Uint64N(c.Number)
	case n < 8:
		c.Of = 1 + g.Uint64N(c.Number)
	case n < 10:
		c.Done = g.Uint64N(c.Number)
	}
	return c
}

func (g *generator) value(s *State) Command {
	r := g.held(s)
	if r == nil {
		return &Value{Session: g.session(s), Number: 1, Token: 1, Name: "a"}
	}
	p := pick(g, r.locks...)
	return &Value{Session: r.session, Number: r.number, Token: pick(g, p.token, p.token, p.former), Name: p.Name, Value: pick(g, "v", "w", "")}
}

func (g *generator) force(s *State) Command {
	r := g.held(s)
	if r == nil {
		return &Force{Name: "a", Token: 1}
	}
	p := pick(g, r.locks...)
	return &Force{Name: p.Name, Token: pick(g, p.token, p.token, p.token, p.former), Reason: "stuck", By: "op", Delay: pick[uint64](g, 0, 0, 500)}
}

func (g *generator) cancel(s *State) Command {
	if g.chance(25) {
		return &Cancel{Key: label(fmt.Sprintf("k%d", g.IntN(6))), Keyed: true, Waiting: g.chance(40)}
	}
	c := &Cancel{Waiting: g.chance(40)}
	if r := g.request(s); r != nil && g.chance(70) {
		c.Session, c.Number = r.session, r.number
		return c
	}
	c.Session = g.session(s)
	c.Number = g.Uint64N(g.numbers[c.Session] + 3)
	return c
}
