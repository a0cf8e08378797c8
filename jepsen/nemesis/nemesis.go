package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/pawl-lock/pawl/jepsen/cluster"
	"github.com/pawl-lock/pawl/jepsen/history"
)

// Options say which faults there are to be. Durations are on the cluster's clock.
type Options struct {
	Fault   string // one of Names, or several with + between
	Seed    uint64
	Clients int
	// Lease is the longest that a client believes to hold a lock without hearing from the cluster.
	Lease time.Duration
	// Quiet is how long there is no fault after one has ended, and Length how long it lasts, on average: each time it
	// is between half of it and one and a half. Defaults 5 s and 8 s.
	Quiet, Length time.Duration
	// Patience is how long nodes may take to be in step, and to be ready at the end: 60 s by default.
	Patience time.Duration
}

// Report says what was done.
type Report struct {
	Begun map[string]int // how often each fault began
	// Unsupported are faults that this kind of cluster cannot make: a run with such proves nothing about them.
	Unsupported []string
	// Skipped counts faults that were due and could not be made safely, or hit nobody.
	Skipped map[string]int
	// Failed is what went wrong with the making or the healing of faults, and nodes that ended by themselves without
	// a fault that would explain it.
	Failed []string
}

const (
	mostAtOnce  = 3      // faults at a time when they are mixed
	mostFaults  = 10_000 // in a run
	mostFailed  = 100    // lines of Failed
	shortestGap = 10 * time.Millisecond
)

type nemesis struct {
	run     context.Context
	ctx     context.Context // run, and when that has ended, what is left for healing
	cluster cluster.Cluster
	history *history.History
	options Options
	random  *rand.Rand
	report  Report

	mixed   bool
	choice  []fault // what may still be chosen
	active  []*active
	started uint64
}

// active is a fault that has begun.
type active struct {
	fault
	act
	number   uint64
	endAt    time.Duration
	stepAt   time.Duration
	gaveUp   bool // it was begun in part only
	finished bool
}

// Run makes faults until ctx ends, then ends them all, and waits until the cluster is whole: every node runs and is
// ready. When the run is broken off (see cluster.BrokenOff) it does not wait. Run it in a goroutine of its own; nobody else
// may make faults meanwhile. The error is that of an unknown name, or ErrUnsupported when the cluster can make none of
// the faults.
func Run(ctx context.Context, c cluster.Cluster, h *history.History, o Options) (Report, error) {
	list, err := chosen(o.Fault)
	if err != nil {
		return Report{}, err
	}
	if o.Quiet <= 0 {
		o.Quiet = 5 * time.Second
	}
	if o.Length <= 0 {
		o.Length = 8 * time.Second
	}
	if o.Patience <= 0 {
		o.Patience = 60 * time.Second
	}
	n := &nemesis{
		run: ctx, ctx: ctx, cluster: c, history: h, options: o, choice: list, mixed: len(list) > 1,
		random: rand.New(rand.NewPCG(o.Seed, 0x6e656d65736973)),
		report: Report{Begun: map[string]int{}, Skipped: map[string]int{}},
	}
	n.schedule()
	n.heal()
	if len(list) > 0 && len(n.choice) == 0 {
		return n.report, fmt.Errorf("%s: %w", o.Fault, cluster.ErrUnsupported)
	}
	return n.report, nil
}

// schedule begins, steps and ends faults, each when its time has come, until ctx ends.
func (n *nemesis) schedule() {
	next := n.cluster.Now() + n.about(n.options.Quiet)
	for n.ctx.Err() == nil {
		now := n.cluster.Now()
		wake := next
		for _, a := range slices.Clone(n.active) {
			switch {
			case now >= a.endAt:
				n.end(a)
				if len(n.active) == 0 {
					next = max(next, n.cluster.Now()+n.about(n.options.Quiet))
				}
			case a.step != nil && now >= a.stepAt:
				again, err := a.step()
				n.failed(a.note, err)
				a.stepAt = n.cluster.Now() + max(again, shortestGap)
			}
			if !a.finished {
				wake = min(wake, a.endAt)
				if a.step != nil {
					wake = min(wake, a.stepAt)
				}
			}
		}
		if now >= next && len(n.choice) > 0 {
			n.beginOne()
			next = n.cluster.Now() + n.about(n.options.Quiet)
			continue
		}
		if len(n.choice) == 0 && len(n.active) == 0 {
			if len(n.report.Unsupported) > 0 && len(n.report.Begun) == 0 {
				return // there never will be a fault: the run is for nothing
			}
			wake = now + time.Hour
		}
		if wait := wake - n.cluster.Now(); wait > 0 && n.cluster.Sleep(n.ctx, wait) != nil {
			return
		}
	}
}

// about gives a duration between half of the mean and one and a half.
func (n *nemesis) about(mean time.Duration) time.Duration {
	return mean/2 + time.Duration(n.random.Int64N(int64(mean)+1))
}

// beginOne begins one of the faults that may be begun now.
func (n *nemesis) beginOne() {
	most := 1
	if n.mixed {
		most = mostAtOnce
	}
	if len(n.active) >= most || n.started >= mostFaults {
		return
	}
	var free []fault
	for _, f := range n.choice {
		if f.part == everything && len(n.active) > 0 {
			continue
		}
		if !slices.ContainsFunc(n.active, func(a *active) bool { return a.part == f.part || a.part == everything }) {
			free = append(free, f)
		}
	}
	if len(free) == 0 {
		return
	}
	f := free[n.random.IntN(len(free))]
	plan := f.plan(n)
	if plan == nil || (f.part == everything && !n.inStep()) {
		n.report.Skipped[f.name]++
		return
	}
	n.started++
	a := &active{fault: f, act: *plan, number: n.started}
	a.note = strings.TrimSpace(f.name + " " + plan.note)
	n.announce(a, history.Begin, nil)
	err := a.begin()
	now := n.cluster.Now()
	a.stepAt, a.endAt = now, now+a.lasts
	if a.lasts == 0 {
		a.endAt = now + n.about(n.options.Length)
	}
	n.active = append(n.active, a)
	switch {
	case err == nil:
		n.report.Begun[f.name]++
		return
	case errors.Is(err, cluster.ErrUnsupported):
		n.choice = slices.DeleteFunc(n.choice, func(other fault) bool { return other.name == f.name })
		n.report.Unsupported = append(n.report.Unsupported, f.name)
	default:
		n.failed(a.note, err)
	}
	a.gaveUp = true
	n.end(a)
}

// end ends a fault, and starts the nodes that do not run.
func (n *nemesis) end(a *active) {
	err := a.act.end()
	if a.gaveUp && errors.Is(err, cluster.ErrUnsupported) {
		err = nil
	}
	n.failed(a.note, err)
	a.finished = true
	n.active = slices.DeleteFunc(n.active, func(other *active) bool { return other == a })
	explained := a.part == nodes || a.part == everything
	down := slices.ContainsFunc(n.active, func(other *active) bool { return other.part == nodes })
	for i := range n.cluster.Size() {
		if down || n.cluster.Runs(i) {
			continue
		}
		if !explained {
			n.failed(a.note, fmt.Errorf("%s ended by itself", n.name(i)))
		}
		if startErr := n.cluster.Start(i); startErr != nil {
			n.failed(a.note, fmt.Errorf("starting %s: %w", n.name(i), startErr))
		}
	}
	n.announce(a, history.End, err)
}

// heal ends what is still there, and waits until the cluster is whole.
func (n *nemesis) heal() {
	ctx, cancel := n.patiently()
	defer cancel()
	n.ctx = ctx
	for _, a := range slices.Backward(slices.Clone(n.active)) {
		n.end(a)
	}
	n.failed("healing", n.cluster.Heal())
	for i := range n.cluster.Size() {
		if !n.cluster.Runs(i) {
			n.failed("healing", fmt.Errorf("%s ended by itself", n.name(i)))
			n.failed("healing", n.cluster.Start(i))
		}
	}
	if err := n.cluster.Ready(ctx); err != nil && !cluster.BrokenOff(n.run) {
		n.failed("healing", fmt.Errorf("not ready within %v: %w", n.options.Patience, err))
	}
}

// patiently gives a context for healing: the run may be over, but not be broken off. Its timeout is of the cluster's time where
// that is virtual.
func (n *nemesis) patiently() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.run), n.options.Patience)
	stop := context.AfterFunc(n.run, func() {
		if cluster.BrokenOff(n.run) {
			cancel()
		}
	})
	return ctx, func() {
		stop()
		cancel()
	}
}

func (n *nemesis) announce(a *active, value int64, err error) {
	op := history.Op{Process: history.Nemesis, Type: history.Info, F: history.Fault, Note: a.note, Sequence: a.number, Value: value}
	if err != nil {
		op.Error = err.Error()
	}
	n.history.Add(op)
}

func (n *nemesis) failed(what string, err error) {
	if err != nil && len(n.report.Failed) < mostFailed {
		n.report.Failed = append(n.report.Failed, what+": "+err.Error())
	}
}

// inStep waits until every node runs, is ready, and has applied all that the leader had when this began. Nothing may be
// destroyed before.
func (n *nemesis) inStep() bool {
	ctx, cancel := context.WithTimeout(n.ctx, n.options.Patience)
	defer cancel()
	for i := range n.cluster.Size() {
		if !n.cluster.Runs(i) {
			return false
		}
	}
	if n.cluster.Ready(ctx) != nil {
		return false
	}
	leader := n.cluster.Leader()
	if leader < 0 {
		return false
	}
	goal, _, err := n.cluster.Digest(ctx, leader)
	if err != nil {
		return false
	}
	for i := range n.cluster.Size() {
		for {
			index, _, err := n.cluster.Digest(ctx, i)
			if err == nil && index >= goal {
				break
			}
			if n.cluster.Sleep(ctx, 100*time.Millisecond) != nil {
				return false
			}
		}
	}
	return true
}

// name of a host: nodes come first, then clients.
func (n *nemesis) name(host int) string {
	if size := n.cluster.Size(); host >= size {
		return fmt.Sprintf("client%d", host-size)
	}
	return fmt.Sprintf("n%d", host+1)
}

func (n *nemesis) nameAll(hosts []int) string {
	var names []string
	for _, host := range slices.Sorted(slices.Values(hosts)) {
		names = append(names, n.name(host))
	}
	return strings.Join(names, " ")
}
