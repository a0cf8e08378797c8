package check

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/jepsen/history"
)

func TestLinearizable(t *testing.T) {
	mutex := Linearizable{Model: "mutex"}
	fenced := Linearizable{Model: "fenced lock", Tokens: true}
	rw := Linearizable{Model: "read-write lock", Tokens: true}
	semaphore := Linearizable{Model: "semaphore", Tokens: true}
	judge(t, []judged{
		{"one after the other", mutex, Valid, "", "", `
			0..10   a  acquire x -> 5
			0..40   b  acquire x -> 9
			20..30  a  release x
			50..60  b  release x`},
		{"a grant beside a hold", mutex, Invalid, "no order", "a acquire, b acquire, a release, b release", `
			0..10   a  acquire x -> 5
			11..19  b  acquire x -> 9
			20..30  a  release x
			50..60  b  release x`},
		{"a release that nobody knows of", mutex, Valid, "", "", `
			0..10   a  acquire x -> 5
			20..25  a  release x -> info
			21..40  b  acquire x -> 9
			50..60  b  release x`},
		{"a release that nobody knows of comes no earlier than it began", mutex, Invalid, "no order", "", `
			0..10   a  acquire x -> 5
			20..25  a  release x -> info
			11..19  b  acquire x -> 9
			50..60  b  release x`},
		{"an acquire that nobody knows of", mutex, Valid, "", "", `
			0..10   a  acquire x -> info
			1..     c  acquire x
			11..19  b  acquire x -> 9
			50..60  b  release x`},
		{"lost, then granted", mutex, Valid, "", "", `
			0..10   a  acquire x -> 5
			15      a  lost x lease=14
			11..19  b  acquire x -> 9
			50..60  b  release x`},
		{"lost while it is released", mutex, Valid, "", "", `
			0..10   a  acquire x -> 5
			20..30  a  release x
			22      a  lost x lease=12
			11..15  b  acquire x -> 9
			16..17  b  release x`},
		{"cancelled by another before the answer came", fenced, Valid, "", "", `
			2..50   b  acquire x session=t request=1 -> 4
			6..8    c  cancel session=t request=1
			7..10   a  acquire x -> 9
			11..12  d  look x -> 9
			90..99  a  release x`},
		{"released twice by two", mutex, Invalid, "no order", "", `
			0..10   a  acquire x session=s request=1 -> 5
			12..19  b  acquire x session=t request=1 -> 9
			20..30  a  release x session=s request=1
			50..60  b  release x session=t request=1`},
		{"a release that was refused", mutex, Valid, "", "", `
			0..10   a  acquire x session=s request=1 -> 5
			12..22  b  acquire x session=t request=1 -> 9
			20..30  a  release x session=s request=1 -> fail
			50..60  b  release x session=t request=1`},
		{"tokens in the order of time", fenced, Valid, "", "", `
			0..10   a  acquire x -> 5
			11..12  a  release x
			0..40   b  acquire x -> 9
			50..60  b  release x`},
		{"a mutex does not look at tokens", mutex, Valid, "", "", `
			0..10   a  acquire x -> 5
			11..12  a  release x
			13..40  b  acquire x -> 3
			50..60  b  release x`},
		{"tokens against the order of time", fenced, Invalid, "no order", "a acquire, a release, b acquire, b release", `
			0..10   a  acquire x -> 5
			11..12  a  release x
			13..40  b  acquire x -> 3
			50..60  b  release x
			61..62  c  acquire x -> 20
			70..71  c  release x`},
		{"only one order of tokens is right, and there is none", fenced, Invalid, "no order", "", `
			0..10   a  acquire x -> 5
			20..21  a  release x
			0..40   b  acquire x -> 4
			50..60  b  release x`},
		{"two ends in one entry, then two grants", rw, Valid, "", "", `
			0..10   a  acquire x mode=shared -> 5
			0..10   b  acquire x mode=shared -> 5
			20..30  a  release x
			20..30  b  release x
			11..30  c  acquire x mode=shared -> 9
			11..30  d  acquire x mode=shared -> 9
			40..50  c  release x
			40..50  d  release x`},
		{"the same, for a grant of several locks that had to wait for both", rw, Valid, "", "", `
			0..10   a  acquire x -> 5
			0..10   b  acquire y -> 5
			11..30  c  acquire locks=x,y -> ok locks=x:9,y:9
			12..44  d  acquire y -> 12
			20..30  b  release y
			20..30  a  release x
			40..43  c  release
			50..51  d  release y`},
		{"a writer among readers", rw, Invalid, "no order", "", `
			0..10   a  acquire x mode=shared -> 5
			0..10   b  acquire x mode=shared -> 5
			20..30  a  release x
			11..30  c  acquire x mode=exclusive -> 9
			40..50  b  release x
			60..61  c  release x`},
		{"readers with different tokens in one period", rw, Invalid, "no order", "", `
			0..10   a  acquire x mode=shared -> 5
			11..12  b  acquire x mode=shared -> 7
			20..30  a  release x
			40..50  b  release x`},
		{"readers of two periods", rw, Valid, "", "", `
			0..10   a  acquire x mode=shared -> 5
			20..30  a  release x
			11..32  b  acquire x mode=shared -> 7
			40..50  b  release x`},
		{"a reader with the token of a writer", rw, Invalid, "no order", "", `
			0..10   a  acquire x -> 5
			20..30  a  release x
			11..32  b  acquire x mode=shared -> 5
			40..50  b  release x`},
		{"a reader becomes a writer", rw, Valid, "", "", `
			0..10   a  acquire x mode=shared -> 5
			0..11   b  acquire x mode=shared -> 5
			12..40  a  convert x mode=exclusive token=5 -> 9
			20..30  b  release x
			50..60  a  release x
			13..70  c  acquire x mode=shared -> 11
			80..81  c  release x`},
		{"a reader becomes a writer beside another", rw, Invalid, "no order", "a acquire, b acquire, a convert, b release, a release", `
			0..10   a  acquire x mode=shared -> 5
			0..11   b  acquire x mode=shared -> 5
			12..20  a  convert x mode=exclusive token=5 -> 9
			25..30  b  release x
			50..60  a  release x`},
		{"a writer becomes a reader, and lets others in", rw, Valid, "", "", `
			0..10   a  acquire x -> 5
			12..20  a  convert x mode=shared token=5 -> 9
			11..19  b  acquire x mode=shared -> 9
			25..30  b  release x
			50..60  a  release x`},
		{"in another period", rw, Invalid, "no order", "", `
			0..10   a  acquire x -> 5
			12..20  a  convert x mode=shared token=5 -> 9
			21..24  b  acquire x mode=shared -> 11
			25..30  b  release x
			50..60  a  release x`},
		{"another writer came in between", rw, Invalid, "no order", "", `
			0..10   a  acquire x mode=shared -> 5
			12..40  a  convert x mode=exclusive token=5 -> 9
			13..20  b  acquire x -> 7
			21..22  b  release x
			50..60  a  release x`},
		{"a conversion without a new token", rw, Invalid, "no order", "", `
			0..10   a  acquire x mode=shared -> 5
			12..20  a  convert x mode=exclusive token=5 -> 5
			50..60  a  release x`},
		{"the old hold is gone with the conversion", rw, Invalid, "no order", "", `
			0..10   a  acquire x -> 5
			12..20  a  convert x mode=shared token=5 -> 9
			21..24  b  acquire x -> 11
			25..30  b  release x
			50..60  a  release x`},
		{"refused, it changes nothing", rw, Invalid, "no order", "", `
			0..10   a  acquire x -> 5
			12..20  a  convert x mode=shared token=5 -> fail
			21..24  b  acquire x mode=shared -> 9
			50..60  a  release x
			70..71  b  release x`},
		{"of a conversion of which nobody knows nothing is believed", rw, Valid, "", "", `
			0..10   a  acquire x -> 5
			12..20  a  convert x mode=shared token=5 -> info
			21..24  b  acquire x mode=shared -> 9
			25..26  b  release x`},
		{"permits", semaphore, Valid, "", "", `
			0..10   a  acquire x mode=shared limit=2 -> 5
			0..10   b  acquire x mode=shared limit=2 -> 5
			20..30  a  release x
			11..30  c  acquire x mode=shared limit=2 -> 5
			40..50  c  release x
			40..50  b  release x`},
		{"a permit too many", semaphore, Invalid, "no order", "a acquire, b acquire, c acquire, a release, b release, c release", `
			0..10   a  acquire x mode=shared limit=2 -> 5
			0..10   b  acquire x mode=shared limit=2 -> 5
			20..30  a  release x
			11..19  c  acquire x mode=shared limit=2 -> 5
			40..50  b  release x
			45..46  c  release x`},
		{"the smallest limit counts", semaphore, Invalid, "no order", "", `
			0..10   a  acquire x mode=shared limit=2 -> 5
			0..10   b  acquire x mode=shared limit=9 -> 5
			11..19  c  acquire x mode=shared limit=9 -> 5
			20..30  a  release x
			40..50  b  release x
			40..50  c  release x`},
		{"an expired permit may have ended, or be released after all", semaphore, Valid, "", "", `
			0..10   a  acquire x mode=shared limit=1 session=s -> 5 lease=15
			11..19  b  acquire x mode=shared limit=1 session=t -> 9 lease=90
			20..30  a  release x
			40..50  b  release x`},
		{"a look at the holder", fenced, Valid, "", "", `
			0..10   a  acquire x -> 5
			11..12  b  look x -> 5
			20..30  a  release x
			31..32  b  look x -> 0`},
		{"a look at a holder that was", fenced, Invalid, "no order", "", `
			0..10   a  acquire x -> 5
			20..30  a  release x
			31..32  b  look x -> 5`},
		{"a look that does not see the holder", fenced, Invalid, "no order", "", `
			0..10   a  acquire x -> 5
			11..12  b  look x -> 0
			20..30  a  release x`},
		{"a look at who never got the answer", fenced, Valid, "", "", `
			0..10   a  acquire x -> info
			11..12  b  look x -> 5
			13..40  c  acquire x -> 9
			50..51  c  release x`},
		{"two looks at who never got the answer", fenced, Valid, "", "", `
			0..10   a  acquire x -> info
			11..12  b  look x -> 5
			13..14  b  look x -> 5
			15..40  c  acquire x -> 9
			50..51  c  release x`},
		{"a look at an unknown holder with an old token", fenced, Invalid, "no order", "", `
			0..10   c  acquire x -> 9
			11..12  c  release x
			13..14  b  look x -> 5`},
		{"each lock by itself", fenced, Valid, "", "", `
			0..10   a  acquire x -> 5
			0..10   b  acquire y -> 5
			20..30  a  release x
			20..30  b  release y`},
		{"unknown outcomes only", fenced, Unknown, "no calls", "", `
			0..10   a  acquire x -> info
			0..10   b  acquire x -> info`},
		{"no time", Linearizable{Model: "mutex", Limit: -1}, Unknown, "2 of 2 calls were not judged", "", `
			0..10   a  acquire x -> 5
			20..30  a  release x`},
	})
}

// A fault in the midst of a long history is found, and what is shown is short.
func TestLinearizableShowsLittle(t *testing.T) {
	var text strings.Builder
	for i := range 2000 {
		at := 100 * i
		fmt.Fprintf(&text, "%d..%d a acquire x -> %d\n%d..%d a release x\n", at+5, at+10, i+1, at+20, at+30)
		fmt.Fprintf(&text, "%d..%d b acquire x -> fail\n", at+11, at+12)
	}
	fmt.Fprintln(&text, "100011..100015 c acquire x -> 5001\n 100016..100017 c release x")
	v := Linearizable{Model: "mutex"}.Check(parse(t, text.String()))
	if v.Outcome != Invalid || len(v.Shown) > 8 || v.Figures["windows"] < 3000 {
		t.Errorf("%+v", v)
	}
}

// A history that goes on without a pause is cut at the holds; a lock server that was simulated makes no illegal ones.
// With and without cuts the verdict is the same, also when something was changed.
func TestWindowsChangeNoVerdict(t *testing.T) {
	found := map[string]int{}
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 5))
		ops := simulate(random, 3+random.IntN(3), 6, random.IntN(5))
		changed := seed%2 == 1
		if changed {
			spoil(random, ops)
		}
		operations, err := history.Pair(ops)
		if err != nil {
			found["cannot be"]++
			continue
		}
		r := rules{holds: gather(ops, operations), tokens: seed%4 < 2}
		calls := r.calls("x", operations)
		whole, unknown := r.illegal(lockState{}, calls, 10*time.Second)
		if unknown {
			t.Fatalf("seed %d: no verdict", seed)
		}
		windows := r.windows(slices.Clone(calls))
		parts, judged := false, 0
		for _, w := range windows {
			illegal, _ := r.illegal(w.init, w.calls, 10*time.Second)
			parts = parts || illegal
			judged += len(w.calls)
		}
		if judged != len(calls) {
			t.Errorf("seed %d: %d calls became %d", seed, len(calls), judged)
		}
		if whole && !changed {
			t.Errorf("seed %d: a right history was found illegal", seed)
		}
		// The cuts may see more: that somebody got the lock while another believed in it, where a whole order would let
		// the other's belief end early.
		if whole && !parts || parts && !whole && (Exclusion{}).Check(ops).Outcome != Invalid {
			t.Errorf("seed %d: illegal as a whole: %v, in parts: %v", seed, whole, parts)
		}
		found[fmt.Sprintf("changed %v illegal %v", changed, parts)]++
		found["windows"] += len(windows)
		found["whole"]++
	}
	t.Log(found)
	if found["changed true illegal true"] < 100 || found["changed true illegal false"] < 100 || found["windows"] < 4*found["whole"] {
		t.Errorf("too little was tried: %v", found)
	}
}

// simulate makes the history of a right lock with that many clients, some of them readers or permit holders (kind 1, 2)
// or onlookers (3), or readers and writers who change their mode (4), in integers of milliseconds.
func simulate(random *rand.Rand, clients, rounds, kind int) []history.Op {
	type client struct {
		state string
		next  int
		token uint64
		mode  string
	}
	var (
		ops   []history.Op
		all   = make([]client, clients)
		index = uint64(1)
		now   = 0
		queue []int
	)
	record := func(i int, f string, kind history.Type, token uint64) {
		mode, limit := all[i].mode, int64(0)
		if kind := all[i].mode; kind == "permit" {
			mode, limit = shared, 2
		}
		ops = append(ops, history.Op{Index: len(ops), Time: time.Duration(now), Process: i, Type: kind, F: f, Lock: "x", Mode: mode, Limit: limit, Token: token})
	}
	holders := func() (exclusives, shareds int, period uint64) {
		for _, c := range all {
			if c.state == "granted" || c.state == "holding" || c.state == "releasing" || strings.HasPrefix(c.state, "convert") {
				if c.mode == exclusive {
					exclusives++
				} else {
					shareds++
					period = c.token
				}
			}
		}
		return exclusives, shareds, period
	}
	grant := func() {
		for len(queue) > 0 {
			c := &all[queue[0]]
			exclusives, shareds, period := holders()
			if exclusives > 0 || c.mode == exclusive && shareds > 0 || c.mode == "permit" && shareds >= 2 {
				return
			}
			index++
			c.state, c.token, c.next = "granted", index, now+1+random.IntN(8)
			if shareds > 0 {
				c.token = period
			}
			queue = queue[1:]
		}
	}
	for range rounds * clients * 12 {
		now++
		for i := range all {
			c := &all[i]
			if c.next > now {
				continue
			}
			delay := 1 + random.IntN(8)
			switch c.state {
			case "": // idle
				c.mode = exclusive
				if (kind == 1 || kind == 4) && random.IntN(2) == 0 {
					c.mode = shared
				} else if kind == 2 {
					c.mode = "permit"
				}
				if kind == 3 && i == 0 {
					record(i, history.Look, history.Invoke, 0)
					c.state = "looking"
					break
				}
				record(i, history.Acquire, history.Invoke, 0)
				c.state = "asking"
			case "asking":
				queue = append(queue, i)
				c.state, delay = "waiting", 1<<30
				c.next = now + delay
				grant()
				delay = c.next - now
			case "granted":
				record(i, history.Acquire, history.OK, c.token)
				c.state = "holding"
			case "holding":
				if random.IntN(8) == 0 { // lost: the server ends it, but not before the holder stops to believe
					record(i, history.Lost, history.Info, 0)
					ops[len(ops)-1].Lease = time.Duration(now)
					c.state = ""
					grant()
					break
				}
				if kind == 4 && random.IntN(2) == 0 {
					c.mode = map[string]string{exclusive: shared, shared: exclusive}[c.mode]
					record(i, history.Convert, history.Invoke, c.token)
					c.mode = map[string]string{exclusive: shared, shared: exclusive}[c.mode] // not yet
					c.state = "converting"
					break
				}
				record(i, history.Release, history.Invoke, c.token)
				c.state = "releasing"
			case "converting": // at most as long as others hold it, and not at all beside another one
				if _, shareds, _ := holders(); c.mode == shared && shareds > 1 && random.IntN(3) > 0 {
					break
				} else if c.mode == shared && shareds > 1 {
					c.state = "convert refused"
					break
				}
				index++
				c.token, c.state = index, "converted"
				c.mode = map[string]string{exclusive: shared, shared: exclusive}[c.mode]
				grant()
			case "convert refused", "converted":
				kind := history.OK
				if c.state == "convert refused" {
					kind = history.Fail
				}
				record(i, history.Convert, kind, c.token)
				c.state = "holding"
			case "releasing":
				c.state = "released"
				grant()
			case "released":
				record(i, history.Release, history.OK, c.token)
				c.state = ""
			case "looking":
				c.token, c.state = 0, "seen"
				for _, other := range all[1:] {
					if other.state == "granted" || other.state == "holding" || other.state == "releasing" {
						c.token = other.token
					}
				}
			case "seen":
				record(i, history.Look, history.OK, c.token)
				c.state, c.token = "", 0
			}
			c.next = now + delay
		}
	}
	return ops
}

// spoil changes the history a little.
func spoil(random *rand.Rand, ops []history.Op) {
	for range 1 + random.IntN(4) {
		i := random.IntN(len(ops))
		switch random.IntN(3) {
		case 0:
			if ops[i].Type == history.OK {
				ops[i].Token = uint64(random.IntN(int(ops[i].Token) + 3))
			}
		case 1: // a neighbour's place
			if i+1 < len(ops) && ops[i].Process != ops[i+1].Process {
				ops[i], ops[i+1] = ops[i+1], ops[i]
				ops[i].Index, ops[i+1].Index = ops[i+1].Index, ops[i].Index
				ops[i].Time, ops[i+1].Time = ops[i+1].Time, ops[i].Time
			}
		case 2: // later belief
			if ops[i].F == history.Lost {
				ops[i].Lease += time.Duration(random.IntN(20))
			}
		}
	}
}
