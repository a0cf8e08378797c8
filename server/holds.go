package server

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server/replica"
	"github.com/pawl-lock/pawl/transport"
)

// What is done with a hold between its grant and its end: it changes its mode and its value, others ask whether its token
// still counts, and operators end it.

// convert is POST /v1/convert. It waits as an acquire does.
func (n *Node) convert(c *call, r *transport.ConvertRequest) (reply, error) {
	began := time.Now()
	session, err := n.session(c, r.Session)
	if err != nil {
		return reply{}, err
	}
	command := &fsm.Convert{
		Session: session, Number: r.Request, Of: r.Of, Token: uint64(r.Token), Wait: uint64(r.WaitMS),
		Want: fsm.Want{Name: r.Name, Mode: modes[r.Mode], Limit: uint32(r.Limit)},
	}
	a, err := n.change(c, command, 64+len(r.Name))
	if err != nil {
		return reply{}, describeConflict(err, []transport.LockRequest{{Name: r.Name, Limit: r.Limit}})
	}
	if a.outcome.Code == fsm.OK {
		return n.granted(c, a.outcome.Grant, a)
	}
	return n.await(c, wait{session: session, number: r.Request, locks: 1, until: began.Add(time.Duration(r.WaitMS) * time.Millisecond)}, a)
}

// setValue is POST /v1/value.
func (n *Node) setValue(c *call, r *transport.ValueRequest) (reply, error) {
	session, err := n.session(c, r.Session)
	if err != nil {
		return reply{}, err
	}
	command := &fsm.Value{Session: session, Number: r.Request, Token: uint64(r.Token), Name: r.Name, Value: *r.Value}
	if _, err := n.change(c, command, 64+len(r.Name)+len(*r.Value)); err != nil {
		return reply{}, err
	}
	return reply{http.StatusOK, transport.ValueResponse{}}, nil
}

// check is POST /v1/check: a read, linearizable always.
func (n *Node) check(c *call, r *transport.CheckRequest) (reply, error) {
	if err := n.linearizable(c); err != nil {
		return reply{}, err
	}
	var holder *fsm.Holder
	var newest uint64
	n.machine.Read(func(s *fsm.State) {
		c.index = s.Index()
		holder, newest = present(s, r.Name, uint64(r.Token))
		if holder != nil { // shown as of now, not as of the last entry
			holder.Remaining -= min(holder.Remaining, n.clock(s)-s.Clock())
		}
	})
	if holder == nil {
		e := transport.NewError(transport.ErrStaleToken, "this is not the token of a present holder")
		e.Newest = transport.Token(newest)
		return reply{}, e
	}
	return reply{http.StatusOK, transport.CheckResponse{
		Valid: true, Owner: holder.Owner, Mode: modeWord(holder.Mode), RemainingMS: int64(holder.Remaining),
	}}, nil
}

// present finds a present holder of a lock with this token, and the newest token of the present ones. One that is over and
// only not taken apart yet (R3) is not present. All holders of a lock have one token, that of their period (R6), so the
// first few tell, unless those are over.
func present(s *fsm.State, name string, token uint64) (holder *fsm.Holder, newest uint64) {
	for _, limit := range []int{fsm.MaxHolders, scanLimit} {
		info := s.Lock(name, s.Clock(), limit)
		for _, h := range info.Holders {
			// On the clock of the last entry nothing is left of a hold that is over. Of one that ends with this very
			// millisecond neither, and it is called stale rather than valid.
			if h.Remaining == 0 {
				continue
			}
			newest = max(newest, h.Token)
			if h.Token == token {
				return &h, newest
			}
		}
		if newest != 0 || info.Held <= limit {
			break
		}
	}
	return nil, newest
}

// forceRelease is POST /v1/force-release. A lock that very many share is freed in several entries; whoever repeats the
// call after an unknown outcome ends what is left.
func (n *Node) forceRelease(c *call, r *transport.ForceReleaseRequest) (reply, error) {
	command := &fsm.Force{
		Name: r.Name, Token: uint64(r.Token), Reason: r.Reason, By: "operator at " + cmp.Or(c.clientIP(), "an unknown address"), Delay: uint64(r.LockDelayMS),
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c), requestLimit)
	defer cancel()
	var out transport.ForceReleaseResponse
	for {
		a, err := n.propose(ctx, command, 64+len(r.Name)+len(r.Reason)+len(command.By))
		switch {
		case err != nil && out.Released > 0:
			return reply{}, n.wireError(replica.ErrUnknown) // something has happened already
		case err != nil:
			return reply{}, err
		}
		c.index = a.index
		err = refusal(a.outcome)
		switch {
		case errors.Is(err, transport.ErrNotHeld) && out.Released == 0:
			return reply{}, transport.NewError(transport.ErrNotHeld, "no hold of this lock has this token")
		case err != nil && !errors.Is(err, transport.ErrNotHeld):
			return reply{}, err
		}
		out.Released += int64(a.outcome.Count)
		if !a.outcome.More {
			break
		}
	}
	n.log.Warn("released by force", "lock", r.Name, "token", r.Token, "reason", r.Reason, "by", command.By, "holds", out.Released)
	return reply{http.StatusOK, out}, nil
}

// clientIP is where a call came from, as the node that the client asked saw it; "" when that is not known.
func (c *call) clientIP() string {
	if c.forwarded { // over the peer port: the other node says so
		const most = 128
		host := c.request.Header.Get(transport.HeaderClient)
		if len(host) > most || transport.ValidateOwner(transport.HeaderClient, host) != nil {
			return ""
		}
		return host
	}
	host, _, err := net.SplitHostPort(c.request.RemoteAddr)
	if err != nil {
		return ""
	}
	return host
}
