package fsm

import (
	"fmt"
	"testing"
)

// TestHandOverLooks hands locks over among a thousand requests with room for a few looks: more would be left over. So the
// cost does not grow with the queue, for requests for one lock and for the same several locks (R5). Those that stand through a
// lock that they share cost a look each; BenchmarkHandOverThrough has the worst that the quota admits.
func TestHandOverLooks(t *testing.T) {
	for _, locks := range []string{"x", "x y", "x y z"} {
		t.Run(locks, func(t *testing.T) {
			s, stamps, n := NewState(), stamper{}, names{}
			apply := func(line string) *Result {
				r, err := s.Apply(s.index+1, 1, stamps.entry(s.index+1, parseStep(line, n)))
				if err != nil {
					t.Fatal(err)
				}
				n.learn(s)
				return r
			}
			apply("begin multiple=2000")
			apply("+0 open A ttl=60000")
			for i := range 1000 {
				apply(fmt.Sprintf("+0 acquire A %d %s wait=60000", i+1, locks))
			}
			s.looks = 6
			for i := range 20 {
				r := apply(fmt.Sprintf("+0 release A %d", i+1))
				if len(r.Events) != 1 || r.Events[0].Grant.Number != uint64(i+2) {
					t.Fatalf("release of %d: %+v", i+1, r)
				}
				if s.backlog() {
					t.Fatalf("release of %d left work over", i+1)
				}
			}
			if err := check(s); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestTokensExhausted grants nothing at the end of the range, where a token would not be exact in JSON any more (R10).
func TestTokensExhausted(t *testing.T) {
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
		return r
	}
	apply("begin")
	s.base = MaxToken - 5 // the last token is that of entry 4
	apply("+0 open A ttl=60000")
	apply("+0 acquire A 1 y")
	r := apply("+0 acquire A 2 x ; acquire A 3 x wait=1000")
	if g := r.Outcomes[0].Grant; g == nil || g.Locks[0].Token != MaxToken-1 {
		t.Fatalf("the last token: %+v", r.Outcomes[0])
	}
	r = apply("+0 release A 2 ; acquire A 4 z wait=1000 ; acquire own=o ttl=1000 z")
	if len(r.Events) != 0 || r.Outcomes[1].Code != Exhausted || r.Outcomes[2].Code != Exhausted {
		t.Fatalf("beyond the last token: %+v", r)
	}
	if r = apply("+0 release A 1"); r.Outcomes[0].Code != OK {
		t.Fatalf("a release: %+v", r.Outcomes[0])
	}
}
