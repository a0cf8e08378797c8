package fsm

import (
	"bytes"
	"slices"
	"testing"
)

// The fuzzed bytes are what stands before the checksum, which is computed anew, so that the bodies are reached.

func FuzzDecodeEntry(f *testing.F) {
	stamps := stamper{begin: 1}
	for _, st := range formatEntries() {
		b, err := stamps.entry(2, st).Encode()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b[:len(b)-4])
	}
	f.Add(unknownCommand(true))
	f.Fuzz(func(t *testing.T, body []byte) {
		DecodeEntry(body) // almost surely a bad checksum
		sealed := seal(slices.Clone(body))
		e, err := DecodeEntry(sealed)
		if err != nil {
			return
		}
		if !slices.Contains(e.Commands, nil) { // what was skipped cannot be written again
			again, err := e.Encode()
			if err != nil || !bytes.Equal(again, sealed) {
				t.Fatalf("accepted %x, encoded again as %x, %v", sealed, again, err)
			}
		}
		s := formatState(t)
		e.Stamp.Begin = s.begin
		if _, err := s.Apply(s.index+1, 3, e); err != nil {
			return // of another cluster, or of a newer level
		}
		if err := check(s); err != nil && e.Stamp.Elapsed < 1<<60 {
			t.Fatalf("%+v: %v", e, err)
		}
	})
}

func FuzzDecodeSnapshot(f *testing.F) {
	for _, s := range []*State{NewState(), formatState(f)} {
		b := s.Encode()
		f.Add(b[len(snapshotMagic) : len(b)-4])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		Decode(body)
		sealed := seal(slices.Concat([]byte(snapshotMagic), body))
		s, err := Decode(sealed)
		if err != nil {
			return
		}
		if again := s.Encode(); !bytes.Equal(again, sealed) {
			t.Fatalf("accepted %x, encoded again as %x", sealed, again)
		}
		usable(t, s)
	})
}

// usable fails unless a state that was accepted fits together, can be applied to, and comes to an end of its work.
func usable(t *testing.T, s *State) {
	c := checker{s: s, locks: map[uint64]*lock{}, sums: map[uint64]*lock{}, sessions: map[uint64]*session{}, own: map[uint64][]*request{}}
	if c.objects(); len(c.wrong) == 0 {
		c.indexes()
	}
	if len(c.wrong) > 0 {
		t.Fatalf("accepted a state that does not fit together: %v", c.wrong)
	}
	// Whatever is accepted can be applied to, and its work ends.
	var commands []Command
	for _, v := range items(s.sessions) {
		commands = append(commands, &Renew{Sessions: []Renewal{{Session: v.number, Done: 9}}}, &Acquire{
			Session: v.number, Number: 1 << 20, Wait: 1, Task: "t", Locks: []Want{{Name: "a", Mode: Exclusive}, {Name: "x", Mode: Shared}},
		})
	}
	for i, r := range allRequests(s) {
		for _, p := range r.locks {
			mode := Shared
			if p.Mode == Shared {
				mode = Exclusive
			}
			commands = append(commands, &Value{Session: r.session, Number: r.number, Token: p.token, Name: p.Name, Value: "v"}, &Convert{
				Session: r.session, Number: 1<<21 + uint64(i), Of: r.number, Token: p.token, Want: Want{Name: p.Name, Mode: mode}, Wait: 1,
			})
		}
		if i%2 == 1 {
			commands = append(commands, &Force{Name: r.locks[0].Name, Token: r.locks[0].token, Delay: 1})
		}
	}
	for _, v := range items(s.sessions) {
		commands = append(commands, &Close{Session: v.number})
	}
	for n := range 4 {
		e := &Entry{Stamp: Stamp{s.begin, s.elapsed + uint64(n)*1000}}
		if n == 2 {
			e.Commands = commands[:min(len(commands), MaxCommands)]
		}
		if _, err := s.Apply(s.index+1, s.term, e); err != nil {
			t.Fatal(err)
		}
	}
}
