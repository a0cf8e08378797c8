package server

import (
	"net/http"
	"strconv"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/transport"
)

// Bounds of a page: how many rows are given when none is asked for and at most, how many holders and waiters of a lock
// are shown, and how many rows are looked at under the state's lock to find them.
const (
	defaultPage = 100
	maxPage     = 1000
	maxShown    = 1000
	scanLimit   = 10_000
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
	n.machine.Read(func(s *fsm.State) {
		c.index = s.Index()
		info = s.Lock(name, n.clock(s), maxShown)
	})
	out := transport.LockResponse{Name: name, Holders: holders(info.Holders)}
	if len(info.Holders) > 0 {
		out.Mode, out.Limit = modeWord(info.Holders[0].Mode), int64(info.Holders[0].Limit)
	}
	for _, w := range info.Queue {
		out.Queue = append(out.Queue, transport.Waiter{
			Owner: w.Owner, Task: w.Task, Mode: modeWord(w.Mode), WaitedMS: int64(w.Waited), Position: int64(w.Position), WaitsFor: w.WaitsFor,
		})
	}
	return reply{http.StatusOK, out}, nil
}

// lockFilter says which locks are asked for.
type lockFilter struct {
	prefix, after string
	limit         int
	held, waiting bool
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
	for _, field := range []string{"prefix", "after"} {
		if text := c.query.Get(field); text != "" {
			if err := transport.ValidateName(field, text); err != nil {
				return nil, err
			}
		}
	}
	return func(c *call) (reply, error) { return n.locks(c, f) }, nil
}

func (n *Node) locks(c *call, f lockFilter) (reply, error) {
	if err := n.beforeRead(c); err != nil {
		return reply{}, err
	}
	var out transport.LocksResponse
	after, looked := f.after, 0
	n.machine.Read(func(s *fsm.State) {
		c.index = s.Index()
		s.Locks(f.prefix, after, n.clock(s), fsm.MaxHolders, func(l fsm.LockInfo) bool {
			if len(out.Locks) == f.limit || looked == scanLimit {
				out.Next = after
				return false
			}
			looked++
			after = l.Name
			if (!f.held || l.Held > 0) && (!f.waiting || l.Waiting > 0) {
				out.Locks = append(out.Locks, summary(l))
			}
			return true
		})
	})
	return reply{http.StatusOK, out}, nil
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
			RemainingMS: int64(h.Remaining), Trace: h.Trace, Session: shortened(h.Session),
		})
	}
	return out
}
