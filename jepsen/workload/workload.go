package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pawl-lock/pawl/jepsen/check"
	"github.com/pawl-lock/pawl/jepsen/cluster"
	"github.com/pawl-lock/pawl/jepsen/history"
)

// Workload is one kind of work. It has no state: what clients share is in the Env.
type Workload interface {
	Name() string
	// Locks are the names that clients contend for. After all faults each must be free for who wants it.
	Locks() []string
	// Client does the work of one client until ctx ends, and then gives back what it holds. It must not end earlier.
	Client(ctx context.Context, e *Env)
	// Final reads what is left when all clients have ended.
	Final(ctx context.Context, e *Env)
	// Checkers judge the history.
	Checkers() []check.Checker
	// MustFail names the checker that this workload exists to have fail under client pauses; "" for none.
	MustFail() string
}

// Writes tells whether clients of a workload use the Store.
func Writes(w Workload) bool {
	switch w.(type) {
	case fenced, lockset, several:
		return true
	}
	return false
}

// All are the workloads, by name.
func All() []Workload {
	return []Workload{mutex{}, fenced{}, unfenced(), lockset{}, readWrite{}, semaphore{}, several{}, fair{}, sessions{}, requests{}, election{}, reads{}}
}

// ordinary is embedded by workloads that must pass.
type ordinary struct{}

func (ordinary) MustFail() string { return "" }

// ByName gives one of them.
func ByName(name string) (Workload, error) {
	all := All()
	var names []string
	for _, w := range all {
		if w.Name() == name {
			return w, nil
		}
		names = append(names, w.Name())
	}
	return nil, fmt.Errorf("there is no workload %q; there are %v", name, names)
}

// Env is what one client of a run works with.
type Env struct {
	Client  cluster.Client
	Index   int // of this client, from 0
	Clients int // there are, those of the final phase included
	Rand    *rand.Rand
	History *history.History
	Now     func() time.Duration
	Sleep   func(ctx context.Context, d time.Duration) error
	// Rate is how many rounds (acquire, work, release) each client tries to do in a second.
	Rate float64
	// Exact says that a timer of a client is never late: what it says about the end of a lease is then true to the moment.
	Exact bool
	Store Store

	process int      // the present one
	numbers *numbers // that are used up
}

// numbers gives out what is used once in a run. The forks of one client share it.
type numbers struct {
	mu   sync.Mutex
	last int64
}

func (n *numbers) next() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	return n.last
}

// Begin prepares the Env for its client: it must be called once, before its use.
func (e *Env) Begin() { e.numbers, e.process = &numbers{}, e.Index }

// value is a number that nobody else gets, above 0.
func (e *Env) value() int64 { return e.numbers.next()*int64(e.Clients) + int64(e.Index) }

// fork gives the Env of a process that the client runs beside its present one, with chance of its own.
func (e *Env) fork() *Env {
	fork := *e
	fork.process = int(e.value())
	fork.Rand = rand.New(rand.NewPCG(e.Rand.Uint64(), e.Rand.Uint64()))
	return &fork
}

// begin records an invocation and gives it for its completion.
func (e *Env) begin(op history.Op) history.Op {
	op.Type, op.Process = history.Invoke, e.process
	e.History.Add(op)
	return op
}

// end records a completion. After Info another process takes over.
func (e *Env) end(op history.Op, outcome history.Type, err error) {
	op.Type = outcome
	if err != nil {
		op.Error = short(err)
	}
	e.History.Add(op)
	if outcome == history.Info && op.Process == e.process {
		e.process = int(e.value())
	}
}

// point is where a pause of this client hurts.
func (e *Env) point(ctx context.Context) { e.Client.Point(ctx) }

// between is a duration from least to most.
func (e *Env) between(least, most time.Duration) time.Duration {
	return least + time.Duration(e.Rand.Float64()*float64(most-least))
}

// one says yes once in so many times.
func (e *Env) one(in int) bool { return e.Rand.IntN(in) == 0 }

// rest waits until the next round is due; false when ctx has ended.
func (e *Env) rest(ctx context.Context) bool {
	d := time.Duration(e.Rand.ExpFloat64() / e.Rate * float64(time.Second))
	_ = e.Sleep(ctx, min(d, 20*time.Second))
	e.point(ctx)
	return ctx.Err() == nil
}

func pickOne(e *Env, names []string) string { return names[e.Rand.IntN(len(names))] }

// some are so many of the names, without order.
func some(e *Env, names []string, count int) []string {
	names = slices.Clone(names)
	e.Rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names[:count]
}

// short is an error as a history shows it.
func short(err error) string {
	text := strings.ReplaceAll(err.Error(), "\n", ": ")
	return text[:min(len(text), 200)]
}
