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
	a := &Acquire{Session: 1, Number: x.number, Wait: wait, Task: task, Locks: []Want{parseWant(lock)}}
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
	{"chain-closed", 2000, tasks.chain, "t0", "c/%d", Deadlock, linear(7)},
	{"chain-semaphore", 2000, func(x tasks, n int) {
		x.chain(n)
		x.ask(OK, fmt.Sprint("t", n), "s:shared:2", 0)
		x.ask(OK, "idle", "s:shared:2", 0)
	}, "t0", "s:shared:2", Queued, linear(7)},
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
