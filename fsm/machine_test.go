package fsm

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/raft"
)

// testLog is a machine with its log: it encodes entries and applies them as Raft does.
type testLog struct {
	t      testing.TB
	m      *Machine
	index  uint64
	stamps stamper
	names  names
	fatal  []error
	sunk   []*Result
}

func newTestLog(t testing.TB) *testLog {
	l := &testLog{t: t, names: names{}}
	l.m = NewMachine(func(r *Result) { l.sunk = append(l.sunk, r) }, func(err error) { l.fatal = append(l.fatal, err) })
	return l
}

func (l *testLog) apply(lines ...string) (last *Result) {
	l.t.Helper()
	for _, line := range lines {
		b, err := l.stamps.entry(l.index+1, parseStep(line, l.names)).Encode()
		if err != nil {
			l.t.Fatal(err)
		}
		r, ok := l.raw(b).(*Result)
		if !ok || r == nil || !r.Applied {
			l.t.Fatalf("%s: %+v, fatal %v", line, r, l.fatal)
		}
		last = r
		l.m.Read(func(s *State) { l.names.learn(s) })
	}
	return last
}

func (l *testLog) raw(b []byte) any {
	l.index++
	return l.m.Apply(&raft.Log{Index: l.index, Term: 1, Type: raft.LogCommand, Data: b})
}

func (l *testLog) bytes() (b []byte) {
	l.m.Read(func(s *State) { b = s.Encode() })
	return b
}

func TestMachineStops(t *testing.T) {
	good, err := (&stamper{begin: 1}).entry(3, step{elapsed: 1}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(good)
	damaged[3] ^= 1
	other, err := (&Entry{Begin: &Begin{Cluster: label("other")}}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	level, err := (&Entry{Stamp: Stamp{Begin: 1}, Commands: []Command{&Level{FeatureLevel + 1}}}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		entry []byte
		newer bool
		says  string
	}{
		"damaged":           {damaged, false, "checksum"},
		"empty":             {nil, false, "too short"},
		"cut short":         {good[:len(good)-1], false, "checksum"},
		"newer version":     {seal([]byte{Version + 1}), true, "upgrade this node"},
		"newer command":     {unknownCommand(false), true, "upgrade this node"},
		"newer level":       {level, true, "upgrade this node"},
		"of another system": {other, false, "cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newTestLog(t)
			l.apply("begin", "+0 open A ttl=1000")
			snapshot := l.bytes()
			l.sunk = nil
			if r := l.raw(c.entry); r != nil {
				t.Errorf("returned %v", r)
			}
			if len(l.fatal) != 1 || errors.Is(l.fatal[0], ErrNewer) != c.newer {
				t.Fatalf("fatal: %v", l.fatal)
			}
			if says := l.fatal[0].Error(); !strings.Contains(says, c.says) || !strings.Contains(says, "log entry 3") {
				t.Errorf("says %q", says)
			}
			// Nothing comes back to life.
			if r := l.raw(good); r != nil {
				t.Errorf("applied afterwards: %v", r)
			}
			if l.m.Read(func(*State) { t.Error("read afterwards") }) {
				t.Error("claims to have read")
			}
			if _, err := l.m.Snapshot(); err == nil {
				t.Error("a snapshot was taken afterwards")
			}
			if err := l.m.Restore(io.NopCloser(bytes.NewReader(snapshot))); err == nil {
				t.Error("restored afterwards")
			}
			if len(l.fatal) != 1 || len(l.sunk) != 0 || l.m.Seen() != 2 {
				t.Errorf("fatal %v, %d results, seen %d", l.fatal, len(l.sunk), l.m.Seen())
			}
		})
	}
}

func TestMachineSkips(t *testing.T) {
	l := newTestLog(t)
	l.apply("begin")
	before := l.bytes()
	r, ok := l.raw(unknownCommand(true)).(*Result)
	if !ok || !r.Applied || len(r.Outcomes) != 1 || r.Outcomes[0].Code != Skipped {
		t.Fatalf("got %+v, fatal %v", r, l.fatal)
	}
	if bytes.Equal(before, l.bytes()) {
		t.Error("the index did not move")
	}
	l.apply("+0 open A ttl=1000")
}

func TestMachineSeen(t *testing.T) {
	l := newTestLog(t)
	l.apply("begin", "+0")
	l.m.StoreConfiguration(9, raft.Configuration{})
	l.m.StoreConfiguration(4, raft.Configuration{})
	if got := l.m.Seen(); got != 9 {
		t.Errorf("seen %d after a membership change at 9", got)
	}
	l.index = 9
	l.apply("+0")
	if got := l.m.Seen(); got != 10 {
		t.Errorf("seen %d after entry 10", got)
	}
}

// memorySink is where a snapshot goes.
type memorySink struct {
	bytes.Buffer
	fail              error
	closed, cancelled int
}

func (s *memorySink) Write(b []byte) (int, error) {
	if s.fail != nil {
		return 0, s.fail
	}
	return s.Buffer.Write(b)
}

func (s *memorySink) ID() string    { return "memory" }
func (s *memorySink) Close() error  { s.closed++; return nil }
func (s *memorySink) Cancel() error { s.cancelled++; return nil }

// closeCounter counts how often a reader is closed.
type closeCounter struct {
	io.Reader
	closed int
}

func (c *closeCounter) Close() error { c.closed++; return nil }

func TestMachinePersistRestore(t *testing.T) {
	l := newTestLog(t)
	l.apply("begin", "+0 open A ttl=1000 ; open B ttl=1000", "+0 acquire A 1 x ; acquire B 1 x wait=500")
	want := l.bytes()
	taken, err := l.m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Release()
	l.apply("+0 release A 1") // after the snapshot, before it is written

	broken := &memorySink{fail: errors.New("disk full")}
	if err := taken.Persist(broken); !errors.Is(err, broken.fail) || broken.cancelled != 1 || broken.closed != 0 {
		t.Errorf("broken sink: %v, cancelled %d, closed %d", err, broken.cancelled, broken.closed)
	}
	sink := &memorySink{}
	if err := taken.Persist(sink); err != nil || sink.cancelled != 0 || sink.closed != 1 {
		t.Fatalf("%v, cancelled %d, closed %d", err, sink.cancelled, sink.closed)
	}
	if !bytes.Equal(sink.Bytes(), want) {
		t.Fatal("the snapshot is not of the moment when it was taken")
	}

	r := newTestLog(t)
	in := &closeCounter{Reader: bytes.NewReader(sink.Bytes())}
	if err := r.m.Restore(in); err != nil || in.closed != 1 {
		t.Fatalf("%v, closed %d", err, in.closed)
	}
	if !bytes.Equal(r.bytes(), want) || r.m.Seen() != 3 {
		t.Errorf("another state, seen %d", r.m.Seen())
	}
	if len(r.sunk) != 1 || r.sunk[0].Index != 3 || len(r.sunk[0].Events) != 1 || r.sunk[0].Events[0].Kind != EventReset {
		t.Errorf("announced %+v", r.sunk)
	}
	// Both go on alike.
	r.index, r.stamps, r.names = 3, l.stamps, l.names
	r.apply("+0 release A 1")
	if !bytes.Equal(r.bytes(), l.bytes()) {
		t.Error("the restored machine goes on otherwise")
	}

	// A bad snapshot changes nothing.
	for i := range sink.Len() {
		bad := bytes.Clone(sink.Bytes())
		bad[i] ^= 4
		if err := r.m.Restore(io.NopCloser(bytes.NewReader(bad))); err == nil {
			t.Fatalf("byte %d changed, restored", i)
		}
	}
	if !bytes.Equal(r.bytes(), l.bytes()) || len(r.sunk) != 2 || len(r.fatal) != 0 {
		t.Error("a bad snapshot changed something")
	}
}

// TestMachineReaders has readers and a snapshot being written beside entries that are applied; the race detector is the
// judge.
func TestMachineReaders(t *testing.T) {
	l := newTestLog(t)
	l.apply("begin", "+0 open A ttl=60000 ; open B ttl=60000", "+0 acquire A 1 x ; acquire B 1 y:shared:3 z ; acquire key=k ttl=60000 x wait=60000")
	stop := make(chan struct{})
	var readers, snapshots sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				l.m.Read(func(s *State) {
					s.Lock("x", s.Clock(), 10)
					s.Locks("", "", s.Clock(), 10, func(LockInfo) bool { return true })
					s.Sessions(0, s.Clock(), func(SessionInfo) bool { return true })
					s.Request(Seq{3, 2}, 10)
					s.Schedule()
					s.Encode()
				})
				l.m.Seen()
			}
		})
	}
	for n := 2; n < 200; n++ {
		last := "+1 release A " + strconv.Itoa(n-1) + " ; acquire A " + strconv.Itoa(n) + " x wait=1000 ; renew A B"
		if n == 2 {
			last = "+1 release A 1 ; acquire A 2 x wait=1000 ; cancel key=k"
		}
		taken, err := l.m.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		want := l.bytes()
		snapshots.Go(func() {
			sink := &memorySink{}
			if err := taken.Persist(sink); err != nil || !bytes.Equal(sink.Bytes(), want) {
				t.Errorf("a snapshot changed while it was written: %v", err)
			}
		})
		b, err := l.stamps.entry(l.index+1, parseStep(last, l.names)).Encode()
		if err != nil {
			t.Fatal(err)
		}
		if r, ok := l.raw(b).(*Result); !ok || r.Outcomes[1].Code != OK {
			t.Fatalf("entry %d: %+v", n, r)
		}
	}
	snapshots.Wait()
	close(stop)
	readers.Wait()
}
