package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/transport"
)

// What a node has to tell of callers that are gone is bounded, told an entry full at a time, and forgotten when the waits are
// over; only the end of a wait that nobody asks for again is told.
func TestFarewellsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{ctx: context.Background()}
		n.gone.told = true // the test tells them
		unknown := transport.NewError(transport.ErrUnknownOutcome, "")
		leave := func(i int, c *call, err error) {
			c.standIn.id = fsm.ID{byte(i), byte(i >> 8), byte(i >> 16)}
			n.leave(c, err)
		}
		handed := func() *call { return &call{standIn: &standIn{wait: time.Minute, handed: true}} }
		forwarded, fresh := handed(), &call{standIn: &standIn{wait: time.Minute}}
		forwarded.forwarded = true
		leave(0, handed(), nil)
		leave(1, handed(), errAnswered)
		leave(2, handed(), transport.NewError(transport.ErrHeld, ""))
		leave(3, forwarded, unknown)
		leave(4, fresh, transport.NewError(transport.ErrNoLeader, ""))
		n.leave(&call{}, errors.New("no wait"))
		if len(n.gone.waits) != 0 {
			t.Errorf("%d calls that leave nothing are told of", len(n.gone.waits))
		}
		for i := range maxFarewells + 10 {
			leave(i, handed(), unknown)
		}
		if got := len(n.gone.waits); got != maxFarewells {
			t.Errorf("%d are kept", got)
		}
		ids := n.gone.next()
		if len(ids) != fsm.MaxCommands {
			t.Errorf("%d are told at a time", len(ids))
		}
		n.gone.done(ids)
		if got := len(n.gone.waits); got != maxFarewells-fsm.MaxCommands {
			t.Errorf("%d are left", got)
		}
		time.Sleep(time.Minute + waitGrace + time.Millisecond)
		if ids := n.gone.next(); len(ids) != 0 || len(n.gone.waits) != 0 || n.gone.told {
			t.Errorf("%d are told and %d kept after their time", len(ids), len(n.gone.waits))
		}
	})
}
