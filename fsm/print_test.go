package fsm

import (
	"bytes"
	"fmt"
	"strings"
)

func (c Code) String() string {
	names := []string{
		OK: "ok", Queued: "queued", Held: "held", Finished: "finished", Mismatch: "mismatch", SessionGone: "session gone", NotHeld: "not held",
		ModeConflict: "mode conflict", OverQuota: "over quota", Exhausted: "exhausted", OwnSession: "own session", Cancelled: "cancelled",
		Released: "released", Skipped: "skipped", Deadlock: "deadlock", Delayed: "delayed", SameMode: "same mode",
	}
	if int(c) < len(names) && names[c] != "" {
		return names[c]
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// who names a session in what is printed.
func (s *State) who(n uint64) string {
	if v := s.peekSession(n); v != nil {
		return v.id.label()
	}
	return fmt.Sprintf("#%d", n)
}

func (s *State) requestName(r *request) string {
	if r.number == 0 {
		return s.who(r.session)
	}
	return fmt.Sprintf("%s/%d", s.who(r.session), r.number)
}

func printGrant(g *Grant, clock uint64) string {
	var b strings.Builder
	b.WriteString(g.ID.label())
	if g.Number != 0 {
		fmt.Fprintf(&b, "/%d", g.Number)
	}
	for _, l := range g.Locks {
		fmt.Fprintf(&b, " %v=%d", l.Want, l.Token)
	}
	fmt.Fprintf(&b, " lease %d", g.Deadline-clock)
	if g.HoldEnds != 0 {
		fmt.Fprintf(&b, " hold %d", g.HoldEnds-clock)
	}
	return b.String()
}

func printOutcome(o Outcome, clock uint64) string {
	var b strings.Builder
	b.WriteString(o.Code.String())
	put := func(format string, show bool, args ...any) {
		if show {
			fmt.Fprintf(&b, ", "+format, args...)
		}
	}
	put("session #%d", o.Session != 0, o.Session)
	if o.Grant != nil {
		put("granted %s", true, printGrant(o.Grant, clock))
	}
	put("replayed", o.Replayed)
	put("ttl %d", o.TTL != 0, o.TTL)
	put("lease %d", o.Lease != 0, o.Lease)
	put("%d holds", o.Count != 0, o.Count)
	put("released %s", len(o.Names) > 0, strings.Join(o.Names, " "))
	for _, h := range o.Holders {
		put("%s by %s token %d for %d more", true, h.Name, h.Session.label(), h.Token, h.Remaining)
	}
	put("%d waiting", o.Waiting != 0, o.Waiting)
	put("quota of %s", o.Quota != "", o.Quota)
	put("limit %d", o.Limit != 0, o.Limit)
	put("at %s", o.Name != "", o.Name)
	put("tokens above %d", o.Base != 0, o.Base)
	put("retry in %d", o.Retry != 0, o.Retry)
	put("more", o.More)
	for _, l := range o.Lost {
		put("lost %d %s=%d: %s by %q", true, l.Number, l.Name, l.Token, l.Reason, l.By)
	}
	for _, s := range o.Cycle {
		put("%s of %q waits for %s held by %q", true, s.Task, s.Owner, s.WaitsFor, s.HeldBy)
	}
	for _, r := range o.Renewals {
		put("[%s]", true, printOutcome(r, clock))
	}
	return b.String()
}

// print writes what an entry did.
func (r *Result) print(b *bytes.Buffer) {
	if !r.Applied {
		b.WriteString("not applied\n")
		return
	}
	for _, o := range r.Outcomes {
		fmt.Fprintf(b, "%s\n", printOutcome(o, r.Clock))
	}
	for i, e := range r.Events {
		if i == maxPrinted {
			fmt.Fprintf(b, "! … %d events\n", len(r.Events))
			break
		}
		switch e.Kind {
		case EventGranted:
			fmt.Fprintf(b, "! %d.%d granted %s\n", e.Request.Index, e.Request.Pos, printGrant(e.Grant, r.Clock))
		case EventEnded:
			fmt.Fprintf(b, "! %d.%d ended: %v\n", e.Request.Index, e.Request.Pos, e.Code)
		case EventReset:
			b.WriteString("! reset\n")
		}
	}
	for i, n := range r.Notices {
		if i == maxPrinted {
			fmt.Fprintf(b, "~ … %d notices\n", len(r.Notices))
			break
		}
		fmt.Fprintf(b, "~ %v\n", n)
	}
}

func (n Notice) String() string {
	var b strings.Builder
	b.WriteString([]string{
		NoticeGranted: "granted", NoticeReleased: "released", NoticeExpired: "expired", NoticeRevoked: "revoked", NoticeQueued: "queued",
		NoticeCancelled: "cancelled", NoticeDelayed: "delayed", NoticeConverted: "converted", NoticeValue: "value",
		NoticeSessionOpened: "session opened", NoticeSessionEnded: "session ended", NoticeRaised: "raised",
	}[n.Kind])
	put := func(format string, v any, show bool) {
		if show {
			fmt.Fprintf(&b, format, v)
		}
	}
	put(" %s", n.Name, n.Name != "")
	put(":%s", "shared", n.Mode == Shared)
	put("=%d", n.Token, n.Token != 0)
	put(" %s", n.Session.label(), n.Session != ID{})
	put(" of %s", n.Owner, n.Owner != "")
	put(" task %s", n.Task, n.Task != "")
	put(" after %d", n.Held, n.Held != 0)
	put(" (%s)", n.Reason, n.Reason != "")
	put(" by %s", n.By, n.By != "")
	return b.String()
}

// maxPrinted is how many of a kind are printed one by one.
const maxPrinted = 8

// print writes a state for people.
func (s *State) print(b *bytes.Buffer) {
	fmt.Fprintf(b, "  index %d clock %d", s.index, s.clock)
	if s.base != 0 {
		fmt.Fprintf(b, " base %d", s.base)
	}
	if look, rem := s.look.Len(), s.rem.Len(); s.backlog() {
		fmt.Fprintf(b, " backlog (look %d, rem %d)", look, rem)
	}
	b.WriteString("\n")
	locks := items(s.names)
	for _, n := range locks[:min(len(locks), maxPrinted)] {
		s.printLock(b, n)
	}
	if len(locks) > maxPrinted {
		fmt.Fprintf(b, "  … %d locks\n", len(locks))
	}
	sessions := items(s.sessions)
	for _, v := range sessions[:min(len(sessions), maxPrinted)] {
		fmt.Fprintf(b, "  session %s", v.id.label())
		switch {
		case v.tomb:
			fmt.Fprintf(b, " tombstone until %d\n", v.deadline)
			continue
		case v.closed:
			b.WriteString(" closed")
		case v.deadline != never:
			fmt.Fprintf(b, " until %d", v.deadline)
		}
		if s.gone(v) {
			b.WriteString(" gone")
		}
		fmt.Fprintf(b, ", %d holds, %d waits", v.holds, v.waits)
		for i, f := range v.finished {
			if i == maxPrinted {
				fmt.Fprintf(b, " … %d intervals", len(v.finished))
				break
			}
			if i == 0 {
				b.WriteString(", finished")
			}
			fmt.Fprintf(b, " %d", f.low)
			if f.high > f.low {
				fmt.Fprintf(b, "–%d", f.high)
			}
		}
		b.WriteString("\n")
	}
	if len(sessions) > maxPrinted {
		fmt.Fprintf(b, "  … %d sessions\n", len(sessions))
	}
}

func (s *State) printLock(b *bytes.Buffer, n named[string]) {
	fmt.Fprintf(b, "  %s:", n.key)
	if l, _ := s.locks.Get(&lock{number: n.number}); l.delay != 0 {
		fmt.Fprintf(b, " delayed until %d", l.delay)
	}
	count := 0
	s.eachHold(n.number, func(p place) bool {
		if count++; count <= maxPrinted {
			r := s.peekRequest(p.seq)
			held := r.locks[r.position(p.lock)]
			fmt.Fprintf(b, " %s(%s %d", s.requestName(r), modeName(p), held.token)
			if r.deadline != never {
				fmt.Fprintf(b, " until %d", r.deadline)
			}
			if held.former != 0 {
				fmt.Fprintf(b, " was %d", held.former)
			}
			if held.value != "" {
				fmt.Fprintf(b, " %q", held.value)
			}
			b.WriteString(")")
		}
		return true
	})
	if count > maxPrinted {
		fmt.Fprintf(b, " … %d holders", count)
	}
	if _, waits := first(s.queue, n.number); waits {
		b.WriteString(" |")
	}
	count = 0
	s.eachWait(n.number, func(p place) bool {
		if count++; count <= maxPrinted {
			r := s.peekRequest(p.seq)
			i := r.position(p.lock)
			stands := map[bool]string{true: "-through"}[r.depth > i] + map[bool]string{true: "-barrier"}[r.depth == i]
			fmt.Fprintf(b, " %s(%s%s until %d)", s.requestName(r), modeName(p), stands, r.deadline)
		}
		return true
	})
	if count > maxPrinted {
		fmt.Fprintf(b, " … %d waiting", count)
	}
	b.WriteString("\n")
}

func modeName(p place) string {
	switch {
	case p.mode == Exclusive:
		return "exclusive"
	case p.limit == 0:
		return "shared"
	}
	return fmt.Sprintf("shared of %d", p.limit)
}
