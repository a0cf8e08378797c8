package fsm

import (
	"fmt"
	"reflect"
	"testing"
	"unsafe"
)

// TestDecodeSpoiled changes random fields of the objects of states that a random run came through, and decodes what that
// gives. Most is refused; what is accepted must be as good as a state of its own (R12).
func TestDecodeSpoiled(t *testing.T) {
	for _, seed := range seeds(1) {
		g, s, stamps := newGenerator(seed), NewState(), stamper{}
		accepted, refused := 0, 0
		for index := uint64(1); g.made < wantedCommands()/20; index++ {
			if _, err := s.Apply(index, 1, stamps.entry(index, g.step(s))); err != nil {
				t.Fatal(err)
			}
			if s.Index()%100 == 99 { // here and there with work left over
				s.works, s.looks = g.IntN(3), g.IntN(3)
			} else {
				s.works, s.looks = workBudget, lookBudget
			}
			for range 5 {
				spoiled, err := Decode(s.Encode())
				if err != nil {
					t.Fatal(err)
				}
				what := g.spoil(spoiled)
				if what == "" {
					continue
				}
				b, ok := encodeSpoiled(spoiled)
				if !ok {
					continue
				}
				got, err := Decode(b)
				if err != nil {
					refused++
					continue
				}
				accepted++
				func() {
					defer func() {
						if p := recover(); p != nil {
							t.Fatalf("seed %d, entry %d: after spoiling %s: panic: %v", seed, index, what, p)
						}
						if t.Failed() {
							t.Fatalf("seed %d, entry %d: after spoiling %s", seed, index, what)
						}
					}()
					usable(t, got)
				}()
			}
		}
		t.Logf("seed %d: %d refused, %d accepted", seed, refused, accepted)
		if refused == 0 || accepted == 0 {
			t.Error("nothing was tried")
		}
	}
}

// encodeSpoiled encodes a state unless it is above the caps of the format.
func encodeSpoiled(s *State) (b []byte, ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	return s.Encode(), true
}

// spoil changes one field of one object and says which.
func (g *generator) spoil(s *State) string {
	var objects []reflect.Value
	for _, v := range items(s.sessions) {
		objects = append(objects, reflect.ValueOf(v).Elem())
	}
	for _, l := range items(s.locks) {
		objects = append(objects, reflect.ValueOf(l).Elem())
	}
	for _, r := range allRequests(s) {
		objects = append(objects, reflect.ValueOf(r).Elem(), reflect.ValueOf(r).Elem())
		for i := range r.locks {
			objects = append(objects, reflect.ValueOf(&r.locks[i]).Elem())
		}
	}
	if len(objects) == 0 {
		return ""
	}
	o := pick(g, objects...)
	i := g.IntN(o.NumField())
	name := o.Type().Field(i).Name
	f := reflect.NewAt(o.Field(i).Type(), unsafe.Pointer(o.Field(i).UnsafeAddr())).Elem()
	before := fmt.Sprint(f)
	if seq, ok := f.Addr().Interface().(*Seq); ok {
		*seq = Seq{}
		if r := g.request(s); r != nil && g.chance(80) {
			*seq = r.seq
		}
	} else {
		switch f.Kind() {
		case reflect.Uint8, reflect.Uint32, reflect.Uint64:
			f.SetUint(pick(g, 0, 1, 2, f.Uint()+1, f.Uint()-1, s.clock, s.index) & (1<<f.Type().Bits() - 1))
		case reflect.Int, reflect.Int64:
			f.SetInt(f.Int() + pick[int64](g, -1, 1))
		case reflect.Bool:
			f.SetBool(!f.Bool())
		case reflect.String:
			f.SetString(pick(g, lockNames...))
		case reflect.Slice:
			if f.Len() == 0 || name == "locks" && f.Len() == 1 {
				return ""
			}
			f.SetLen(f.Len() - 1)
		default:
			return ""
		}
	}
	if name == "number" || name == "seq" || name == "epoch" { // the trees' own keys stay in order
		return ""
	}
	return fmt.Sprintf("%s.%s: %s is now %v", o.Type().Name(), name, before, f)
}
