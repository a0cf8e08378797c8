package nemesis

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/jepsen/cluster"
	"github.com/pawl-lock/pawl/jepsen/history"
)

// fake is a cluster that keeps only who is in which state, and checks at every fault that it is allowed. Its clock goes
// on when somebody sleeps.
type fake struct {
	t       *testing.T
	now     time.Duration
	until   time.Duration
	stop    context.CancelFunc
	size    int
	clients int

	down, paused, wiped map[int]bool
	cut                 map[link]bool
	delayed             map[link]bool
	disk                map[int]cluster.Disk
	stepped             map[int]time.Duration
	lag                 map[int]uint64 // how far a node's index is behind
	destroyed           int            // nodes without a vote
	pausedFor           []time.Duration
	pausedAt            map[int]time.Duration

	unsupported func(what string) bool
	fails       func(what string) error
	calls       []string
}

func newFake(t *testing.T, size, clients int, run time.Duration) (*fake, context.Context) {
	ctx, stop := context.WithCancel(t.Context())
	return &fake{
		t: t, until: run, stop: stop, size: size, clients: clients,
		down: map[int]bool{}, paused: map[int]bool{}, wiped: map[int]bool{}, cut: map[link]bool{}, delayed: map[link]bool{},
		disk: map[int]cluster.Disk{}, stepped: map[int]time.Duration{}, lag: map[int]uint64{}, pausedAt: map[int]time.Duration{},
	}, ctx
}

func (f *fake) did(format string, arguments ...any) error {
	call := fmt.Sprintf(format, arguments...)
	f.calls = append(f.calls, fmt.Sprintf("%v %s", f.now, call))
	what, _, _ := strings.Cut(call, " ")
	if f.unsupported != nil && f.unsupported(what) {
		return cluster.ErrUnsupported
	}
	if f.fails != nil {
		return f.fails(call)
	}
	return nil
}

func (f *fake) Kind() string       { return "fake" }
func (f *fake) Size() int          { return f.size }
func (f *fake) Now() time.Duration { return f.now }
func (f *fake) Sleep(ctx context.Context, d time.Duration) error {
	f.now += d
	if f.now >= f.until {
		f.stop()
	}
	return ctx.Err()
}
func (f *fake) Client(int) cluster.Client { return cluster.Client{} }
func (f *fake) Leader() int {
	for i := range f.size {
		if !f.down[i] && !f.paused[i] {
			return i
		}
	}
	return -1
}
func (f *fake) Ready(context.Context) error {
	if len(f.paused)+len(f.cut) > 0 {
		return context.DeadlineExceeded
	}
	for i := range f.wiped {
		if !f.down[i] {
			delete(f.wiped, i)
			f.destroyed--
		}
	}
	return nil
}
func (f *fake) Digest(_ context.Context, node int) (uint64, string, error) {
	if f.lag[node] > 0 {
		f.lag[node]--
	}
	return 1<<41 - f.lag[node], "", nil
}
func (f *fake) Logs() map[string]string { return nil }
func (f *fake) Kill(node int) error {
	if f.down[node] {
		f.t.Errorf("n%d is killed and does not run", node+1)
	}
	f.down[node] = true
	delete(f.paused, node)
	return f.did("kill %d", node)
}
func (f *fake) Stop(node int) error { f.down[node] = true; return f.did("stop %d", node) }
func (f *fake) Start(node int) error {
	if f.disk[node] == cluster.DiskFails || f.disk[node] == cluster.DiskFull {
		f.t.Errorf("n%d is started on a bad disk", node+1)
	}
	delete(f.down, node)
	return f.did("start %d", node)
}
func (f *fake) Runs(node int) bool    { return !f.down[node] }
func (f *fake) Pause(node int) error  { f.paused[node] = true; return f.did("pause %d", node) }
func (f *fake) Resume(node int) error { delete(f.paused, node); return f.did("resume %d", node) }
func (f *fake) PauseClient(i int) error {
	f.paused[f.size+i] = true
	f.pausedAt[i] = f.now
	return f.did("pause-client %d", i)
}
func (f *fake) ResumeClient(i int) error {
	delete(f.paused, f.size+i)
	f.pausedFor = append(f.pausedFor, f.now-f.pausedAt[i])
	return f.did("resume-client %d", i)
}
func (f *fake) Cut(from, to int) error {
	if from == to || max(from, to) >= f.size+f.clients {
		f.t.Errorf("a cut from %d to %d", from, to)
	}
	f.cut[link{from, to}] = true
	return f.did("cut %d %d", from, to)
}
func (f *fake) Delay(from, to int, delay, jitter time.Duration) error {
	if from == to || delay <= 0 || jitter < 0 || jitter > delay {
		f.t.Errorf("a delay from %d to %d of %v ± %v", from, to, delay, jitter)
	}
	f.delayed[link{from, to}] = true
	return f.did("delay %d %d", from, to)
}
func (f *fake) Lose(from, to int, share float64, _ uint64) error {
	if from == to || share < 0.05 || share > 0.2 {
		f.t.Errorf("a loss from %d to %d of %v", from, to, share)
	}
	f.delayed[link{from, to}] = true
	return f.did("lose %d %d", from, to)
}
func (f *fake) Heal() error {
	clear(f.cut)
	clear(f.delayed)
	return f.did("heal")
}
func (f *fake) Transfer(to int) error { return f.did("transfer %d", to) }
func (f *fake) Disk(node int, d cluster.Disk, _ time.Duration) error {
	err := f.did("disk %d %d", node, d)
	if d == cluster.DiskFine {
		delete(f.disk, node)
	} else if err == nil {
		f.disk[node] = d
		if d == cluster.DiskFails || d == cluster.DiskFull {
			f.down[node] = true // fail-stop
		}
	}
	return err
}
func (f *fake) Wipe(node int) error {
	f.mayDestroy(node)
	if !f.wiped[node] {
		f.destroyed++
	}
	f.wiped[node] = true
	if f.destroyed > (f.size-1)/2 {
		f.t.Errorf("%d of %d nodes are without data", f.destroyed, f.size)
	}
	return f.did("wipe %d", node)
}
func (f *fake) Damage(node int, _ uint64) error {
	f.mayDestroy(node)
	return f.did("damage %d", node)
}

// mayDestroy fails the test when a node's data is touched where others are not there to keep it.
func (f *fake) mayDestroy(node int) {
	if !f.down[node] {
		f.t.Errorf("the data of n%d is touched while it runs", node+1)
	}
	for i := range f.size {
		if i != node && (f.down[i] || f.paused[i] || f.lag[i] > 0 || f.disk[i] != cluster.DiskFine) {
			f.t.Errorf("the data of n%d is touched while n%d is not in step", node+1, i+1)
		}
	}
	if len(f.cut) > 0 {
		f.t.Errorf("the data of n%d is touched during a partition", node+1)
	}
}
func (f *fake) StepClock(host int, by time.Duration) error {
	f.stepped[host] += by
	return f.did("clock %d %v", host, by)
}
func (f *fake) Close() error { return nil }

// healed fails the test when anything is left of a fault.
func (f *fake) healed() {
	f.t.Helper()
	for _, step := range f.stepped {
		if step != 0 {
			f.t.Errorf("a clock is left %v wrong", step)
		}
	}
	if n := len(f.down) + len(f.paused) + len(f.cut) + len(f.delayed) + len(f.disk) + f.destroyed; n > 0 {
		f.t.Errorf("left behind: down %v, paused %v, cut %v, delayed %v, disks %v, %d without data", f.down, f.paused, f.cut, f.delayed, f.disk, f.destroyed)
	}
}

func run(t *testing.T, f *fake, ctx context.Context, o Options) (Report, []history.Op, error) {
	t.Helper()
	h := history.New(f.Now, 100_000)
	report, err := Run(ctx, f, h, o)
	return report, h.Ops(), err
}

// announced checks that every fault that began has ended, under the same number and name, and gives how many began.
func announced(t *testing.T, ops []history.Op) (began int) {
	t.Helper()
	open := map[uint64]string{}
	for _, op := range ops {
		if op.Process != history.Nemesis || op.F != history.Fault || op.Type != history.Info || op.Note == "" {
			t.Errorf("announced as %+v", op)
		}
		if op.Value == history.Begin {
			open[op.Sequence] = op.Note
			began++
			continue
		}
		if open[op.Sequence] != op.Note {
			t.Errorf("%q ends as %q", open[op.Sequence], op.Note)
		}
		delete(open, op.Sequence)
	}
	if len(open) > 0 {
		t.Errorf("never ended: %v", open)
	}
	return began
}

func TestEachFaultAloneIsAnnouncedAndHealed(t *testing.T) {
	for _, name := range Names() {
		for _, size := range []int{3, 5} {
			for seed := range uint64(20) {
				f, ctx := newFake(t, size, 4, 10*time.Minute)
				report, ops, err := run(t, f, ctx, Options{Fault: name, Seed: seed, Clients: 4, Lease: 5 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				f.healed()
				began := announced(t, ops)
				if name == None && began > 0 || name != None && began < 10 {
					t.Errorf("%s of %d, seed %d: began %d times in 10 min", name, size, seed, began)
				}
				if name == Mixed { // a partition of the leader is skipped when there is none
					clear(report.Skipped)
				}
				if len(report.Failed)+len(report.Unsupported)+len(report.Skipped) > 0 {
					t.Errorf("%s of %d, seed %d: %+v", name, size, seed, report)
				}
				for _, d := range f.pausedFor[:max(0, len(f.pausedFor)-1)] { // the end of the run may cut the last one short
					if d <= 5*time.Second || d > 17*time.Second {
						t.Errorf("a client with a lease of 5 s was paused for %v", d)
					}
				}
			}
		}
	}
}

// A clock that was only ever ahead, or only ever back, would miss what the way back does.
func TestClocksAreSetToBothSides(t *testing.T) {
	f, ctx := newFake(t, 3, 2, 10*time.Minute)
	ahead, back := 0, 0
	f.fails = func(string) error {
		for _, off := range f.stepped {
			if off > 0 {
				ahead++
			}
			if off < 0 {
				back++
			}
		}
		return nil
	}
	report, _, err := run(t, f, ctx, Options{Fault: "clock-step", Clients: 2})
	if begun := report.Begun["clock-step"]; err != nil || ahead < begun-1 || back < begun-1 || begun < 10 {
		t.Errorf("%d steps: %d times ahead, %d back; %v", begun, ahead, back, err)
	}
	f.healed()
}

// slow is a cluster that is never ready again.
type slow struct{ *fake }

func (s slow) Ready(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestABrokenOffRunIsHealedAndNobodyWaits(t *testing.T) {
	for _, name := range []string{"pause-node", "partition-halves"} {
		f, _ := newFake(t, 3, 2, time.Minute)
		ctx, breakOff := context.WithCancelCause(t.Context())
		f.stop = func() { breakOff(errors.New("enough")) }
		began := time.Now()
		report, err := Run(ctx, slow{f}, history.New(f.Now, 1000), Options{Fault: name, Patience: 3 * time.Second})
		if took := time.Since(began); took > time.Second {
			t.Errorf("%s: it took %v to heal", name, took)
		}
		if err != nil || len(report.Failed) > 0 {
			t.Errorf("%s: %v, %v", name, err, report.Failed)
		}
		f.healed()
	}
}

func TestMixedFaultsOverlapButNotInTheirOwnPart(t *testing.T) {
	kinds := map[string]int{}
	overlaps := 0
	for seed := range uint64(100) {
		f, ctx := newFake(t, 3+2*int(seed%2), 4, 10*time.Minute)
		report, ops, err := run(t, f, ctx, Options{Fault: Mixed, Seed: seed, Clients: 4, Lease: 5 * time.Second})
		if err != nil || len(report.Failed) > 0 {
			t.Fatal(err, report.Failed)
		}
		f.healed()
		announced(t, ops)
		active := map[uint64]part{}
		for _, op := range ops {
			name, _, _ := strings.Cut(op.Note, " ")
			list, _ := chosen(name)
			if op.Value == history.End {
				delete(active, op.Sequence)
				continue
			}
			kinds[name]++
			for _, other := range active {
				overlaps++
				if other == list[0].part || other == everything || list[0].part == everything {
					t.Errorf("seed %d: %q began at %v beside one of part %d", seed, op.Note, op.Time, other)
				}
			}
			active[op.Sequence] = list[0].part
		}
	}
	for _, name := range Names() {
		if name != None && name != Mixed && kinds[name] < 10 {
			t.Errorf("%s began %d times in 100 mixed runs", name, kinds[name])
		}
	}
	if overlaps < 500 {
		t.Errorf("only %d times did a fault begin beside another", overlaps)
	}
}

func TestSameSeedSameFaults(t *testing.T) {
	play := func(seed uint64) []string {
		f, ctx := newFake(t, 5, 4, 10*time.Minute)
		if _, _, err := run(t, f, ctx, Options{Fault: Mixed, Seed: seed, Clients: 4, Lease: 5 * time.Second}); err != nil {
			t.Fatal(err)
		}
		return f.calls
	}
	if first, again := play(7), play(7); !slices.Equal(first, again) {
		t.Error("two runs of one seed differ")
	} else if slices.Equal(first, play(8)) {
		t.Error("two seeds make the same run")
	}
}

func TestNothingIsDestroyedWhileANodeIsBehind(t *testing.T) {
	for _, name := range []string{"wipe-node", "damage-files"} {
		f, ctx := newFake(t, 3, 0, time.Minute)
		f.lag[1] = 20 // looks until it has caught up
		f.lag[2] = 30
		report, _, _ := run(t, f, ctx, Options{Fault: name})
		if report.Begun[name] == 0 {
			t.Errorf("%s: %+v", name, report)
		}
		f, ctx = newFake(t, 3, 0, time.Minute)
		f.lag[1] = 1 << 40 // for ever
		report, ops, _ := run(t, f, ctx, Options{Fault: name})
		if len(ops) > 0 || report.Skipped[name] == 0 {
			t.Errorf("%s with a node that is behind: %+v", name, report)
		}
	}
}

func TestWhatTheClusterCannotDoIsSaid(t *testing.T) {
	f, ctx := newFake(t, 3, 2, 5*time.Minute)
	f.unsupported = func(what string) bool { return what == "clock" || what == "disk" }
	if _, ops, err := run(t, f, ctx, Options{Fault: "slow-fsync"}); !errors.Is(err, cluster.ErrUnsupported) || len(ops) != 2 || ops[1].Error != "" {
		t.Errorf("slow-fsync: %v, %+v", err, ops)
	}
	if f.now > time.Minute {
		t.Errorf("a run without a fault ended after %v", f.now)
	}
	f, ctx = newFake(t, 3, 2, 20*time.Minute)
	f.unsupported = func(what string) bool { return what == "disk" }
	report, ops, err := run(t, f, ctx, Options{Fault: Mixed, Clients: 2, Lease: time.Second})
	slices.Sort(report.Unsupported)
	if err != nil || !reflect.DeepEqual(report.Unsupported, []string{"failing-fsync", "full-disk", "hanging-fsync", "slow-fsync"}) {
		t.Errorf("mixed without disks: %v, %v", err, report.Unsupported)
	}
	announced(t, ops)
	f.healed()
	if _, err := Run(ctx, f, nil, Options{Fault: "kill-one+meteor"}); err == nil || !strings.Contains(err.Error(), "kill-one") {
		t.Errorf("an unknown fault: %v", err)
	}
}

func TestAFaultThatBeganHalfWayIsUndone(t *testing.T) {
	f, ctx := newFake(t, 5, 0, time.Minute)
	cuts := 0
	f.fails = func(call string) error {
		if strings.HasPrefix(call, "cut") {
			if cuts++; cuts == 3 {
				return errors.New("no more")
			}
		}
		return nil
	}
	report, ops, err := run(t, f, ctx, Options{Fault: "partition-halves"})
	if err != nil || len(report.Failed) != 1 || !strings.Contains(report.Failed[0], "no more") {
		t.Errorf("%v, %v", err, report.Failed)
	}
	if len(ops) < 2 || ops[0].Value != history.Begin || ops[1].Value != history.End || ops[1].Time != ops[0].Time {
		t.Errorf("%+v", ops)
	}
	f.healed()
}

func TestANodeThatEndsByItselfIsReported(t *testing.T) {
	f, ctx := newFake(t, 3, 2, time.Minute)
	f.fails = func(call string) error {
		if strings.HasPrefix(call, "cut") {
			f.down[2] = true
		}
		return nil
	}
	report, _, err := run(t, f, ctx, Options{Fault: "client-cut", Clients: 2})
	if err != nil || len(report.Failed) == 0 || !strings.Contains(report.Failed[0], "n3 ended by itself") {
		t.Errorf("%v, %v", err, report.Failed)
	}
	f.healed()
}
