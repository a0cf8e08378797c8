package fsm

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
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
	alone    bool    // without the other machines and the checks, which is quicker
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
	for i, o := range got.Outcomes {
		if err := t.model.checkCycle(uint32(i), o); err != nil {
			return err
		}
		want.Outcomes[i].Cycle = o.Cycle // there may be several
	}
	if !reflect.DeepEqual(got, want) {
		return fmt.Errorf("results differ: machine\n%s\nmodel\n%s", formatResult(got), formatResult(want))
	}
	if got, want := describeState(t.machine), t.model.describe(); got != want {
		return fmt.Errorf("states differ: machine\n%s\nmodel\n%s", got, want)
	}
	if t.alone {
		return nil
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
func play(steps []indexed, alone bool) (int, error) {
	if len(steps) == 0 || steps[0].step.begin == nil {
		return 0, nil // no log begins so
	}
	t := newTwin()
	t.alone = alone
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
	alone := true
	n, err := play(steps, alone)
	if err == nil {
		alone = false
		n, err = play(steps, alone)
	}
	if err == nil {
		return steps, errors.New("not reproduced by playing the entries again")
	}
	steps = steps[:n+1]
	try := func(shorter []indexed) bool {
		n, e := play(shorter, alone)
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
			for c := OK; c <= SameMode; c++ {
				if g.made >= 20_000 && seen[c] == 0 && c != Exhausted && c != Skipped {
					t.Errorf("no command was answered %v: the run proves nothing about that", c)
				}
			}
		})
	}
}
