package server

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/transport"
)

// farewells are the waits that this node stood in for and whose callers are gone, until a leader has said that nothing is left
// of them. The leader that was asked last sees the call end and takes the wait back by itself; but when leadership changes in
// that moment only this node knows that nobody is to be told of the grant, and the next leader may not lead for long enough to
// find it out (orphanPatience).
//
// It is safe at any leader and at any time: nobody else repeats the wait, and nobody was told of its grant.
type farewells struct {
	mu    sync.Mutex
	waits map[fsm.ID]time.Time // when the wait itself is over; at most maxFarewells
	told  bool                 // a goroutine is telling the leader
}

const (
	// maxFarewells bounds them; one more is not told, as if this node had died.
	maxFarewells = 16 << 10

	// farewellLimit is how long a leader may take with an entry full of them. It is asked again.
	farewellLimit = 2 * time.Second

	// waitGrace is how long a wait stands in the state after its caller's time.
	waitGrace = 10 * time.Second
)

// leave is the end of a call that this node stood in for. Where the end is not certain nobody asks again.
func (n *Node) leave(c *call, err error) {
	s := c.standIn
	if s == nil || c.forwarded || !s.handed || err == nil || definite(err) || n.ctx.Err() != nil {
		return
	}
	f := &n.gone
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.waits) == maxFarewells {
		return
	}
	if f.waits == nil {
		f.waits = map[fsm.ID]time.Time{}
	}
	f.waits[s.id] = time.Now().Add(s.left() + waitGrace)
	if !f.told {
		f.told = true
		n.work.Go(n.tellFarewells)
	}
}

// next gives an entry full of those that matter still, and none when there is nothing to tell any more.
func (f *farewells) next() (ids []fsm.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for id, over := range f.waits {
		if now.After(over) {
			delete(f.waits, id)
		} else if ids = append(ids, id); len(ids) == fsm.MaxCommands {
			break
		}
	}
	f.told = len(ids) > 0
	return ids
}

func (f *farewells) done(ids []fsm.ID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		delete(f.waits, id)
	}
}

// tellFarewells tells the leader, one request at a time, until there is nothing to tell any more.
func (n *Node) tellFarewells() {
	wait := firstPause // in which the leader ends most of them by itself
	for {
		turn, end := n.turns.now(), time.NewTimer(wait)
		select {
		case <-end.C:
		case <-turn.Done(): // somebody else leads
			wait = firstPause
		case <-n.ctx.Done():
		}
		end.Stop()
		if n.ctx.Err() != nil {
			return
		}
		ids := n.gone.next()
		if len(ids) == 0 {
			return
		}
		ended := n.tellFarewell(ids)
		n.gone.done(ended)
		if wait = min(2*wait, lastPause); len(ended) > 0 {
			wait = firstPause
		}
	}
}

// farewell is what a node tells the leader, and what the leader answers: of which of them nothing is left.
type farewell struct {
	Waits []fsm.ID `json:"waits"`
}

// tellFarewell tells whoever leads, and returns of which waits nothing is left.
func (n *Node) tellFarewell(ids []fsm.ID) []fsm.ID {
	if l := n.leader.Load(); l != nil {
		return n.endLeft(l, ids)
	}
	name, address := n.leaderNode()
	if address == "" || name == n.config.Name {
		return nil
	}
	ctx, cancel := context.WithTimeout(n.ctx, farewellLimit)
	defer cancel()
	var out farewell
	if err := n.ask(ctx, address, http.MethodPost, "/peer/farewell", farewell{ids}, &out); err != nil {
		return nil
	}
	return out.Waits
}

func (n *Node) farewell(_ *http.Request, in *farewell) (*farewell, error) {
	if len(in.Waits) > fsm.MaxCommands {
		return nil, transport.NewError(transport.ErrInvalid, "more than %d waits", fsm.MaxCommands)
	}
	l := n.leader.Load()
	if l == nil {
		return nil, n.notLeading()
	}
	return &farewell{n.endLeft(l, in.Waits)}, nil
}

// endLeft takes waits back whose callers are gone, and returns those of which nothing is left. Where a call still stands in for
// one, that call is about to end and takes it back: whoever tells of it asks again.
func (n *Node) endLeft(l *leadership, ids []fsm.ID) (ended []fsm.ID) {
	var free []*claim
	for _, id := range ids {
		if c := l.claims.takeFree(id); c != nil {
			free, ended = append(free, c), append(ended, id)
		}
	}
	n.endClaims(l, free)
	if l.ctx.Err() != nil {
		return nil // the next leader may have found some of them
	}
	return ended
}

// takeFree claims a wait that no call has claimed, to take it back.
func (k *claims) takeFree(id fsm.ID) *claim {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held[id] != nil {
		return nil
	}
	c := &claim{id: id, ended: make(chan struct{})}
	k.held[id] = c
	delete(k.orphans, id)
	return c
}
