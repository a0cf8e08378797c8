package server

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/transport"
)

func entryWith(index uint64, names ...string) *fsm.Result {
	r := &fsm.Result{Index: index, Term: 1, Applied: true, Wall: 1}
	for _, name := range names {
		r.Notices = append(r.Notices, fsm.Notice{Kind: fsm.NoticeGranted, Name: name, Mode: fsm.Exclusive, Token: index})
	}
	return r
}

func TestPositions(t *testing.T) {
	for _, text := range []string{"0.0", "1.2", "18446744073709551615.4294967295"} {
		if p, ok := parsePosition(text); !ok || p.String() != text {
			t.Errorf("%s is read as %v %v", text, p, ok)
		}
	}
	for _, text := range []string{"", ".", "1", "1.", ".1", "01.1", "1.01", "+1.1", "1.-1", "1.1.1", " 1.1", "1.4294967296", "18446744073709551616.0"} {
		if p, ok := parsePosition(text); ok {
			t.Errorf("%q is read as %v", text, p)
		}
	}
}

// Every notice of the state machine has its word, and no two the same.
func TestEveryNoticeHasAWord(t *testing.T) {
	words := map[transport.EventKind]bool{}
	for kind := fsm.NoticeGranted; kind <= fsm.NoticeRaised; kind++ {
		word := eventKinds[kind]
		if word == "" || words[word] {
			t.Errorf("notice %d is called %q", kind, word)
		}
		words[word] = true
	}
}

// Whoever names a place from which everything is still known gets exactly what is behind it; any other is told so.
func TestEventLogKeepsWhatIsNewest(t *testing.T) {
	const entries = maxEvents // of two events each, so that half of them go
	l := newEventLog()
	for i := range uint64(entries) {
		l.applied(entryWith(i+1, "a", "b"))
	}
	const oldest = entries/2 + 1
	for _, test := range []struct {
		at    position
		first uint64 // entry of the page, 0 when the place is lost
	}{
		{position{0, 0}, 0},
		{position{1, 0}, 0},
		{position{oldest - 1, 1}, 0}, // its second event is gone
		{position{oldest - 1, 2}, oldest},
		{position{oldest, 0}, oldest},
		{position{oldest, 1}, oldest},
		{position{oldest, 2}, oldest + 1},
		{position{oldest + 1, 0}, oldest + 1},
	} {
		p := l.read(test.at)
		switch {
		case test.first == 0:
			if p.lost != transport.ResetTooOld {
				t.Errorf("%v: %q", test.at, p.lost)
			}
		case p.lost != "" || len(p.batches) != pageOfEvents || p.batches[0].index != test.first:
			t.Errorf("%v: %q, %d entries", test.at, p.lost, len(p.batches))
		}
	}
	if p := l.read(position{entries, 2}); p.lost != "" || len(p.batches) > 0 || p.head != (position{entries + 1, 0}) {
		t.Errorf("at the end: %+v", p)
	}
	if p := l.read(position{entries + 5, 0}); p.lost != "" || len(p.batches) > 0 {
		t.Errorf("ahead: %+v", p)
	}
}

func TestEventLogBoundsItsBytes(t *testing.T) {
	l := newEventLog()
	name := strings.Repeat(`"`, transport.MaxName) // each takes two bytes when it is written
	bytes := 0
	for i := range uint64(2 * maxEvents) {
		l.applied(entryWith(i+1, name))
	}
	for _, b := range l.batches {
		const structures = 320 // a notice, an event, a batch
		kept := cap(b.events()[0].text) + len(name) + structures
		bytes += kept
		if kept > b.size() {
			t.Fatalf("an event of %d bytes is counted as %d", kept, b.size())
		}
	}
	if l.bytes > maxEventBytes || bytes > maxEventBytes || len(l.batches) != l.count || l.count >= maxEvents {
		t.Errorf("%d bytes are kept, counted as %d, of %d events in %d entries", bytes, l.bytes, l.count, len(l.batches))
	}
}

// After a snapshot no place up to its last entry is known to be complete; the first one behind it is.
func TestEventLogAfterASnapshot(t *testing.T) {
	l := newEventLog()
	l.applied(entryWith(5, "a"))
	l.applied(&fsm.Result{Index: 9, Applied: true, Events: []fsm.Event{{Kind: fsm.EventReset}}})
	l.applied(entryWith(10, "b"))
	for at, lost := range map[position]string{
		{5, 0}:              transport.ResetRestored,
		{5, 1}:              transport.ResetRestored,
		{9, 7}:              transport.ResetRestored,
		{9, math.MaxUint32}: "",
		{10, 0}:             "",
		{10, 1}:             "",
	} {
		if p := l.read(at); p.lost != lost {
			t.Errorf("%v: lost %q, want %q", at, p.lost, lost)
		}
	}
}

// A raise ends holds that have no events of their own, so a reset stands behind it.
func TestEventsOfARaise(t *testing.T) {
	l := newEventLog()
	l.applied(&fsm.Result{
		Index: 3, Term: 1, Applied: true, Events: []fsm.Event{{Kind: fsm.EventReset}}, Notices: []fsm.Notice{{Kind: fsm.NoticeRaised, Reason: "x"}},
	})
	p := l.read(position{})
	if len(p.batches) != 1 || len(p.batches[0].events()) != 2 || p.batches[0].count() != 2 {
		t.Fatalf("got %+v", p)
	}
	for i, want := range []string{
		"id: 3.1\nevent: raised\ndata: {\"index\":3,\"reason\":\"x\"}\n\n",
		"id: 3.2\nevent: reset\ndata: {\"index\":3,\"reason\":\"raised\"}\n\n",
	} {
		e := p.batches[0].events()[i]
		if string(e.text) != want || !e.concerns("any") {
			t.Errorf("got %q", e.text)
		}
	}
}

func TestEventText(t *testing.T) {
	l := newEventLog()
	l.applied(&fsm.Result{Index: 7, Term: 1, Applied: true, Wall: 1_764_000_000_123, Notices: []fsm.Notice{
		{Kind: fsm.NoticeRevoked, Name: "a\u2028<b>\"c\"", Owner: "o", Task: "t", Mode: fsm.Shared, Token: 6, Reason: "r", By: "b"},
		{Kind: fsm.NoticeSessionEnded, Owner: "o", Reason: "expired"},
	}})
	list := l.read(position{}).batches[0].events()
	lines := strings.Split(string(list[0].text), "\n")
	if len(lines) != 5 || lines[0] != "id: 7.1" || lines[1] != "event: revoked" || lines[3] != "" || lines[4] != "" {
		t.Fatalf("got %q", lines)
	}
	var data transport.EventData
	if err := json.Unmarshal([]byte(strings.TrimPrefix(lines[2], "data: ")), &data); err != nil {
		t.Fatal(err)
	}
	want := transport.EventData{
		Index: 7, Name: "a\u2028<b>\"c\"", Owner: "o", Task: "t", Mode: "shared", Token: 6, Reason: "r", By: "b", Time: "2025-11-24T16:00:00.123Z",
	}
	if data != want {
		t.Errorf("got %+v, want %+v", data, want)
	}
	if list[1].concerns("o") || !list[1].concerns("") || !list[0].concerns("a") || list[0].concerns("b") {
		t.Error("the prefix is taken wrongly")
	}
}

// What an entry costs the state machine is the same whether nobody or the most readers there may be wait for events: counted
// in allocations and in what is waked (the one goroutine that wakes the others).
func TestReadersCostApplyNothing(t *testing.T) {
	costs := func(readers int) (allocations float64) {
		synctest.Test(t, func(t *testing.T) {
			l := newEventLog()
			done := make(chan struct{}, readers)
			for range readers {
				go func() {
					<-l.read(position{index: math.MaxUint64}).changed
					done <- struct{}{}
				}()
			}
			synctest.Wait()
			index, result := uint64(0), entryWith(1, "a", "b")
			allocations = testing.AllocsPerRun(maxEvents/4, func() {
				index++
				result.Index = index
				l.applied(result)
			})
			synctest.Wait()
			if len(done) > 0 {
				t.Errorf("%d readers were waked by the state machine itself", len(done))
			}
			close(l.changed)
			for range readers {
				<-done
			}
		})
		return allocations
	}
	none, all := costs(0), costs(maxEventReaders)
	t.Logf("%v allocations an entry", none)
	if none != all {
		t.Errorf("%v allocations without a reader, %v with %d", none, all, maxEventReaders)
	}
}

func BenchmarkEventsApplied(b *testing.B) {
	for _, events := range []int{1, 1000} {
		b.Run(fmt.Sprint(events, " events"), func(b *testing.B) {
			names := make([]string, events)
			for i := range names {
				names[i] = fmt.Sprint("orders/", i)
			}
			l, r := newEventLog(), entryWith(1, names...)
			for b.Loop() {
				r.Index++
				l.applied(r)
			}
		})
	}
}
