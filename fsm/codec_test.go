package fsm

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"reflect"
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
	case reflect.Int, reflect.Int64:
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
		if p, ok := v.Addr().Interface().(*part); ok {
			p.asked.Name = p.Name // is the same, and written once
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
		"looks", "now", "wall", "left", "events", "tries", "unjudged", "notices", "downs", "steps", "sessionKey", "lockKey", "board", "taskWaits", "taskHolds", "tangled",
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
	want.requests.ReplaceOrInsert(filed{Seq{3, 4}, &request{seq: Seq{3, 4}}})
	want.look.ReplaceOrInsert(order{7, Seq{5, 6}})
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
	if got.sessions.Len() != 1 || got.locks.Len() != 1 || got.requests.Len() != 1 || !got.look.Has(order{7, Seq{5, 6}}) || !got.walk.Has(7) || !got.rem.Has(8) {
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
		"+1 open A ttl=15000 label=team:blue ; acquire A 14 a:shared wait=20000 priority=-3 max=60000 delay=700 value=v",
		"+0 convert A 15 a of=14 token=98 wait=100 done=12 ; value A 14 token=99 name=a value=w ; force a token=99 reason=stuck by=op delay=500",
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
		"+5 open D ttl=60000 label=team:blue ; acquire C 3 p:shared ; acquire own=m ttl=60000 r delay=9000 ; acquire A 4 p wait=7000 priority=-9",
		"+5 acquire D 1 q priority=7 max=50000 delay=700 value=v task=u ; acquire D 2 p:shared task=u priority=3",
		"+5 convert D 3 q:shared:4 of=1 token=2006 ; convert D 4 p of=2 token=2005 wait=900 ; value D 1 token=2006 name=q value=w ; force r token=2005 reason=stuck by=op",
	} {
		if _, err := s.Apply(uint64(i+1), 1, stamps.entry(uint64(i+1), parseStep(line, n))); err != nil {
			t.Fatal(err)
		}
		n.learn(s)
	}
	s.works, s.looks = 1, 0
	if _, err := s.Apply(9, 2, stamps.entry(9, parseStep("+5 acquire A 3 e wait=10 ; release A 1 ; close B", n))); err != nil {
		t.Fatal(err)
	}
	if err := check(s); err != nil {
		t.Fatal(err)
	}
	if s.look.Len() == 0 || s.walk.Len() == 0 || s.rem.Len() == 0 || s.tombstones == 0 || s.throughs.Len() == 0 {
		t.Fatalf("the state lacks something: %+v", s)
	}
	conversions, delays, lost := map[bool]int{}, 0, 0
	for _, r := range allRequests(s) {
		if r.converts() {
			conversions[r.granted]++
		}
	}
	for _, l := range items(s.locks) {
		delays += int(l.delay)
	}
	for _, v := range items(s.sessions) {
		lost += len(v.lost)
	}
	if conversions[false] != 1 || conversions[true] != 1 || delays == 0 || lost == 0 || s.taskHolds.Len() == 0 || s.taskWaits.Len() == 0 {
		t.Fatalf("the state lacks something: %v %d %d %d %d", conversions, delays, lost, s.taskHolds.Len(), s.taskWaits.Len())
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
