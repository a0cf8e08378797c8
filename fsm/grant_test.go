package fsm

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestHandOverLooks hands locks over among many requests and counts the looks: they are as many however long the queue is,
// for requests for one lock and for the same several locks (R5). Those that stand through a lock that they share cost a look
// each; BenchmarkHandOverThrough has the worst that the quota admits.
func TestHandOverLooks(t *testing.T) {
	long := 10_000
	if raced {
		long = 1000
	}
	for _, c := range []struct{ locks, more string }{{"x", ""}, {"x y", ""}, {"x y z", ""}, {"x", " priority=3 task=t%d max=900 delay=5"}} {
		t.Run(c.locks+c.more, func(t *testing.T) {
			looks := map[int]int{}
			for _, queue := range []int{2, 100, long} {
				s, stamps, n := NewState(), stamper{}, names{}
				apply := func(line string) *Result {
					r, err := s.Apply(s.index+1, 1, stamps.entry(s.index+1, parseStep(line, n)))
					if err != nil {
						t.Fatal(err)
					}
					if len(n) == 0 {
						n.learn(s)
					}
					return r
				}
				apply("begin multiple=20000 requests=20000 waiters=20000")
				apply("+0 open A ttl=60000")
				for i := range queue + 1 {
					apply(fmt.Sprintf("+0 acquire A %d %s wait=60000%s", i+1, c.locks, strings.ReplaceAll(c.more, "%d", fmt.Sprint(i))))
				}
				encoded := s.Encode()
				for looks[queue] = 1; ; looks[queue]++ { // how few are enough
					var err error
					if s, err = Decode(encoded); err != nil {
						t.Fatal(err)
					}
					s.looks = looks[queue]
					r := apply("+0 release A 1")
					if s.backlog() {
						continue
					}
					if len(r.Events) != 1 || r.Events[0].Grant.Number != 2 {
						t.Fatalf("%+v", r)
					}
					break
				}
			}
			if looks[100] != looks[2] || looks[long] != looks[2] || looks[2] > 6 {
				t.Errorf("looks by the length of the queue: %v", looks)
			}
		})
	}
}

// TestExpireTogether ends many sessions at once: an entry does what it may, and no more entries are needed (R3).
func TestExpireTogether(t *testing.T) {
	for _, c := range []struct {
		name     string
		sessions int
		line     string
		entries  int
	}{
		{"sessions with a hold", 5000, "+0 open s%d ttl=1000 ; acquire #%d 1 l%d", 10}, // a hold and a session each
		{"sessions of their own", 5000, "+0 acquire own=o%d ttl=1000 l%[3]d", 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, stamps := NewState(), stamper{}
			apply := func(st step) {
				if _, err := s.Apply(s.index+1, 1, stamps.entry(s.index+1, st)); err != nil {
					t.Fatal(err)
				}
			}
			apply(parseStep("begin", nil))
			for i := range c.sessions {
				apply(parseStep(fmt.Sprintf(c.line, i, i+1, i), nil))
			}
			entries := 0
			for apply(step{elapsed: 1001}); ; apply(step{}) {
				if entries++; !s.backlog() {
					break
				}
			}
			if s.sessions.Len() != 0 || s.locks.Len() != 0 || entries > c.entries {
				t.Errorf("%d sessions and %d locks are left after %d entries", s.sessions.Len(), s.locks.Len(), entries)
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

// TestTriesBeyondTheBudget has an entry that can judge only some of its tries: the others are as if they had never come,
// and a try is never told that a free lock is held.
func TestTriesBeyondTheBudget(t *testing.T) {
	s, stamps, n := NewState(), stamper{}, names{}
	apply := func(line string) *Result {
		t.Helper()
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
	codes := func(r *Result) (all []Code) {
		for _, o := range r.Outcomes {
			all = append(all, o.Code)
		}
		return all
	}
	expect := func(r *Result, want ...Code) {
		t.Helper()
		if got := codes(r); !slices.Equal(got, want) {
			t.Fatalf("%v, not %v", got, want)
		}
	}
	apply("begin")
	apply("+0 open A ttl=60000")
	apply("+0 open B ttl=60000")
	expect(apply("+0 acquire B 1 held"), OK)
	s.works = 1
	// One is granted by the pass, one with the second budget.
	expect(apply("+0 acquire A 1 a ; acquire A 2 b ; acquire A 3 c ; acquire key=k ttl=1000 d ; acquire own=o ttl=1000 e"),
		OK, OK, Unjudged, Unjudged, Unjudged)
	if s.sessions.Len() != 2 || s.tombstones != 0 || s.locks.Len() != 3 {
		t.Fatalf("something is left: %d sessions, %d tombstones, %d locks", s.sessions.Len(), s.tombstones, s.locks.Len())
	}
	expect(apply("+0 acquire A 3 c"), OK)
	expect(apply("+0 acquire key=k ttl=1000 d"), OK)

	// While others end, a free lock is granted, and one that is held is refused.
	apply("+0 open C ttl=500")
	for i := range 5 {
		expect(apply(fmt.Sprintf("+0 acquire C %d x%d", i+1, i)), OK)
	}
	expect(apply("+501 acquire A 4 f"), OK)
	if !s.backlog() {
		t.Fatal("there was time for everything")
	}
	expect(apply("+0 acquire A 5 held"), Held)

	// Where others wait, order counts more: the try is left to an entry that has time.
	expect(apply("+0 acquire A 6 held wait=60000"), Queued)
	expect(apply("+0 acquire A 7 held"), Unjudged)
	for s.backlog() {
		apply("+0")
	}
	expect(apply("+0 acquire A 7 held"), Held)

	s.works = workBudget
	var line strings.Builder
	for i := range 40 {
		fmt.Fprintf(&line, "acquire A %d", 100+i)
		for k := range 64 {
			fmt.Fprintf(&line, " m%d-%02d", i, k)
		}
		line.WriteString(" ; ")
	}
	granted := 0
	for _, c := range codes(apply("+0 " + strings.TrimSuffix(line.String(), " ; "))) {
		if c == OK {
			granted++
		} else if c != Unjudged {
			t.Fatalf("a try of free locks: %v", c)
		}
	}
	if granted < 2*workBudget/64 || granted == 40 {
		t.Errorf("%d of 40 were granted", granted)
	}
}
