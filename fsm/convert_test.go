package fsm

import "testing"

// TestConvertOfClosedSession has no work left for taking a session apart that was closed in the entry of its conversion: the
// session is gone from that entry on, and is not converted (R3).
func TestConvertOfClosedSession(t *testing.T) {
	s, stamps, n := NewState(), stamper{}, names{}
	apply := func(line string) *Result {
		r, err := s.Apply(s.index+1, 1, stamps.entry(s.index+1, parseStep(line, n)))
		if err != nil {
			t.Fatal(err)
		}
		if err := check(s); err != nil {
			t.Fatal(err)
		}
		n.learn(s)
		if s, err = roundTrip(s); err != nil {
			t.Fatal(err)
		}
		return r
	}
	apply("begin")
	apply("+0 open A ttl=60000 ; open B ttl=60000")
	apply("+0 acquire A 1 x ; acquire A 2 y ; acquire A 3 z ; acquire B 1 z:shared wait=1000")
	s.works = 1
	r := apply("+0 convert A 4 z:shared of=3 token=3 ; close A")
	if r.Outcomes[0].Code != SessionGone || !s.backlog() {
		t.Fatalf("%+v", r.Outcomes[0])
	}
	for _, e := range r.Events {
		if e.Kind == EventGranted {
			t.Errorf("granted: %+v", e.Grant)
		}
	}
	for s.backlog() {
		r = apply("+0")
	}
	if len(r.Events) != 1 || r.Events[0].Grant.Locks[0].Token != s.index {
		t.Errorf("B was not granted the lock by the last entry: %+v", r)
	}
}
