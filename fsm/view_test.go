package fsm

import "testing"

// Of all who wait only those are told that gave neither number nor key: nobody but the node that they asked can ask again.
func TestUnrepeatable(t *testing.T) {
	s := NewState()
	if _, err := s.Apply(1, 1, &Entry{Begin: &Begin{}}); err != nil {
		t.Fatal(err)
	}
	free, held := []Want{{Name: "free", Mode: Exclusive}}, []Want{{Name: "a", Mode: Exclusive}, {Name: "b", Mode: Exclusive}}
	commands := []Command{
		&Open{Session: ID{1}, Owner: "o", TTL: 60_000},
		&Acquire{Session: 1, Number: 1, Locks: held},
		&Acquire{Session: 1, Number: 2, Wait: 60_000, Locks: held},
		&Acquire{ID: ID{2}, Keyed: true, Owner: "o", TTL: 60_000, Wait: 60_000, Locks: held},
		&Acquire{ID: ID{3}, Owner: "o", TTL: 60_000, Wait: 60_000, Locks: held},
		&Acquire{ID: ID{4}, Owner: "o", TTL: 60_000, Wait: 60_000, Locks: free},
	}
	for i, c := range commands {
		if _, err := s.Apply(uint64(2+i), 1, &Entry{Stamp: Stamp{Begin: 1}, Commands: []Command{c}}); err != nil {
			t.Fatal(err)
		}
	}
	told := map[ID]int{}
	s.Unrepeatable(func(id ID) { told[id]++ })
	if len(told) != 1 || told[ID{3}] != 2 {
		t.Errorf("%v", told)
	}
}
