package server

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/transport"
)

// Bounds of a page: how many rows are given when none is asked for and at most, how many holders and waiters of a lock
// are shown, how many rows are looked at to find them, and how many of these at once under the state's lock.
const (
	defaultPage = 100
	maxPage     = 1000
	maxShown    = 1000
	scanLimit   = 10_000
	scanPart    = 1000
)

func pageLimit(c *call) (int, error) {
	text, given := c.query["limit"]
	if !given {
		return defaultPage, nil
	}
	limit, err := strconv.Atoi(text[0])
	if err != nil || limit < 1 || limit > maxPage || strconv.Itoa(limit) != text[0] {
		return 0, badField("limit", "must be from 1 to %d", maxPage)
	}
	return limit, nil
}

func flagOf(c *call, name string) (bool, error) {
	text, given := c.query[name]
	if !given {
		return false, nil
	}
	if text[0] != "true" && text[0] != "false" {
		return false, badField(name, "must be true or false")
	}
	return text[0] == "true", nil
}

// beforeRead makes a read linearizable, unless stale was asked for.
func (n *Node) beforeRead(c *call) error {
	if c.query.Get("consistency") == "stale" {
		return nil
	}
	return n.linearizable(c)
}

// readLock is GET /v1/lock.
func (n *Node) readLock(c *call) (handler, error) {
	name := c.query.Get("name")
	if err := transport.ValidateName("name", name); err != nil {
		return nil, err
	}
	return func(c *call) (reply, error) { return n.lock(c, name) }, nil
}

func (n *Node) lock(c *call, name string) (reply, error) {
	if err := n.beforeRead(c); err != nil {
		return reply{}, err
	}
	var info fsm.LockInfo
	var past []transport.HistoryEntry
	n.machine.Read(func(s *fsm.State) {
		c.index = s.Index()
		info = s.Lock(name, n.clock(s), maxShown)
		past = n.history.of(name) // of the same moment
	})
	out := transport.LockResponse{Name: name, Holders: holders(info.Holders), DelayRemainingMS: int64(info.Delay), History: past}
	for _, h := range info.Holders {
		// One that names no limit may share a lock that others limit; those all name the same.
		out.Mode, out.Limit = modeWord(h.Mode), max(out.Limit, int64(h.Limit))
	}
	for _, w := range info.Queue {
		out.Queue = append(out.Queue, transport.Waiter{
			Owner: w.Owner, Task: w.Task, Mode: modeWord(w.Mode), Priority: w.Priority, WaitedMS: int64(w.Waited), Position: int64(w.Position),
			WaitsFor: w.WaitsFor, Session: shortened(w.Session),
		})
	}
	return reply{http.StatusOK, out}, nil
}

// lockFilter says which locks are asked for.
type lockFilter struct {
	prefix, after string
	limit         int
	held, waiting bool
	sort          string
}

// readLocks is GET /v1/locks.
func (n *Node) readLocks(c *call) (handler, error) {
	f := lockFilter{prefix: c.query.Get("prefix"), after: c.query.Get("after")}
	var err error
	if f.limit, err = pageLimit(c); err != nil {
		return nil, err
	}
	if f.held, err = flagOf(c, "held"); err != nil {
		return nil, err
	}
	if f.waiting, err = flagOf(c, "waiting"); err != nil {
		return nil, err
	}
	switch f.sort = c.query.Get("sort"); {
	case f.sort == "" && c.query.Has("sort"), !slices.Contains([]string{"", transport.SortName, transport.SortHeld, transport.SortQueue}, f.sort):
		return nil, badField("sort", "must be %q, %q or %q", transport.SortName, transport.SortHeld, transport.SortQueue)
	}
	for _, field := range []string{"prefix", "after"} {
		if text := c.query.Get(field); text != "" {
			if err := transport.ValidateName(field, text); err != nil {
				return nil, err
			}
		}
	}
	return func(c *call) (reply, error) { return n.locks(c, f) }, nil
}

// found is a lock that was asked for, and what it is sorted by.
type found struct {
	name string
	rank uint64
}

// locks reads a page. It lets entries be applied in between: each row is of one moment, the page is not.
func (n *Node) locks(c *call, f lockFilter) (reply, error) {
	if err := n.beforeRead(c); err != nil {
		return reply{}, err
	}
	list, next := n.scan(c, f)
	if !f.byName() {
		// No index keeps another order than by name, so it is one among the locks that were looked at.
		slices.SortStableFunc(list, func(a, b found) int { return cmp.Compare(b.rank, a.rank) })
		list = list[:min(len(list), f.limit)]
	}
	out := transport.LocksResponse{Next: next}
	for rows := range slices.Chunk(list, scanPart/10) {
		n.machine.Read(func(s *fsm.State) {
			for _, r := range rows {
				if l := s.Lock(r.name, n.clock(s), fsm.MaxHolders); f.wants(l) {
					out.Locks = append(out.Locks, summary(l))
				}
			}
		})
	}
	return reply{http.StatusOK, out}, nil
}

// scan finds the locks of a page or, in another order than by name, of all pages: among at most scanLimit of them. When
// there are more, next goes on behind those.
func (n *Node) scan(c *call, f lockFilter) (list []found, next string) {
	after, looked := f.after, 0
	shown := 0 // to count them nobody need be looked at
	if f.sort == transport.SortHeld {
		shown = 1
	}
	for more := true; more; {
		more = false
		n.machine.Read(func(s *fsm.State) {
			c.index = cmp.Or(c.index, s.Index())
			part := 0
			s.Locks(f.prefix, after, n.clock(s), shown, func(l fsm.LockInfo) bool {
				if (f.byName() && len(list) == f.limit) || looked == scanLimit {
					next = after
					return false
				}
				if more = part == scanPart; more {
					return false
				}
				part++
				looked++
				after = l.Name
				if f.wants(l) {
					list = append(list, found{l.Name, f.rank(l)})
				}
				return true
			})
		})
	}
	return list, next
}

func (f lockFilter) byName() bool { return f.sort == "" || f.sort == transport.SortName }

// wants reports whether the lock is one that is asked for; one that has become free meanwhile is none.
func (f lockFilter) wants(l fsm.LockInfo) bool {
	return (l.Held > 0 || l.Waiting > 0 || l.Delay > 0) && (!f.held || l.Held > 0) && (!f.waiting || l.Waiting > 0)
}

// rank is what is sorted by, the highest first. Of several holders the first counts, which without priorities is who has
// held it longest.
func (f lockFilter) rank(l fsm.LockInfo) uint64 {
	switch {
	case f.sort == transport.SortQueue:
		return uint64(l.Waiting)
	case len(l.Holders) > 0:
		return l.Holders[0].Held
	}
	return 0
}

func summary(l fsm.LockInfo) transport.LockSummary {
	out := transport.LockSummary{Name: l.Name, Holders: holders(l.Holders), QueueLength: int64(l.Waiting)}
	for _, h := range l.Holders {
		out.Mode = modeWord(h.Mode)
		out.HeldMS = max(out.HeldMS, int64(h.Held))
	}
	return out
}

func holders(list []fsm.Holder) []transport.Holder {
	var out []transport.Holder
	for _, h := range list {
		out = append(out, transport.Holder{
			Owner: h.Owner, Task: h.Task, Mode: modeWord(h.Mode), Token: transport.Token(h.Token), HeldMS: int64(h.Held),
			RemainingMS: int64(h.Remaining), Value: h.Value, Trace: h.Trace, Session: shortened(h.Session),
		})
	}
	return out
}
