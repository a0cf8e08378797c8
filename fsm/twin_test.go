package fsm

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	seed     = flag.Uint64("seed", 0, "seed of the random tests; 0 draws one")
	commands = flag.Int("commands", 0, "commands in a run of the random tests; 0 is 100,000, or a tenth under the race detector")
)

func wantedCommands() int {
	switch {
	case *commands != 0:
		return *commands
	case raced:
		return 10_000
	}
	return 100_000
}

// twin is the machine beside its model under the same entries. The machine runs three times: one goes on for the whole
// run and has snapshots taken of it, one is restored from a snapshot after every entry, one follows the log untouched
// until it is restored half-way; all three must have the same bytes after every entry (R1, R12).
type twin struct {
	model    *model
	machine  *State
	restored *State
	follower *State
	tokens   *tokens
	stamps   stamper
	index    uint64
	frozen   []frozenCopy
	results  *Result // of the latest entry
}

// frozenCopy is a snapshot that was taken while its original goes on, with the bytes that it must keep.
type frozenCopy struct {
	state *State
	bytes []byte
	until uint64
}

func newTwin() *twin {
	return &twin{model: newModel(), machine: NewState(), restored: NewState(), follower: NewState(), tokens: newTokens()}
}

// step applies one entry to all of them and returns how they differ, or what is wrong.
func (t *twin) step(index uint64, st step) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	t.index = index
	encoded, err := t.stamps.entry(index, st).Encode()
	if err != nil {
		return err
	}
	apply := func(s *State) *Result {
		e, err := DecodeEntry(encoded)
		if err != nil {
			panic(err)
		}
		r, err := s.Apply(index, t.stamps.begin, e)
		if err != nil {
			panic(err)
		}
		return r
	}
	got := apply(t.machine)
	t.results = got
	e, _ := DecodeEntry(encoded)
	want := t.model.apply(index, t.stamps.begin, e)
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("results differ: machine\n%s\nmodel\n%s", formatResult(got), formatResult(want))
	}
	if got, want := describeState(t.machine), t.model.describe(); got != want {
		return fmt.Errorf("states differ: machine\n%s\nmodel\n%s", got, want)
	}
	if err := errors.Join(check(t.machine), t.tokens.after(t.machine)); err != nil {
		return err
	}
	return t.copies(got, apply)
}

// copies compares the other machines and the snapshots taken before.
func (t *twin) copies(got *Result, apply func(*State) *Result) error {
	b := t.machine.Encode()
	for name, s := range map[string]*State{"restored": t.restored, "following": t.follower} {
		if r := apply(s); !reflect.DeepEqual(r, got) {
			return fmt.Errorf("the %s machine answers\n%s\ninstead of\n%s", name, formatResult(r), formatResult(got))
		}
		if !bytes.Equal(s.Encode(), b) {
			return fmt.Errorf("the %s machine has other bytes", name)
		}
	}
	var err error
	if t.restored, err = Decode(b); err != nil {
		return err
	}
	if t.index%1000 == 500 {
		t.follower = t.restored
		if t.restored, err = Decode(b); err != nil {
			return err
		}
	}
	if t.index%37 == 0 {
		t.frozen = append(t.frozen, frozenCopy{t.machine.Snapshot(), b, t.index + t.index%101})
	}
	kept := t.frozen[:0]
	for _, f := range t.frozen {
		if t.index < f.until {
			kept = append(kept, f)
			continue
		}
		if !bytes.Equal(f.state.Encode(), f.bytes) {
			return errors.New("a snapshot changed with its original")
		}
		if err := check(f.state); err != nil {
			return fmt.Errorf("a snapshot changed with its original: %w", err)
		}
	}
	t.frozen = kept
	return nil
}

func formatResult(r *Result) string {
	var b bytes.Buffer
	r.print(&b)
	return fmt.Sprintf("%s%+v", b.String(), r)
}

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
				Waiters: pick[uint64](g, 3, 6), Multiple: pick[uint64](g, 1, 3), Holders: pick[uint64](g, 2, 4),
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
	if all := items(s.requests); len(all) > 0 {
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
	case n < 8:
		return &Open{Session: label(fmt.Sprintf("s%d", g.IntN(8)+s.sessions.Len()/20)), Owner: pick(g, "", "me"), TTL: g.ttl()}
	case n < 17:
		r := &Renew{}
		for range 1 + g.IntN(4) {
			r.Sessions = append(r.Sessions, Renewal{Session: g.session(s), TTL: pick(g, 0, 0, 0, g.ttl())})
			if last := &r.Sessions[len(r.Sessions)-1]; g.chance(20) {
				last.Done = g.Uint64N(g.numbers[last.Session] + 2)
			}
		}
		return r
	case n < 18:
		return &Close{Session: g.session(s)}
	case n < 54:
		return g.acquire(s)
	case n < 64:
		a := &Acquire{ID: label(fmt.Sprintf("k%d", g.IntN(6))), Keyed: true, Owner: pick(g, "me", "me", "you"), TTL: g.ttl(), Wait: g.wait(), Locks: g.wants()}
		return a
	case n < 69:
		g.labels++
		return &Acquire{ID: label(fmt.Sprintf("o%d", g.labels)), Owner: "me", TTL: g.ttl(), Wait: g.wait(), Locks: g.wants()}
	case n < 88:
		return g.release(s)
	case n < 97:
		return g.cancel(s)
	case n < 98:
		if g.chance(25) {
			return &Raise{ID: label(fmt.Sprintf("r%d", g.IntN(60))), Above: pick(g, 0, g.Uint64N(1<<20))}
		}
		return &Level{Level: g.Uint64N(2)}
	}
	return &Acquire{Session: g.session(s), Number: 1 + g.Uint64N(5), Wait: g.wait(), Locks: g.wants()}
}

func (g *generator) acquire(s *State) Command {
	n := g.session(s)
	if g.chance(12) { // a number before the last one, or far ahead
		return &Acquire{Session: n, Number: 1 + g.Uint64N(g.numbers[n]+4), Wait: g.wait(), Locks: g.wants()}
	}
	g.numbers[n]++
	a := &Acquire{Session: n, Number: g.numbers[n], Wait: g.wait(), Locks: g.wants(), Task: pick(g, "", "", "", "t")}
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
	c := &Release{Session: r.session, Number: r.number, Token: pick(g, p.token, p.token, 0, p.token+1), Name: pick(g, "", "", p.Name, pick(g, lockNames...))}
	if g.chance(5) {
		c.Session = g.session(s)
	}
	if g.chance(5) {
		c.Number = g.Uint64N(c.Number + 2)
	}
	return c
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

// TestSmallBudgets runs random entries on a machine that may do next to nothing in one entry, so that nearly every entry
// leaves work over. The grants then come later than the model's, but no rule may ever be broken, nothing that is gone may
// be granted, and ticks must finish the work (R3).
func TestSmallBudgets(t *testing.T) {
	const runs = 4
	for i, seed := range seeds(runs) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			g, s, stamps, tokens := newGenerator(seed), NewState(), stamper{}, newTokens()
			var steps []indexed
			left := 0
			for index := uint64(1); g.made < wantedCommands()/runs/2; index++ {
				st := g.step(s)
				if s.backlog() && s.begin != 0 && g.chance(60) {
					st = step{} // as the leader does
				}
				steps = append(steps, indexed{index, st})
				s.works, s.looks = 1+i%3, 1+i
				if err := applyChecked(s, index, stamps.entry(index, st), tokens); err != nil {
					t.Fatalf("seed %d, entry %d: %v\n%s", seed, index, err, script(steps[max(0, len(steps)-20):]))
				}
				if s.backlog() {
					left++
				}
				if index%2 == 0 {
					restored, err := roundTrip(s)
					if err != nil {
						t.Fatal(err)
					}
					s = restored
				}
			}
			for index := s.index + 1; s.backlog(); index++ {
				if index > s.index+100_000 {
					t.Fatal("the work never ends")
				}
				if err := applyChecked(s, index, stamps.entry(index, step{}), tokens); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("%d entries, %d of them left work over", len(steps), left)
			if left < len(steps)/20 {
				t.Errorf("only %d of %d entries left work over", left, len(steps))
			}
		})
	}
}

// applyChecked applies an entry, and checks the state and that nothing was granted to what is gone.
func applyChecked(s *State, index uint64, e *Entry, tokens *tokens) error {
	r, err := s.Apply(index, 1, e)
	if err != nil {
		return err
	}
	for _, event := range r.Events {
		if event.Kind == EventGranted && s.gone(s.peekSession(event.Grant.Session)) {
			return fmt.Errorf("granted to session %d, which is gone", event.Grant.Session)
		}
	}
	return errors.Join(check(s), tokens.after(s))
}

// indexed is a step with its place in the log, which it keeps when others are left out.
type indexed struct {
	index uint64
	step  step
}

// play runs steps on a new twin and returns the first fault and how far it came.
func play(steps []indexed) (int, error) {
	t := newTwin()
	for i, st := range steps {
		if err := t.step(st.index, st.step); err != nil {
			return i, err
		}
	}
	return len(steps), nil
}

// shrink leaves out entries and commands as long as something still fails, for at most a few seconds.
func shrink(steps []indexed) ([]indexed, error) {
	stop := time.Now().Add(20 * time.Second)
	n, err := play(steps)
	if err == nil {
		return steps, errors.New("not reproduced by playing the entries again")
	}
	steps = steps[:n+1]
	try := func(shorter []indexed) bool {
		n, e := play(shorter)
		if e == nil || len(shorter) == 0 {
			return false
		}
		steps, err = shorter[:n+1], e
		return true
	}
	for size := len(steps) / 2; size >= 1 && time.Now().Before(stop); size /= 2 {
		for at := 0; at+size <= len(steps) && time.Now().Before(stop); {
			if !try(append(append([]indexed{}, steps[:at]...), steps[at+size:]...)) {
				at += size
			}
		}
	}
	for i := 0; i < len(steps) && time.Now().Before(stop); i++ {
		for j := 0; i < len(steps) && j < len(steps[i].step.commands); {
			shorter := append([]indexed{}, steps...)
			c := steps[i].step.commands
			shorter[i].step.commands = append(append([]Command{}, c[:j]...), c[j+1:]...)
			if !try(shorter) {
				j++
			}
		}
	}
	return steps, err
}

func script(steps []indexed) string {
	var b strings.Builder
	for _, st := range steps {
		fmt.Fprintf(&b, "%d: %v\n", st.index, st.step)
	}
	return b.String()
}

// seeds returns the seeds of a random test: the one that was asked for, or a few drawn ones. They are printed.
func seeds(n int) []uint64 {
	if *seed != 0 {
		return []uint64{*seed}
	}
	all := make([]uint64, n)
	for i := range all {
		all[i] = rand.Uint64()>>16 | 1
	}
	return all
}

// TestTwin compares the machine with the model under random entries (design.md R1 to R12).
func TestTwin(t *testing.T) {
	const runs = 4
	for _, seed := range seeds(runs) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			g, tw := newGenerator(seed), newTwin()
			var steps []indexed
			seen := map[Code]int{}
			for index := uint64(1); g.made < wantedCommands()/runs; index++ {
				st := g.step(tw.machine)
				steps = append(steps, indexed{index, st})
				if err := tw.step(index, st); err != nil {
					short, shortErr := shrink(steps)
					t.Fatalf("seed %d, entry %d: %v\n\nshrunk to\n%s%v", seed, index, err, script(short), shortErr)
				}
				for _, o := range tw.results.Outcomes {
					seen[o.Code]++
					for _, o := range o.Renewals {
						seen[o.Code]++
					}
				}
				if tw.machine.backlog() && st.begin == nil && !st.stale {
					t.Fatalf("seed %d, entry %d: work is left over", seed, index)
				}
			}
			t.Logf("%d entries, %d commands: %v", len(steps), g.made, seen)
			for c := OK; c < Skipped; c++ {
				if g.made >= 20_000 && seen[c] == 0 && c != Exhausted {
					t.Errorf("no command was answered %v: the run proves nothing about that", c)
				}
			}
		})
	}
}
