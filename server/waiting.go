package server

import (
	"context"
	"net/http"
	"time"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server/replica"
	"github.com/pawl-lock/pawl/transport"
)

// wait is what a caller whose request is queued waits for: an acquire or a conversion.
type wait struct {
	session uint64 // 0: an acquire without a session
	number  uint64
	keyed   bool
	locks   int       // how many it asks for
	until   time.Time // its caller's time

	under *leadership // of a wait without number or key: in whose claims it is
}

// await waits until a queued request is granted or over, the caller's time has passed or it has gone away.
func (n *Node) await(c *call, what wait, a answer) (reply, error) {
	w := n.hub.register(a.outcome.Request)
	defer n.hub.forget(w)
	limit := time.NewTimer(time.Until(what.until))
	defer limit.Stop()
	for {
		var now fsm.Progress
		var begin uint64
		n.machine.Read(func(s *fsm.State) {
			now, begin = s.Request(a.outcome.Request, 1), s.Begin()
			c.index = max(c.index, s.Index()) // a grant made since is of a later entry than this call's own
		})
		switch {
		case what.under != nil && begin != what.under.begin:
			// A grant that this node sees may be one that the next leader takes back, since nobody has claimed it there.
			return reply{}, n.wireError(errMoved)
		case now.Grant != nil:
			return n.granted(c, now.Grant, a)
		case !now.Queued:
			return n.ended(c, what)
		}
		select {
		case told := <-w.news:
			switch {
			case told.err != nil:
				return reply{}, n.wireError(told.err)
			case what.under != nil: // what it is told of may be another leadership's doing: look
			case told.grant != nil:
				n.machine.Read(func(s *fsm.State) { c.index = max(c.index, s.Index()) })
				return n.granted(c, told.grant, a)
			case !told.look:
				return reply{}, refusal(fsm.Outcome{Code: endedCode(told.code)})
			}
		case <-limit.C:
			if what.keyed && !n.hub.alone(w) {
				// A repeat on another connection goes on waiting, which this call's end must not end.
				return reply{}, transport.NewError(transport.ErrUnknownOutcome, "another call with this key goes on waiting")
			}
			return n.endWait(c, what, a)
		case <-n.draining:
			if what.under == nil {
				return reply{}, transport.NewError(transport.ErrUnknownOutcome, "this node is stopping: repeat the request with the same number or key, its place is kept")
			}
			if c.forwarded {
				return reply{}, transport.NewError(transport.ErrUnknownOutcome, "this node is stopping: the wait has its place at the next leader")
			}
			return n.endWait(c, what, a)
		case <-c.Done():
			// A caller's end must not end a wait that it can repeat: the repeat may be under way on another connection
			// already. Any other is taken back (standin.go).
			return reply{}, transport.NewError(transport.ErrUnknownOutcome, "the caller has gone")
		}
	}
}

// alone reports whether no other caller waits for the request of w.
func (h *hub) alone(w *waiter) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiters[w.request]) == 1
}

// endedCode is what a waiter is told: Cancelled is the state machine's word for it, finished the wire's.
func endedCode(c fsm.Code) fsm.Code {
	if c == fsm.Cancelled {
		return fsm.Finished
	}
	return c
}

// ended answers for a request that is no longer there: why is known only from what is left.
func (n *Node) ended(c *call, what wait) (reply, error) {
	if err := n.linearizable(c); err != nil {
		return reply{}, n.wireError(replica.ErrUnknown)
	}
	alive := false
	n.machine.Read(func(s *fsm.State) { alive = what.session != 0 && s.SessionAlive(what.session) })
	if alive || what.keyed {
		return reply{}, refusal(fsm.Outcome{Code: fsm.Finished})
	}
	return reply{}, refusal(fsm.Outcome{Code: fsm.SessionGone})
}

// endWait is the end of the caller's time. A numbered request keeps its place: 202. Any other is taken back, unless it
// was granted in the same moment.
func (n *Node) endWait(c *call, what wait, a answer) (reply, error) {
	if what.session != 0 {
		return n.stillQueued(c, what, a)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c), requestLimit)
	defer cancel()
	var end answer
	var err error
	if cancel := (&fsm.Cancel{Session: a.outcome.Session, Waiting: true}); what.under != nil {
		end, err = n.proposeUnder(ctx, what.under, cancel, 32)
	} else {
		end, err = n.propose(ctx, cancel, 32)
	}
	if err != nil {
		return reply{}, n.wireError(replica.ErrUnknown) // the wait may go on, whatever became of the cancel
	}
	c.index = end.index
	switch end.outcome.Code {
	case fsm.OK:
		return n.granted(c, end.outcome.Grant, a)
	case fsm.Cancelled:
		end.outcome.Code = fsm.Held
		end.outcome.Waiting -= min(end.outcome.Waiting, what.locks) // it was counted itself, once a lock
	}
	return reply{}, refusal(end.outcome)
}

// positionLimit is how far a place in the queue is counted.
const positionLimit = 10_000

func (n *Node) stillQueued(c *call, what wait, a answer) (reply, error) {
	if err := n.linearizable(c); err != nil {
		return reply{}, n.wireError(replica.ErrUnknown)
	}
	var now fsm.Progress
	n.machine.Read(func(s *fsm.State) {
		now = s.Request(a.outcome.Request, positionLimit)
		c.index = s.Index()
	})
	switch {
	case now.Grant != nil:
		return n.granted(c, now.Grant, a)
	case !now.Queued:
		return n.ended(c, what)
	}
	out := transport.AcquireResponse{Request: what.number}
	for _, p := range now.Places {
		out.Queue = append(out.Queue, transport.QueuePosition{Name: p.Name, Position: int64(p.Position)})
	}
	return reply{http.StatusAccepted, out}, nil
}
