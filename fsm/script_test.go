package fsm

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// The language of the scripts in testdata, which is also how a failing random run is printed. An entry is one line:
//
//	begin [cluster=ID] [floor=N] [sessions=N] [tombstones=N] [requests=N] [waiters=N] [multiple=N] [holders=N]
//	+MS [COMMAND ; COMMAND …]        a stamped entry, MS after the one before
//	stale +MS [COMMAND ; …]          the same, stamped under another beginning
//
// and its commands are
//
//	open ID ttl=MS [owner=O] [label=K:V]
//	renew SESSION[@TTL][/DONE] …
//	close SESSION
//	acquire SESSION NUMBER LOCK … [wait=MS] [done=N] [task=T] [trace=T] [priority=N] [max=MS] [delay=MS] [value=V]
//	acquire key=ID|own=ID ttl=MS [owner=O] LOCK … [wait=MS] […]
//	release SESSION NUMBER [token=N] [name=L]       NUMBER 0 is the grant of a session of its own
//	cancel SESSION NUMBER [waiting] | cancel key=ID [waiting]
//	convert SESSION NUMBER of=N token=N LOCK [wait=MS] [done=N]     LOCK as it shall be
//	value SESSION NUMBER token=N name=L value=V
//	force LOCK token=N [reason=R] [by=B] [delay=MS]
//	raise ID above=N [reason=R]
//	level N
//	unknown                                         a command of a newer version that may be skipped
//
// where LOCK is NAME[:shared[:LIMIT]] and SESSION is an id that was opened before, or #N.

// step is one entry before it has an index and a stamp.
type step struct {
	begin    *Begin
	stale    bool
	elapsed  uint64 // since the entry before
	commands []Command
}

// stamper gives steps their stamps as a leader does.
type stamper struct{ begin, elapsed uint64 }

func (t *stamper) entry(index uint64, st step) *Entry {
	if st.begin != nil {
		t.begin, t.elapsed = index, 0
		return &Entry{Begin: st.begin}
	}
	if !st.stale {
		t.elapsed += st.elapsed
		return &Entry{Stamp: Stamp{t.begin, t.elapsed}, Wall: 1_700_000_000_000 + index, Commands: st.commands}
	}
	return &Entry{Stamp: Stamp{t.begin + 1, st.elapsed}, Commands: st.commands}
}

func label(s string) (id ID) {
	copy(id[:], s)
	return id
}

func (id ID) label() string { return strings.TrimRight(string(id[:]), "\x00") }

// names finds the number of a session by its label, also when the session is gone.
type names map[string]uint64

func (n names) session(word string) uint64 {
	if number, ok := strings.CutPrefix(word, "#"); ok {
		return number64(number)
	}
	number, ok := n[word]
	if !ok {
		panic(fmt.Sprintf("session %q was never opened", word))
	}
	return number
}

func number64(s string) uint64 {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		panic(err.Error())
	}
	return n
}

// words are what a line of a script is made of.
type words struct {
	plain []string
	named map[string]string
}

func split(line string) words {
	w := words{named: map[string]string{}}
	for _, f := range strings.Fields(line) {
		if k, v, ok := strings.Cut(f, "="); ok {
			w.named[k] = v
		} else {
			w.plain = append(w.plain, f)
		}
	}
	return w
}

func (w words) number(name string) uint64 {
	if v, ok := w.named[name]; ok {
		return number64(v)
	}
	return 0
}

// parseStep reads one entry. What is wrong in a script panics: it is a mistake of the test.
func parseStep(line string, n names) step {
	w := split(line)
	if w.plain[0] == "begin" {
		b := &Begin{Cluster: label("cluster"), Floor: w.number("floor"), Node: "n1", Limits: Limits{
			w.number("sessions"), w.number("tombstones"), w.number("requests"), w.number("waiters"), w.number("multiple"), w.number("holders"),
		}}
		if c, ok := w.named["cluster"]; ok {
			b.Cluster = label(c)
		}
		return step{begin: b}
	}
	var st step
	if rest, ok := strings.CutPrefix(line, "stale "); ok {
		st.stale, line = true, rest
	}
	elapsed, rest, _ := strings.Cut(line, " ")
	st.elapsed = number64(strings.TrimPrefix(elapsed, "+"))
	for c := range strings.SplitSeq(rest, ";") {
		if c = strings.TrimSpace(c); c != "" {
			st.commands = append(st.commands, parseCommand(c, n))
		}
	}
	return st
}

func parseCommand(line string, n names) Command {
	w := split(line)
	switch w.plain[0] {
	case "open":
		o := &Open{Session: label(w.plain[1]), Owner: w.named["owner"], TTL: w.number("ttl")}
		if k, v, ok := strings.Cut(w.named["label"], ":"); ok {
			o.Labels = []Label{{k, v}}
		}
		return o
	case "renew":
		r := &Renew{}
		for _, f := range w.plain[1:] {
			f, done, _ := strings.Cut(f, "/")
			f, ttl, _ := strings.Cut(f, "@")
			one := Renewal{Session: n.session(f)}
			if done != "" {
				one.Done = number64(done)
			}
			if ttl != "" {
				one.TTL = number64(ttl)
			}
			r.Sessions = append(r.Sessions, one)
		}
		return r
	case "close":
		return &Close{Session: n.session(w.plain[1])}
	case "acquire":
		a := &Acquire{
			Done: w.number("done"), Owner: w.named["owner"], TTL: w.number("ttl"), Wait: w.number("wait"),
			Task: w.named["task"], Trace: w.named["trace"], MaxHold: w.number("max"), Delay: w.number("delay"), Value: w.named["value"],
		}
		if p, ok := w.named["priority"]; ok {
			n, err := strconv.ParseInt(p, 10, 64)
			if err != nil {
				panic(err.Error())
			}
			a.Priority = n
		}
		locks := w.plain[1:]
		if k, ok := w.named["key"]; ok {
			a.ID, a.Keyed = label(k), true
		} else if o, ok := w.named["own"]; ok {
			a.ID = label(o)
		} else {
			a.Session, a.Number, locks = n.session(locks[0]), number64(locks[1]), locks[2:]
		}
		for _, l := range locks {
			a.Locks = append(a.Locks, parseWant(l))
		}
		return a
	case "release":
		return &Release{Session: n.session(w.plain[1]), Number: number64(w.plain[2]), Token: w.number("token"), Name: w.named["name"]}
	case "cancel":
		c := &Cancel{Waiting: w.plain[len(w.plain)-1] == "waiting"}
		if k, ok := w.named["key"]; ok {
			c.Key, c.Keyed = label(k), true
		} else {
			c.Session, c.Number = n.session(w.plain[1]), number64(w.plain[2])
		}
		return c
	case "convert":
		return &Convert{
			Session: n.session(w.plain[1]), Number: number64(w.plain[2]), Of: w.number("of"), Token: w.number("token"),
			Want: parseWant(w.plain[3]), Wait: w.number("wait"), Done: w.number("done"),
		}
	case "value":
		return &Value{Session: n.session(w.plain[1]), Number: number64(w.plain[2]), Token: w.number("token"), Name: w.named["name"], Value: w.named["value"]}
	case "force":
		return &Force{Name: w.plain[1], Token: w.number("token"), Reason: w.named["reason"], By: w.named["by"], Delay: w.number("delay")}
	case "raise":
		return &Raise{ID: label(w.plain[1]), Above: w.number("above"), Reason: w.named["reason"]}
	case "level":
		return &Level{Level: number64(w.plain[1])}
	case "unknown":
		return nil
	}
	panic("no such command: " + line)
}

func parseWant(s string) Want {
	f := strings.Split(s, ":")
	w := Want{Name: f[0], Mode: Exclusive}
	if len(f) > 1 && f[1] == "shared" {
		w.Mode = Shared
	}
	if len(f) > 2 {
		w.Limit = uint32(number64(f[2]))
	}
	return w
}

func (w Want) String() string {
	switch {
	case w.Mode == Exclusive:
		return w.Name
	case w.Limit == 0:
		return w.Name + ":shared"
	}
	return fmt.Sprintf("%s:shared:%d", w.Name, w.Limit)
}

// String writes a step in the language of the scripts.
func (st step) String() string {
	if b := st.begin; b != nil {
		l := b.Limits
		return fmt.Sprintf("begin floor=%d sessions=%d tombstones=%d requests=%d waiters=%d multiple=%d holders=%d",
			b.Floor, l.Sessions, l.Tombstones, l.Requests, l.Waiters, l.Multiple, l.Holders)
	}
	var b strings.Builder
	if st.stale {
		b.WriteString("stale ")
	}
	fmt.Fprintf(&b, "+%d", st.elapsed)
	for i, c := range st.commands {
		if i > 0 {
			b.WriteString(" ;")
		}
		b.WriteString(" " + formatCommand(c))
	}
	return b.String()
}

func formatCommand(command Command) string {
	var b strings.Builder
	put := func(name string, v uint64) {
		if v != 0 {
			fmt.Fprintf(&b, " %s=%d", name, v)
		}
	}
	text := func(name, v string) {
		if v != "" {
			fmt.Fprintf(&b, " %s=%s", name, v)
		}
	}
	switch c := command.(type) {
	case nil:
		return "unknown"
	case *Open:
		fmt.Fprintf(&b, "open %s ttl=%d", c.Session.label(), c.TTL)
		text("owner", c.Owner)
		for _, l := range c.Labels {
			text("label", l.Key+":"+l.Value)
		}
	case *Renew:
		b.WriteString("renew")
		for _, r := range c.Sessions {
			fmt.Fprintf(&b, " #%d@%d/%d", r.Session, r.TTL, r.Done)
		}
	case *Close:
		fmt.Fprintf(&b, "close #%d", c.Session)
	case *Acquire:
		switch {
		case c.Keyed:
			fmt.Fprintf(&b, "acquire key=%s", c.ID.label())
		case c.Session == 0:
			fmt.Fprintf(&b, "acquire own=%s", c.ID.label())
		default:
			fmt.Fprintf(&b, "acquire #%d %d", c.Session, c.Number)
		}
		for _, w := range c.Locks {
			fmt.Fprintf(&b, " %v", w)
		}
		put("wait", c.Wait)
		put("ttl", c.TTL)
		put("done", c.Done)
		text("owner", c.Owner)
		text("task", c.Task)
		text("trace", c.Trace)
		if c.Priority != 0 {
			fmt.Fprintf(&b, " priority=%d", c.Priority)
		}
		put("max", c.MaxHold)
		put("delay", c.Delay)
		text("value", c.Value)
	case *Release:
		fmt.Fprintf(&b, "release #%d %d", c.Session, c.Number)
		put("token", c.Token)
		text("name", c.Name)
	case *Cancel:
		if c.Keyed {
			fmt.Fprintf(&b, "cancel key=%s", c.Key.label())
		} else {
			fmt.Fprintf(&b, "cancel #%d %d", c.Session, c.Number)
		}
		if c.Waiting {
			b.WriteString(" waiting")
		}
	case *Convert:
		fmt.Fprintf(&b, "convert #%d %d of=%d token=%d %v", c.Session, c.Number, c.Of, c.Token, c.Want)
		put("wait", c.Wait)
		put("done", c.Done)
	case *Value:
		fmt.Fprintf(&b, "value #%d %d token=%d name=%s", c.Session, c.Number, c.Token, c.Name)
		text("value", c.Value)
	case *Force:
		fmt.Fprintf(&b, "force %s token=%d", c.Name, c.Token)
		text("reason", c.Reason)
		text("by", c.By)
		put("delay", c.Delay)
	case *Raise:
		fmt.Fprintf(&b, "raise %s above=%d", c.ID.label(), c.Above)
		text("reason", c.Reason)
	case *Level:
		fmt.Fprintf(&b, "level %d", c.Level)
	}
	return b.String()
}

// roundTrip applies nothing: it returns the state restored from a snapshot of s, after checking that this is the same
// state (R12).
func roundTrip(s *State) (*State, error) {
	b := s.Encode()
	restored, err := Decode(b)
	if err != nil {
		return nil, fmt.Errorf("restoring: %w", err)
	}
	if !bytes.Equal(b, restored.Encode()) {
		return nil, errors.New("a restored snapshot has other bytes")
	}
	return restored, nil
}

// learn remembers the numbers of the sessions that an entry opened.
func (n names) learn(s *State) {
	for _, v := range items(s.ids) {
		n[v.key.label()] = v.number
	}
}
