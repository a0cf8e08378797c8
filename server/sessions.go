package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/transport"
)

// openSession is POST /v1/session.
func (n *Node) openSession(c *call, r *transport.SessionRequest) (reply, error) {
	command := &fsm.Open{Owner: r.Owner, TTL: uint64(cmp.Or(r.TTLMS, transport.DefaultTTLMS))}
	rand.Read(command.Session[:])
	size := 48 + len(r.Owner)
	for _, key := range slices.Sorted(maps.Keys(r.Labels)) {
		command.Labels = append(command.Labels, fsm.Label{Key: key, Value: r.Labels[key]})
		size += 4 + len(key) + len(r.Labels[key])
	}
	a, err := n.change(c, command, size)
	if err != nil {
		return reply{}, err
	}
	return reply{http.StatusCreated, transport.SessionResponse{
		Session: hex.EncodeToString(command.Session[:]), TTLMS: int64(a.outcome.TTL),
	}}, nil
}

// closeSession is POST /v1/session/close.
func (n *Node) closeSession(c *call, r *transport.SessionCloseRequest) (reply, error) {
	number, err := n.session(c, r.Session)
	if err != nil {
		return reply{}, err
	}
	a, err := n.change(c, &fsm.Close{Session: number}, 16)
	if err != nil {
		return reply{}, err
	}
	return reply{http.StatusOK, transport.SessionCloseResponse{Released: int64(a.outcome.Count)}}, nil
}

// renewSession is POST /v1/renew.
func (n *Node) renewSession(c *call, r *transport.RenewRequest) (reply, error) {
	number, err := n.session(c, r.Session)
	if err != nil {
		return reply{}, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c), requestLimit)
	defer cancel()
	ttl := time.Duration(cmp.Or(r.TTLMS, transport.MinTTLMS)) * time.Millisecond
	had, left := n.leaseOf(number)
	n.metrics.renewing(had, left)
	a, err := n.renew(ctx, fsm.Renewal{Session: number, TTL: uint64(r.TTLMS), Done: r.Done}, max(ttl, had))
	if err != nil {
		return reply{}, err
	}
	c.index = a.index
	if err := refusal(a.outcome); err != nil {
		return reply{}, err
	}
	out := transport.RenewResponse{
		Session: r.Session, TTLMS: int64(a.outcome.TTL), LeaseMS: int64(a.outcome.Lease), Holds: int64(a.outcome.Count),
	}
	for _, l := range a.outcome.Lost {
		out.Lost = append(out.Lost, transport.LostHold{Name: l.Name, Token: transport.Token(l.Token), Reason: l.Reason, By: l.By})
	}
	return reply{http.StatusOK, out}, nil
}

// leaseOf is a session's TTL and what is left of it.
func (n *Node) leaseOf(session uint64) (ttl, left time.Duration) {
	n.machine.Read(func(s *fsm.State) {
		whole, rest := s.SessionLease(session, n.clock(s))
		ttl, left = time.Duration(whole)*time.Millisecond, time.Duration(rest)*time.Millisecond
	})
	return ttl, left
}

// session finds the number of a session by the id its client knows. An unknown one is refused from behind a read round:
// this node's memory alone is no evidence (R4).
func (n *Node) session(c *call, text string) (uint64, error) {
	var id fsm.ID
	b, err := hex.DecodeString(text)
	if err != nil || len(b) != len(id) || hex.EncodeToString(b) != text { // one spelling only
		return 0, badField("session", "is not the id of a session")
	}
	copy(id[:], b)
	find := func() (number uint64) {
		n.machine.Read(func(s *fsm.State) {
			number = s.SessionNumber(id)
			c.index = s.Index()
		})
		return number
	}
	if number := find(); number != 0 {
		return number, nil
	}
	if err := n.linearizable(c); err != nil {
		return 0, err
	}
	if number := find(); number != 0 {
		return number, nil
	}
	return 0, refusal(fsm.Outcome{Code: fsm.SessionGone})
}

// readSessions is GET /v1/sessions. Pages are by session number: a session keeps its place as others come and go.
func (n *Node) readSessions(c *call) (handler, error) {
	limit, err := pageLimit(c)
	if err != nil {
		return nil, err
	}
	var after uint64
	if text := c.query.Get("after"); text != "" {
		after, err = strconv.ParseUint(text, 10, 64)
		if err != nil || after == ^uint64(0) || strconv.FormatUint(after, 10) != text {
			return nil, badField("after", "is not what a page gave as next")
		}
	}
	owner := c.query.Get("owner")
	if err := transport.ValidateOwner("owner", owner); owner != "" && err != nil {
		return nil, err
	}
	return func(c *call) (reply, error) { return n.sessions(c, after, limit, owner) }, nil
}

func (n *Node) sessions(c *call, after uint64, limit int, owner string) (reply, error) {
	if err := n.beforeRead(c); err != nil {
		return reply{}, err
	}
	var out transport.SessionsResponse
	looked := 0
	n.machine.Read(func(s *fsm.State) {
		c.index = s.Index()
		s.Sessions(after, n.clock(s), func(v fsm.SessionInfo) bool {
			if len(out.Sessions) == limit || looked == scanLimit {
				out.Next = strconv.FormatUint(after, 10)
				return false
			}
			looked++
			after = v.Number
			if owner == "" || owner == v.Owner {
				out.Sessions = append(out.Sessions, sessionSummary(v))
			}
			return true
		})
	})
	return reply{http.StatusOK, out}, nil
}

func sessionSummary(v fsm.SessionInfo) transport.SessionSummary {
	out := transport.SessionSummary{
		ID: shortened(v.ID), Owner: v.Owner, TTLMS: int64(v.TTL), RemainingMS: int64(v.Remaining), Holds: int64(v.Holds), Waits: int64(v.Waits),
	}
	for _, l := range v.Labels {
		if out.Labels == nil {
			out.Labels = map[string]string{}
		}
		out.Labels[l.Key] = l.Value
	}
	return out
}

// shortened shows a session so that people can tell it from others, and nobody can use it.
func shortened(id fsm.ID) string { return hex.EncodeToString(id[:4]) }
