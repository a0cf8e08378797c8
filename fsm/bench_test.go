package fsm

import (
	"fmt"
	"testing"
	"time"
)

// bench is a state for benchmarks, with a leader that stamps its entries.
type bench struct {
	b      testing.TB
	s      *State
	stamps stamper
	number uint64
}

func newBench(b testing.TB) *bench {
	x := &bench{b: b, s: NewState()}
	// The quotas of the format rather than the usual ones, so that any size can be tried.
	x.do(step{begin: &Begin{Cluster: label("cluster"), Limits: Limits{10_000_000, 10_000_000, 10_000_000, 10_000_000, 10_000_000, 10_000_000}}})
	x.do(step{commands: []Command{&Open{Session: label("A"), TTL: MaxTTL}, &Open{Session: label("B"), TTL: MaxTTL}}})
	return x
}

func (x *bench) do(st step) *Result {
	r, err := x.s.Apply(x.s.index+1, 1, x.stamps.entry(x.s.index+1, st))
	if err != nil {
		x.b.Fatal(err)
	}
	return r
}

// acquire asks for a lock and returns the number of the request.
func (x *bench) acquire(session uint64, wait uint64, name string, code Code) uint64 {
	x.number++
	// The longest wait there is, and a clock that stands still: the queue stays as it is.
	a := &Acquire{Session: session, Number: x.number, Wait: wait, Locks: []Want{{Name: name, Mode: Exclusive}}}
	if r := x.do(step{commands: []Command{a}}); r.Outcomes[0].Code != code {
		x.b.Fatalf("acquire: %+v", r.Outcomes[0])
	}
	return x.number
}

// BenchmarkHandOver releases an exclusive lock to the next of a queue, and puts a new request at its end. It must cost
// the same however long the queue is (R5).
func BenchmarkHandOver(b *testing.B) {
	for _, queue := range []int{1, 100, 10_000, 100_000} {
		b.Run(fmt.Sprintf("queue=%d", queue), func(b *testing.B) {
			x := newBench(b)
			holder := x.acquire(1, 0, "x", OK)
			for range queue {
				x.acquire(1, MaxWait, "x", Queued)
			}
			b.ReportAllocs()
			for b.Loop() {
				x.number++
				r := x.do(step{commands: []Command{
					&Release{Session: 1, Number: holder},
					&Acquire{Session: 1, Number: x.number, Wait: MaxWait, Locks: []Want{{Name: "x", Mode: Exclusive}}},
				}})
				if holder++; len(r.Events) != 1 || r.Events[0].Grant.Number != holder {
					b.Fatalf("%+v", r)
				}
			}
		})
	}
}

// BenchmarkHandOverSeveral does the same with requests for two locks in the queue, of which each may cost a look.
func BenchmarkHandOverSeveral(b *testing.B) {
	for _, queue := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("queue=%d", queue), func(b *testing.B) {
			x := newBench(b)
			want := []Want{{Name: "x", Mode: Exclusive}, {Name: "y", Mode: Exclusive}}
			for range queue + 1 {
				x.number++
				x.do(step{commands: []Command{&Acquire{Session: 1, Number: x.number, Wait: MaxWait, Locks: want}}})
			}
			holder := uint64(1)
			b.ReportAllocs()
			for b.Loop() {
				x.number++
				r := x.do(step{commands: []Command{
					&Release{Session: 1, Number: holder}, &Acquire{Session: 1, Number: x.number, Wait: MaxWait, Locks: want},
				}})
				if holder++; len(r.Events) != 1 || r.Events[0].Grant.Number != holder {
					b.Fatalf("%+v", r)
				}
			}
		})
	}
}

// BenchmarkHandOverThrough is the worst case: all of the queue stands through a lock that it shares and waits for another,
// and is judged at each hand-over. The quota of requests for several locks is 256.
func BenchmarkHandOverThrough(b *testing.B) {
	x := newBench(b)
	want := []Want{{Name: "w", Mode: Shared}, {Name: "x", Mode: Exclusive}}
	for range DefaultLimits.Multiple {
		x.number++
		x.do(step{commands: []Command{&Acquire{Session: 1, Number: x.number, Wait: MaxWait, Locks: want}}})
	}
	holder := uint64(1)
	b.ReportAllocs()
	for b.Loop() {
		x.number++
		x.do(step{commands: []Command{&Release{Session: 1, Number: holder}, &Acquire{Session: 1, Number: x.number, Wait: MaxWait, Locks: want}}})
		holder++
	}
}

// BenchmarkAcquireRelease is two entries: a free lock is taken and given back, among others that are held.
func BenchmarkAcquireRelease(b *testing.B) {
	for _, held := range []int{0, 100_000} {
		b.Run(fmt.Sprintf("held=%d", held), func(b *testing.B) {
			x := newBench(b)
			x.fill(held)
			b.ReportAllocs()
			for b.Loop() {
				n := x.acquire(1, 0, "x", OK)
				if r := x.do(step{commands: []Command{&Release{Session: 1, Number: n}}}); r.Outcomes[0].Code != OK {
					b.Fatalf("%+v", r.Outcomes[0])
				}
			}
		})
	}
}

// fill has session 2 hold so many locks.
func (x *bench) fill(n int) {
	for at := 0; at < n; at += MaxCommands {
		var st step
		for i := at; i < min(at+MaxCommands, n); i++ {
			st.commands = append(st.commands, &Acquire{Session: 2, Number: uint64(i + 1), Locks: []Want{{Name: fmt.Sprintf("held/%d", i), Mode: Exclusive}}})
		}
		x.do(st)
	}
	if got := x.s.holds.Len(); got != n {
		x.b.Fatalf("%d holds", got)
	}
}

// BenchmarkRenew is one entry that renews a thousand sessions.
func BenchmarkRenew(b *testing.B) {
	x := newBench(b)
	r := &Renew{}
	for i := range 1000 {
		out := x.do(step{commands: []Command{&Open{Session: label(fmt.Sprint("s", i)), TTL: 15_000}}})
		r.Sessions = append(r.Sessions, Renewal{Session: out.Outcomes[0].Session})
	}
	b.ReportAllocs()
	for b.Loop() {
		x.do(step{elapsed: 1, commands: []Command{r}})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/session")
}

// BenchmarkSnapshot takes a snapshot, which must cost the same however much is held (R12), and then changes one thing.
func BenchmarkSnapshot(b *testing.B) {
	for _, held := range []int{1000, 100_000} {
		b.Run(fmt.Sprintf("held=%d", held), func(b *testing.B) {
			x := newBench(b)
			x.fill(held)
			b.ReportAllocs()
			for b.Loop() {
				x.s.Snapshot()
			}
		})
	}
}

// BenchmarkEncode writes a snapshot of a hundred thousand holds, and BenchmarkDecode reads it.
func BenchmarkEncode(b *testing.B) {
	x := newBench(b)
	x.fill(100_000)
	b.ReportAllocs()
	for b.Loop() {
		b.SetBytes(int64(len(x.s.Encode())))
	}
}

func BenchmarkDecode(b *testing.B) {
	x := newBench(b)
	x.fill(100_000)
	encoded := x.s.Encode()
	b.SetBytes(int64(len(encoded)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(encoded); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkExpire has fifty thousand sessions with a lock each expire together, and others wait for these locks. It tells how
// many entries that takes and how long one keeps everybody else (F08).
func BenchmarkExpire(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		x := newBench(b)
		x.do(step{begin: &Begin{Cluster: label("cluster"), Limits: Limits{Requests: 100_000}}})
		const sessions = 50_000
		for i := range uint64(sessions) {
			want := []Want{{Name: fmt.Sprint("l", i), Mode: Exclusive}}
			x.do(step{commands: []Command{
				&Open{Session: label(fmt.Sprint("s", i)), TTL: 1000}, &Acquire{Session: x.s.lastSession + 1, Number: 1, Locks: want},
				&Acquire{Session: 1, Number: i + 1, Wait: MaxWait, Locks: want},
			}})
		}
		b.StartTimer()
		entries, longest := 0, time.Duration(0)
		for st := (step{elapsed: 1001}); entries == 0 || x.s.backlog(); st = (step{}) {
			start := time.Now()
			x.do(st)
			longest = max(longest, time.Since(start))
			entries++
		}
		b.ReportMetric(float64(entries), "entries")
		b.ReportMetric(float64(longest.Microseconds()), "µs/longest-entry")
	}
}
