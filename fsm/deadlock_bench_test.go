package fsm

import (
	"fmt"
	"strings"
	"testing"
)

// tasks is a state full of waiting tasks, for measuring what one deadlock check costs (R7).
type tasks struct {
	*bench
}

func (x tasks) ask(code Code, task, lock string, wait uint64) uint64 {
	x.number++
	a := &Acquire{Session: 1, Number: x.number, Wait: wait, Task: task}
	for _, w := range strings.Fields(lock) {
		a.Locks = append(a.Locks, parseWant(w))
	}
	if r := x.do(step{commands: []Command{a}}); r.Outcomes[0].Code != code {
		x.b.Fatalf("%s for %s: %+v", lock, task, r.Outcomes[0])
	}
	return x.number
}

// hotQueue has n tasks, each with a lock of its own, wait for one lock.
func (x tasks) hotQueue(n int) {
	x.ask(OK, "holder", "hot", 0)
	for i := range n {
		x.ask(OK, fmt.Sprint("t", i), fmt.Sprint("own/", i), 0)
		x.ask(Queued, fmt.Sprint("t", i), "hot", MaxWait)
	}
}

// chain has each of n tasks hold a lock and wait for that of the one before.
func (x tasks) chain(n int) {
	x.ask(OK, "t0", "a", 0)
	for i := range n + 1 {
		x.ask(OK, fmt.Sprint("t", i), fmt.Sprint("c/", i), 0)
	}
	for i := n; i > 0; i-- { // in this order nothing is far to follow
		x.ask(Queued, fmt.Sprint("t", i), fmt.Sprint("c/", i-1), MaxWait)
	}
}

func (x tasks) hotQueueAndNew(n int) {
	x.hotQueue(n)
	x.ask(OK, "new", "mine", 0)
}

func (x tasks) chainAndNew(n int) {
	x.chain(n)
	x.ask(OK, "new", "mine", 0)
}

// share has n tasks hold one of five shared locks each and wait for the next one exclusively, but for the last ones.
func (x tasks) share(n int) {
	for i := range n {
		x.ask(OK, fmt.Sprint("t", i), fmt.Sprintf("r/%d:shared", i%5), 0)
	}
	for i := range n {
		if i%5 != 4 {
			x.ask(Queued, fmt.Sprint("t", i), fmt.Sprintf("r/%d", i%5+1), MaxWait)
		}
	}
}

// permits has n tasks, which is even, and two more hold one of two permits each and wait for one of the semaphore before;
// t1 does not wait.
func (x tasks) permits(n int) {
	semaphore := func(i int) string { return fmt.Sprintf("p/%d:shared:2", i/2*2) }
	for i := range n + 2 {
		x.ask(OK, fmt.Sprint("t", i), semaphore(i), 0)
	}
	for i := n + 1; i >= 2; i-- {
		x.ask(Queued, fmt.Sprint("t", i), semaphore(i-2), MaxWait)
	}
	x.ask(Queued, "t0", semaphore(n), MaxWait)
}

// several has n tasks that hold a lock each wait for a lock that they share and the one of the task before, in groups that
// the quota allows: all of a group stand through the shared one.
func (x tasks) several(n int) {
	group := int(DefaultLimits.Multiple)
	for i := range n + 1 {
		x.ask(OK, fmt.Sprint("t", i), fmt.Sprint("z/", i), 0)
	}
	for i := n; i > 0; i-- {
		x.ask(Queued, fmt.Sprint("t", i), fmt.Sprintf("g/%d:shared z/%d", i/group, i-1), MaxWait)
	}
}

// tangle has each of n tasks hold a lock and wait for that of the one before, and for one lock that all want.
func (x tasks) tangle(n int) {
	x.chain(n)
	x.ask(OK, "holder", "hot", 0)
	for i := range n {
		x.ask(Queued, fmt.Sprint("t", i+1), "hot", MaxWait)
	}
	x.ask(OK, "new", "mine", 0)
}

// deadlockCosts are the situations in which a check is measured: how they come about with n tasks, the request, its answer,
// and how many steps it may take for n tasks; a check that would take more than its bound gives up, and the request waits.
var deadlockCosts = []struct {
	name  string
	n     int
	build func(tasks, int)
	task  string
	lock  string // %d is n, less one for a queue
	code  Code
	steps func(n int) int
}{
	{"hot-queue", 10_000, tasks.hotQueueAndNew, "new", "hot", Queued, constant(3)},
	{"hot-queue-behind", 10_000, tasks.hotQueueAndNew, "new", "own/1", Queued, constant(5)},
	{"hot-queue-closed", 9900, tasks.hotQueue, "holder", "own/2", Deadlock, linear(2)},
	{"chain", 10_000, tasks.chainAndNew, "new", "c/%d", Queued, linear(3)},
	{"chain-closed", 1400, tasks.chain, "t0", "c/%d", Deadlock, linear(7)},
	{"chain-semaphore", 1400, func(x tasks, n int) {
		x.chain(n)
		x.ask(OK, fmt.Sprint("t", n), "s:shared:2", 0)
		x.ask(OK, "idle", "s:shared:2", 0)
	}, "t0", "s:shared:2", Queued, linear(7)},
	{"tangle", 10_000, tasks.tangle, "new", "hot", Queued, func(int) int { return deadlockSteps + 5 }},
	{"share-closed", 2000, tasks.share, "t4", "r/0", Deadlock, linear(7)},
	{"permits-closed", 1200, tasks.permits, "t1", "p/%d:shared:2", Deadlock, linear(10)},
	{"several-closed", 1800, tasks.several, "t0", "z/%d", Deadlock, linear(12)},
}

func constant(n int) func(int) int { return func(int) int { return n } }

func linear(factor int) func(int) int { return func(n int) int { return factor*n + 20 } }

// BenchmarkDeadlock measures one check (and, where the request may wait, its cancel).
func BenchmarkDeadlock(b *testing.B) {
	for _, c := range deadlockCosts {
		b.Run(fmt.Sprintf("%s=%d", c.name, c.n), func(b *testing.B) {
			x := tasks{newBench(b)}
			c.build(x, c.n)
			b.ReportAllocs()
			for b.Loop() {
				n := x.ask(c.code, c.task, strings.ReplaceAll(c.lock, "%d", fmt.Sprint(c.n)), MaxWait)
				if c.code == Queued {
					x.do(step{commands: []Command{&Cancel{Session: 1, Number: n}}})
				}
			}
		})
	}
}

// TestDeadlockSteps counts what BenchmarkDeadlock measures: a queue costs nothing to stand in, a chain in proportion to its
// length, and nothing more than the bounds.
func TestDeadlockSteps(t *testing.T) {
	for _, c := range deadlockCosts {
		t.Run(c.name, func(t *testing.T) {
			for _, n := range []int{10, 500} {
				x := tasks{newBench(t)}
				c.build(x, n)
				x.ask(c.code, c.task, strings.ReplaceAll(c.lock, "%d", fmt.Sprint(n)), MaxWait)
				if steps := entrySteps - x.s.steps; steps == 0 || steps > c.steps(n) {
					t.Errorf("%d steps with %d tasks, want at most %d", steps, n, c.steps(n))
				}
				if c.code != Deadlock || raced {
					continue
				}
				again := func() { x.ask(c.code, c.task, strings.ReplaceAll(c.lock, "%d", fmt.Sprint(n)), MaxWait) }
				if allocs := testing.AllocsPerRun(3, again); allocs > 100 {
					t.Errorf("%v allocations with %d tasks", allocs, n)
				}
			}
		})
	}
}

// TestDeadlockBounds lets a check that would take too long go, and does no more than an entry may for many of them (R3, R7).
func TestDeadlockBounds(t *testing.T) {
	const n = deadlockSteps/3 + 100
	x := tasks{newBench(t)}
	x.chain(n)
	x.ask(Queued, "t0", fmt.Sprint("c/", n), MaxWait)
	if steps := entrySteps - x.s.steps; steps < deadlockSteps || steps > deadlockSteps+5 {
		t.Errorf("%d steps", steps)
	}
	var st step
	for range 10 {
		x.number++
		st.commands = append(st.commands, &Acquire{Session: 1, Number: x.number, Wait: MaxWait, Task: fmt.Sprint("t", n), Locks: []Want{parseWant("a")}})
	}
	r := x.do(st)
	if x.s.steps < -10 || x.s.steps > 0 {
		t.Errorf("%d steps are left", x.s.steps)
	}
	for _, o := range r.Outcomes {
		if o.Code != Queued {
			t.Errorf("%+v", o)
		}
	}
}

// TestDeadlockLooks lets a check go whose play-out would take too long, though it takes few steps to gather what it is
// about: one after the other comes to stand at a lock ahead of all who stand there (R3, R7).
func TestDeadlockLooks(t *testing.T) {
	for _, c := range []struct {
		n    int
		code Code
	}{{20, Deadlock}, {400, Queued}} {
		x := tasks{newBench(t)}
		x.ask(OK, "judged", "x", 0)
		x.ask(OK, "judged", "s:shared:2", 0)
		x.ask(OK, "idle", "s:shared:2", 0)
		x.ask(OK, "stuck", "y", 0)
		x.ask(Queued, "stuck", "x", MaxWait)
		for i := range c.n {
			x.ask(OK, fmt.Sprint("h", i), fmt.Sprintf("a/%d", i), 0)
			x.ask(OK, fmt.Sprint("h", i), fmt.Sprintf("b/%d", i), 0)
		}
		for i := range c.n {
			x.ask(Queued, fmt.Sprint("r", i), fmt.Sprintf("a/%d w:shared x", i), MaxWait)
		}
		x.ask(Queued, fmt.Sprint("h", c.n-1), "s:shared:2", MaxWait)
		for i := c.n - 1; i > 0; i-- {
			x.ask(Queued, fmt.Sprint("h", i-1), fmt.Sprintf("b/%d", i), MaxWait)
		}
		x.ask(c.code, "judged", "b/0 y", MaxWait)
		if looks := x.s.board.looks; looks < c.n || looks > maxLooks+1 {
			t.Errorf("%d looks with %d tasks", looks, c.n)
		}
		if used := entrySteps - x.s.steps; used < x.s.board.looks/looksPerStep || used > 2*deadlockSteps {
			t.Errorf("%d steps with %d tasks", used, c.n)
		}
	}
}
