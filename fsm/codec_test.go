package fsm

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unsafe"
)

// filler gives every field of a value another small value, so that a field that is forgotten or mixed up with another
// shows after a round trip.
type filler struct{ n uint64 }

func (f *filler) fill(v reflect.Value) {
	if !v.CanSet() { // an unexported field
		v = reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
	}
	f.n++
	switch x := v.Addr().Interface().(type) {
	case *Mode:
		*x = Shared
		return
	case *nature:
		*x = natureKeyed
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(f.n)
	case reflect.Int:
		v.SetInt(int64(f.n))
	case reflect.String:
		v.SetString(fmt.Sprintf("text %04d", f.n)) // in order, as the names of locks must be
	case reflect.Array:
		for i := range v.Len() {
			f.fill(v.Index(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range v.Len() {
			f.fill(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f.fill(v.Field(i))
		}
	default:
		panic("filling " + v.Type().String())
	}
}

// clear sets fields to zero by name.
func clearFields(v reflect.Value, names ...string) {
	for _, name := range names {
		f := v.FieldByName(name)
		reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem().SetZero()
	}
}

func TestCommandsRoundTrip(t *testing.T) {
	kinds := 0
	for k := range 256 {
		for _, variant := range []string{"", "own"} {
			c := newCommand(Kind(k))
			if c == nil {
				continue
			}
			kinds++
			if c.kind() != Kind(k) {
				t.Errorf("%T says that it is %d, made for %d", c, c.kind(), k)
			}
			(&filler{}).fill(reflect.ValueOf(c).Elem())
			if a, ok := c.(*Acquire); ok { // either in a session or by a key
				if variant == "own" {
					a.Session, a.Number = 0, 0
				} else {
					a.Keyed = false
				}
			}
			want := &Entry{Stamp: Stamp{7, 8}, Wall: 9, Commands: []Command{c, &Close{Session: 1}}}
			b, err := want.Encode()
			if err != nil {
				t.Fatalf("%T: %v", c, err)
			}
			got, err := DecodeEntry(b)
			if err != nil {
				t.Fatalf("%T: %v", c, err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%T: got\n%+v\nwant\n%+v", c, got.Commands[0], c)
			}
		}
	}
	if kinds < 2*8 {
		t.Errorf("only %d kinds of commands", kinds/2)
	}
}

func TestBeginRoundTrip(t *testing.T) {
	want := &Entry{Begin: &Begin{}}
	(&filler{}).fill(reflect.ValueOf(want.Begin).Elem())
	b, err := want.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeEntry(b)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, %v, want %+v", got.Begin, err, want.Begin)
	}
}

// roundTripFields sends a value through its fields method; derived fields are not written and are built again elsewhere.
func roundTripFields[T any](t *testing.T, fields func(*T, *coder), derived ...string) {
	t.Helper()
	var want, got T
	(&filler{}).fill(reflect.ValueOf(&want).Elem())
	clearFields(reflect.ValueOf(&want).Elem(), derived...)
	w := coder{}
	fields(&want, &w)
	if err := w.finish(); err != nil {
		t.Fatalf("%T: %v", want, err)
	}
	r := coder{reading: true, buf: w.buf}
	fields(&got, &r)
	if err := r.finish(); err != nil {
		t.Fatalf("%T: %v", want, err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%T: got\n%+v\nwant\n%+v\n(a field that is derived belongs into the test's list)", want, got, want)
	}
}

func TestObjectsRoundTrip(t *testing.T) {
	roundTripFields(t, (*session).fields, "epoch", "holds", "waits")
	roundTripFields(t, (*lock).fields, "epoch", "exclusive", "shared", "limited", "limit", "bounded", "waits", "multiple")
	roundTripFields(t, (*request).fields, "epoch", "try")
}

func TestStateRoundTrip(t *testing.T) {
	derived := []string{
		"epoch", "tombstones", "ids", "names", "owned", "queue", "barriers", "throughs", "holds", "due", "ttls", "works",
		"looks", "now", "wall", "left", "events", "tries",
	}
	trees := []string{"sessions", "locks", "requests", "look", "walk", "rem"}
	want := NewState()
	v := reflect.ValueOf(want).Elem()
	f := &filler{}
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; name != "level" && !slices.Contains(derived, name) && !slices.Contains(trees, name) {
			f.fill(v.Field(i))
		}
	}
	want.sessions.ReplaceOrInsert(&session{number: 1, finished: []interval{}})
	want.locks.ReplaceOrInsert(&lock{number: 2})
	want.requests.ReplaceOrInsert(&request{seq: Seq{3, 4}})
	want.look.ReplaceOrInsert(Seq{5, 6})
	want.walk.ReplaceOrInsert(7)
	want.rem.ReplaceOrInsert(8)
	w := coder{}
	want.fields(&w)
	got := NewState()
	r := coder{reading: true, buf: w.buf}
	got.fields(&r)
	if err := errors.Join(w.finish(), r.finish()); err != nil {
		t.Fatal(err)
	}
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if slices.Contains(derived, name) || slices.Contains(trees, name) {
			continue
		}
		if got, want := fmt.Sprint(reflect.ValueOf(got).Elem().Field(i)), fmt.Sprint(v.Field(i)); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	if got.sessions.Len() != 1 || got.locks.Len() != 1 || got.requests.Len() != 1 || !got.look.Has(Seq{5, 6}) || !got.walk.Has(7) || !got.rem.Has(8) {
		t.Errorf("a tree was forgotten: %+v", got)
	}
}

// formatEntries has every command and every kind of entry.
func formatEntries() []step {
	n := names{"A": 3, "o": 4}
	var steps []step
	for _, line := range []string{
		"begin floor=77 sessions=1 tombstones=2 requests=3 waiters=4 multiple=5 holders=6",
		"+0",
		"+1500 open A ttl=15000 owner=worker ; renew A@9000/7 o ; close A",
		"+1 acquire A 12 a b:shared c:shared:300 wait=20000 done=11 task=t trace=00-1",
		"+0 acquire key=k ttl=500 owner=me x ; acquire own=o ttl=500 x wait=1",
		"+0 release A 12 token=99 name=b ; release o 0 token=5 ; cancel A 13 waiting ; cancel key=k",
		"+0 raise r above=1000000 reason=drill ; level 1",
	} {
		steps = append(steps, parseStep(line, n))
	}
	return steps
}

// compareGolden compares text with a file that only changes on purpose.
func compareGolden(t *testing.T, file, got string) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Fatalf("the format changed: logs and snapshots that exist could not be read any more. Fields are appended, and read only when they are there "+
			"(coder.more). If this is meant, -rewrite accepts it. Got\n%s\nwant\n%s", got, want)
	}
}

func TestEntryFormat(t *testing.T) {
	var b strings.Builder
	stamps := stamper{begin: 40, elapsed: 100}
	for _, st := range formatEntries() {
		e, err := stamps.entry(41, st).Encode()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%v\n%s", st, hex.Dump(e))
	}
	compareGolden(t, "testdata/entry.golden", b.String())
}

// formatState has every kind of object in it: a tombstone, a closed session, work left over, holds of all kinds.
func formatState(t testing.TB) *State {
	s, stamps, n := NewState(), stamper{}, names{}
	for i, line := range []string{
		"begin floor=1000 waiters=50",
		"+5 raise r above=2000 ; open A ttl=60000 owner=worker ; open B ttl=60000 ; open C ttl=60000",
		"+5 acquire A 1 a ; acquire A 7 f ; acquire A 2 b:shared ; acquire B 1 b:shared ; acquire B 2 c:shared:3 wait=500 task=t trace=00-1 ; cancel key=k",
		"+5 acquire own=o ttl=60000 owner=me d wait=20000 ; acquire B 3 a b c wait=20000 ; acquire key=l ttl=500 a:shared wait=100 ; cancel A 9",
		"+5 acquire C 1 a:shared c:shared wait=30000 ; acquire C 2 e f wait=30000 ; release B 1",
	} {
		if _, err := s.Apply(uint64(i+1), 1, stamps.entry(uint64(i+1), parseStep(line, n))); err != nil {
			t.Fatal(err)
		}
		n.learn(s)
	}
	s.works, s.looks = 1, 0
	if _, err := s.Apply(6, 2, stamps.entry(6, parseStep("+5 acquire A 3 e wait=10 ; release A 1 ; close B", n))); err != nil {
		t.Fatal(err)
	}
	if err := check(s); err != nil {
		t.Fatal(err)
	}
	if s.look.Len() == 0 || s.walk.Len() == 0 || s.rem.Len() == 0 || s.tombstones == 0 || s.throughs.Len() == 0 {
		t.Fatalf("the state lacks something: %+v", s)
	}
	return s
}

func TestSnapshotFormat(t *testing.T) {
	s := formatState(t)
	var b bytes.Buffer
	s.print(&b)
	b.WriteString(hex.Dump(s.Encode()))
	compareGolden(t, "testdata/snapshot.golden", b.String())
	if _, err := roundTrip(s); err != nil {
		t.Fatal(err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	s := formatState(t)
	spoil := func(change func(*State)) []byte {
		c, err := Decode(s.Encode())
		if err != nil {
			t.Fatal(err)
		}
		change(c)
		return c.Encode()
	}
	eachRequest := func(f func(*request)) func(*State) {
		return func(s *State) {
			for _, r := range items(s.requests) {
				f(r)
			}
		}
	}
	eachSession := func(f func(*session)) func(*State) {
		return func(s *State) {
			for _, v := range items(s.sessions) {
				f(v)
			}
		}
	}
	eachLock := func(f func(*lock)) func(*State) {
		return func(s *State) {
			for _, l := range items(s.locks) {
				f(l)
			}
		}
	}
	for name, change := range map[string]func(*State){
		"session above the last number": func(s *State) { s.lastSession = 1 },
		"lock above the last number":    func(s *State) { s.lastLock = 1 },
		"request of a later entry":      func(s *State) { s.index = 3 },
		"request without its session":   func(s *State) { s.sessions.DeleteMin() },
		"request without its lock":      func(s *State) { s.locks.DeleteMin() },
		"idle lock":                     func(s *State) { s.lastLock++; s.locks.ReplaceOrInsert(&lock{number: s.lastLock, name: "idle"}) },
		"one id twice":                  eachSession(func(v *session) { v.id = ID{} }),
		"one name twice":                eachLock(func(l *lock) { l.name = "a" }),
		"closed, and not to be removed": func(s *State) { s.rem.Clear(false) },
		"to be removed, and not closed": eachSession(func(v *session) { v.closed = false; v.deadline = 9 }),
		"no session to be removed":      func(s *State) { s.rem.ReplaceOrInsert(999) },
		"no request to judge":           func(s *State) { s.look.ReplaceOrInsert(Seq{1, 1}) },
		"a grant to judge":              eachRequest(func(r *request) { r.granted, r.depth, r.deadline = true, len(r.locks), never }),
		"nothing to judge":              func(s *State) { s.look.Clear(false) },
		"no lock to walk":               func(s *State) { s.walk.ReplaceOrInsert(999) },
		"wait for ever":                 eachRequest(func(r *request) { r.deadline = never }),
		"depth":                         eachRequest(func(r *request) { r.depth = len(r.locks) + 1 }),
		"period":                        eachLock(func(l *lock) { l.period++ }),
		"no token":                      eachRequest(func(r *request) { r.locks[0].token = 0 }),
		"token above the highest":       func(s *State) { s.base = 0 },
		"one lock twice":                eachRequest(func(r *request) { r.locks = append(r.locks, r.locks[len(r.locks)-1]) }),
		"two limits":                    eachRequest(func(r *request) { r.locks[0].Limit = uint32(r.seq.Index) }),
		"nothing held":                  eachRequest(func(r *request) { r.locks[0].lock = 0 }),
		"number finished":               eachSession(func(v *session) { v.finished = []interval{{1, 100}} }),
		"intervals out of order":        eachSession(func(v *session) { v.finished = []interval{{200, 201}, {100, 101}} }),
		"intervals that touch":          eachSession(func(v *session) { v.finished = []interval{{200, 201}, {202, 203}} }),
		"one number twice":              eachRequest(func(r *request) { r.number = min(r.number, 1) }),
	} {
		if _, err := Decode(spoil(change)); err == nil {
			t.Errorf("accepted: %s", name)
		} else if !errors.Is(err, errMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDecodeDamaged(t *testing.T) {
	entry, err := (&stamper{begin: 1}).entry(2, formatEntries()[3]).Encode()
	if err != nil {
		t.Fatal(err)
	}
	snapshot := formatState(t).Encode()
	for i := range entry {
		if _, err := DecodeEntry(entry[:i]); err == nil {
			t.Errorf("an entry cut at %d is accepted", i)
		}
		for bit := range 8 {
			b := bytes.Clone(entry)
			b[i] ^= 1 << bit
			if _, err := DecodeEntry(b); err == nil {
				t.Errorf("an entry with bit %d of byte %d turned is accepted", bit, i)
			}
		}
	}
	for i := range snapshot {
		b := bytes.Clone(snapshot)
		b[i] ^= 0x10
		if _, err := Decode(b); err == nil {
			t.Errorf("a snapshot with byte %d changed is accepted", i)
		}
		if _, err := Decode(snapshot[:i]); err == nil {
			t.Errorf("a snapshot cut at %d is accepted", i)
		}
	}
}

func TestNewerVersions(t *testing.T) {
	newer := seal([]byte{Version + 1, 0, 0, 0, 0, 0})
	if _, err := DecodeEntry(newer); !errors.Is(err, ErrNewer) {
		t.Errorf("entry of a newer version: %v", err)
	}
	if _, err := DecodeEntry(unknownCommand(false)); !errors.Is(err, ErrNewer) {
		t.Errorf("entry with a newer command: %v", err)
	}
	if e, err := DecodeEntry(unknownCommand(true)); err != nil || len(e.Commands) != 1 || e.Commands[0] != nil {
		t.Errorf("entry with a newer command that may be skipped: %+v, %v", e, err)
	}
	if _, err := Decode(seal(append([]byte(snapshotMagic), Version+1))); !errors.Is(err, ErrNewer) {
		t.Errorf("snapshot of a newer version: %v", err)
	}
	b := formatState(t).Encode()
	b[len(snapshotMagic)+1] = FeatureLevel + 1
	if _, err := Decode(seal(b[:len(b)-4])); !errors.Is(err, ErrNewer) {
		t.Errorf("snapshot of a newer feature level: %v", err)
	}
}

// unknownCommand is an entry under beginning 1 with a command that this version does not know.
func unknownCommand(skippable bool) []byte {
	flag := byte(0)
	if skippable {
		flag = 1
	}
	return seal([]byte{Version, 0, 1, 0, 0, 1, 200, 1, flag, 2, 'h', 'i'}) // kind 200 is two bytes as a varint
}

// TestDecodeMemory puts huge numbers wherever a length may stand: what is allocated stays in proportion to the input.
func TestDecodeMemory(t *testing.T) {
	entry, err := (&stamper{begin: 1}).entry(2, formatEntries()[3]).Encode()
	if err != nil {
		t.Fatal(err)
	}
	snapshot := formatState(t).Encode()
	huge := [][]byte{{0x7f}, {0xff, 0x01}, {0xff, 0x3f}, {0xff, 0xff, 0x03}, {0xff, 0xff, 0xff, 0x1f}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}}
	try := func(b []byte, from int, decode func([]byte)) {
		for i := from; i < len(b)-4; i++ {
			for _, n := range huge {
				bad := seal(slices.Concat(b[:i], n, b[i+1:len(b)-4]))
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				decode(bad)
				runtime.ReadMemStats(&after)
				if got, most := after.TotalAlloc-before.TotalAlloc, uint64(64*len(bad)+64<<10); got > most {
					t.Errorf("%x at %d: %d bytes allocated for %d", n, i, got, len(bad))
				}
			}
		}
	}
	try(entry, 0, func(b []byte) { DecodeEntry(b) })
	try(snapshot, len(snapshotMagic), func(b []byte) { Decode(b) })
}

func TestEncodeRefuses(t *testing.T) {
	long := strings.Repeat("x", MaxName+1)
	want := func(names ...string) (w []Want) {
		for _, n := range names {
			w = append(w, Want{Name: n, Mode: Exclusive})
		}
		return w
	}
	for name, c := range map[string]Command{
		"name too long":     &Acquire{Session: 1, Number: 1, Locks: want(long)},
		"no lock":           &Acquire{Session: 1, Number: 1},
		"one lock twice":    &Acquire{Session: 1, Number: 1, Locks: want("a", "a")},
		"locks unordered":   &Acquire{Session: 1, Number: 1, Locks: want("b", "a")},
		"no number":         &Acquire{Session: 1, Locks: want("a")},
		"number of its own": &Acquire{Number: 1, Locks: want("a")},
		"key in a session":  &Acquire{Session: 1, Number: 1, Keyed: true, Locks: want("a")},
		"no mode":           &Acquire{Session: 1, Number: 1, Locks: []Want{{Name: "a"}}},
		"mode 3":            &Acquire{Session: 1, Number: 1, Locks: []Want{{Name: "a", Mode: 3}}},
		"limit":             &Acquire{Session: 1, Number: 1, Locks: []Want{{Name: "a", Mode: Shared, Limit: MaxLimit + 1}}},
		"wait":              &Acquire{Session: 1, Number: 1, Wait: MaxWait + 1, Locks: want("a")},
		"ttl":               &Open{TTL: MaxTTL + 1},
		"owner":             &Open{Owner: long},
		"floor":             &Raise{Above: MaxFloor + 1},
		"renewals":          &Renew{Sessions: make([]Renewal, MaxRenewals+1)},
	} {
		if _, err := (&Entry{Commands: []Command{c}}).Encode(); err == nil {
			t.Errorf("encoded: %s", name)
		}
	}
	if _, err := (&Entry{Commands: slices.Repeat([]Command{&Close{}}, MaxCommands+1)}).Encode(); err == nil {
		t.Error("encoded: too many commands")
	}
}
