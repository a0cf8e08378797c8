package server

import (
	"fmt"
	"testing"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/transport"
)

func ended(name string, kind fsm.NoticeKind, reason string, token uint64) *fsm.Result {
	return &fsm.Result{Notices: []fsm.Notice{{Kind: kind, Name: name, Owner: "o", Token: token, Held: 5, Reason: reason}}}
}

func TestHistoryWords(t *testing.T) {
	for _, c := range []struct {
		kind         fsm.NoticeKind
		reason, want string
	}{
		{fsm.NoticeReleased, "", transport.EndedReleased}, {fsm.NoticeExpired, "session", transport.EndedExpired}, {fsm.NoticeExpired, "max_hold", transport.EndedMaxHold},
		{fsm.NoticeRevoked, "max_hold", transport.EndedRevoked}, {fsm.NoticeGranted, "", ""}, {fsm.NoticeConverted, "", ""}, {fsm.NoticeCancelled, "", ""}, {fsm.NoticeSessionEnded, "expired", ""},
	} {
		h := newHistory()
		h.applied(ended("a", c.kind, c.reason, 7))
		got := h.of("a")
		why := "" // what an operator gave
		if c.kind == fsm.NoticeRevoked {
			why = c.reason
		}
		if c.want == "" {
			if got != nil {
				t.Errorf("kind %d: %+v", c.kind, got)
			}
		} else if len(got) != 1 || got[0] != (transport.HistoryEntry{Owner: "o", Token: 7, HeldMS: 5, Ended: c.want, Reason: why}) {
			t.Errorf("kind %d, %q: %+v", c.kind, c.reason, got)
		}
	}
}

// What is kept is bounded, for one lock and over all; the locks that were used last stay.
func TestHistoryIsBounded(t *testing.T) {
	h := newHistory()
	for i := range uint64(20) {
		h.applied(ended("kept", fsm.NoticeReleased, "", i))
	}
	if got := h.of("kept"); len(got) != historyHolds || got[0].Token != 19 || got[historyHolds-1].Token != 12 {
		t.Errorf("%+v", got)
	}
	for i := range 3 * historyLocks {
		h.applied(ended(fmt.Sprint(i), fsm.NoticeReleased, "", 1))
		if i%1000 == 0 {
			h.applied(ended("kept", fsm.NoticeReleased, "", 1))
		}
	}
	if len(h.locks) != historyLocks || h.used.Len() != historyLocks {
		t.Errorf("%d and %d locks are kept", len(h.locks), h.used.Len())
	}
	if h.of("kept") == nil || h.of("0") != nil || h.of(fmt.Sprint(3*historyLocks-1)) == nil {
		t.Error("not those that were used last are kept")
	}
}

// After a snapshot was restored nothing is known of what lies between; a raise is told in the log, so what was before stands.
func TestHistoryAfterReset(t *testing.T) {
	reset := []fsm.Event{{Kind: fsm.EventReset}}
	h := newHistory()
	h.applied(ended("a", fsm.NoticeReleased, "", 1))
	h.applied(&fsm.Result{Events: reset, Notices: []fsm.Notice{{Kind: fsm.NoticeRaised}}})
	if h.of("a") == nil {
		t.Error("a raise has emptied the history")
	}
	h.applied(&fsm.Result{Events: reset})
	if h.of("a") != nil || h.used.Len() != 0 {
		t.Errorf("a restored snapshot left %+v", h.of("a"))
	}
}

// A hold that is over but not taken apart yet is not present, however many there are.
func TestPresentIsWhoIsNotOver(t *testing.T) {
	s := fsm.NewState()
	index := uint64(0)
	apply := func(commands ...fsm.Command) *fsm.Result {
		t.Helper()
		index++
		e := &fsm.Entry{Stamp: fsm.Stamp{Begin: 1}, Commands: commands}
		if index == 1 {
			e = &fsm.Entry{Begin: &fsm.Begin{Cluster: fsm.ID{1}, Node: "n"}}
		}
		r, err := s.Apply(index, 1, e)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	apply()
	many := apply(&fsm.Open{Session: fsm.ID{1}, Owner: "many", TTL: 60_000}).Outcomes[0].Session
	other := apply(&fsm.Open{Session: fsm.ID{2}, Owner: "other", TTL: 60_000}).Outcomes[0].Session
	share := func(session, number uint64) uint64 {
		want := []fsm.Want{{Name: "a", Mode: fsm.Shared}}
		return apply(&fsm.Acquire{Session: session, Number: number, Locks: want}).Outcomes[0].Grant.Locks[0].Token
	}
	var token uint64
	const holds = 2500
	for number := range uint64(holds) {
		token = share(many, number+1)
	}
	if h, newest := present(s, "a", token); h == nil || h.Owner != "many" || newest != token {
		t.Fatalf("%+v %d", h, newest)
	}
	if h, newest := present(s, "a", token+1); h != nil || newest != token {
		t.Fatalf("%+v %d", h, newest)
	}
	share(other, 1)
	apply(&fsm.Close{Session: many})
	if left := s.Lock("a", s.Clock(), 0).Held; left < 1000 || left > holds {
		t.Fatalf("%d holds are left, so nothing is tested", left)
	}
	if h, newest := present(s, "a", token); h == nil || h.Owner != "other" || newest != token {
		t.Errorf("behind those that are over: %+v %d", h, newest)
	}
	apply(&fsm.Close{Session: other})
	if left := s.Lock("a", s.Clock(), 0).Held; left == 0 {
		t.Fatal("none is left, so nothing is tested")
	}
	if h, newest := present(s, "a", token); h != nil || newest != 0 {
		t.Errorf("all are over: %+v %d", h, newest)
	}
}
