package fsm

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
)

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
			for _, r := range allRequests(s) {
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
		"no request to judge":           func(s *State) { s.look.ReplaceOrInsert(order{1, Seq{1, 1}}) },
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
		"conversion of nothing": eachRequest(func(r *request) {
			if r.converts() {
				r.of.Index++
			}
		}),
		"conversion that nobody knows": eachRequest(func(r *request) { r.locks[0].conversion = Seq{} }),
		"converted by nobody":          eachRequest(func(r *request) { r.locks[0].conversion = Seq{1, 1} }),
		"converted by another": eachRequest(func(r *request) {
			if !r.converts() && r.granted {
				r.locks[0].conversion = Seq{8, 0}
			}
		}),
		"conversion of another task": eachRequest(func(r *request) {
			if r.converts() {
				r.task = "other"
			}
		}),
		"conversion down that waits": eachRequest(func(r *request) {
			if r.converts() && !r.granted {
				r.locks[0].Mode = Shared
			}
		}),
		"conversion that holds": eachRequest(func(r *request) {
			if r.converts() && r.granted {
				r.locks[0].lock = 1
			}
		}),
		"a maximum that does not end": eachRequest(func(r *request) { r.maxHold = 5 }),
		"an end without a maximum":    eachRequest(func(r *request) { r.maxHold = 0 }),
		"own session with nothing":    eachSession(func(v *session) { v.lost = nil }),
		"another priority": eachRequest(func(r *request) {
			if !r.granted {
				r.priority++
			}
		}),
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
		"name too long":       &Acquire{Session: 1, Number: 1, Locks: want(long)},
		"no lock":             &Acquire{Session: 1, Number: 1},
		"one lock twice":      &Acquire{Session: 1, Number: 1, Locks: want("a", "a")},
		"locks unordered":     &Acquire{Session: 1, Number: 1, Locks: want("b", "a")},
		"no number":           &Acquire{Session: 1, Locks: want("a")},
		"number of its own":   &Acquire{Number: 1, Locks: want("a")},
		"key in a session":    &Acquire{Session: 1, Number: 1, Keyed: true, Locks: want("a")},
		"no mode":             &Acquire{Session: 1, Number: 1, Locks: []Want{{Name: "a"}}},
		"mode 3":              &Acquire{Session: 1, Number: 1, Locks: []Want{{Name: "a", Mode: 3}}},
		"limit":               &Acquire{Session: 1, Number: 1, Locks: []Want{{Name: "a", Mode: Shared, Limit: MaxLimit + 1}}},
		"wait":                &Acquire{Session: 1, Number: 1, Wait: MaxWait + 1, Locks: want("a")},
		"ttl":                 &Open{TTL: MaxTTL + 1},
		"owner":               &Open{Owner: long},
		"floor":               &Raise{Above: MaxFloor + 1},
		"renewals":            &Renew{Sessions: make([]Renewal, MaxRenewals+1)},
		"labels":              &Open{Labels: make([]Label, MaxLabels+1)},
		"label":               &Open{Labels: []Label{{long, ""}}},
		"priority":            &Acquire{Session: 1, Number: 1, Priority: MaxPriority + 1, Locks: want("a")},
		"low priority":        &Acquire{Session: 1, Number: 1, Priority: -MaxPriority - 1, Locks: want("a")},
		"max hold":            &Acquire{Session: 1, Number: 1, MaxHold: MaxTTL + 1, Locks: want("a")},
		"lock-delay":          &Acquire{Session: 1, Number: 1, Delay: MaxTTL + 1, Locks: want("a")},
		"value":               &Acquire{Session: 1, Number: 1, Value: strings.Repeat("v", MaxValue+1), Locks: want("a")},
		"convert of none":     &Convert{Session: 1, Number: 1, Want: want("a")[0]},
		"convert unnumbered":  &Convert{Session: 1, Of: 1, Want: want("a")[0]},
		"convert sessionless": &Convert{Number: 2, Of: 1, Want: want("a")[0]},
		"convert to none":     &Convert{Session: 1, Number: 2, Of: 1},
		"convert wait":        &Convert{Session: 1, Number: 2, Of: 1, Want: want("a")[0], Wait: MaxWait + 1},
		"new value":           &Value{Value: strings.Repeat("v", MaxValue+1)},
		"reason":              &Force{Reason: strings.Repeat("r", MaxReason+1)},
		"by":                  &Force{By: strings.Repeat("b", MaxActor+1)},
		"force delay":         &Force{Delay: MaxTTL + 1},
	} {
		if _, err := (&Entry{Commands: []Command{c}}).Encode(); err == nil {
			t.Errorf("encoded: %s", name)
		}
	}
	if _, err := (&Entry{Commands: slices.Repeat([]Command{&Close{}}, MaxCommands+1)}).Encode(); err == nil {
		t.Error("encoded: too many commands")
	}
}
