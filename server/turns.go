package server

import (
	"context"
	"sync"
	"time"

	"github.com/pawl-lock/pawl/fsm"
)

// turns tells when one leader has followed another, as the log says: sooner than a connection tells that its other end has
// vanished. It is fed by the state machine, under its lock, so it never blocks.
type turns struct {
	mu   sync.Mutex
	term uint64          // of the last entry
	turn context.Context // ends when an entry of another term is applied
	end  context.CancelFunc
}

func newTurns() *turns {
	t := &turns{}
	t.turn, t.end = context.WithCancel(context.Background())
	return t
}

func (t *turns) applied(r *fsm.Result) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.Term == t.term { // 0 of a snapshot, which may be of any
		return
	}
	end := t.end
	t.term = r.Term
	t.turn, t.end = context.WithCancel(context.Background())
	end() // whoever it wakes runs in a goroutine of its own
}

// now ends when the next term's first entry has been applied here.
func (t *turns) now() context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.turn
}

// lateAnswer is how long a leader that another has followed may still answer what it did before, as one that handed over
// in good order does.
const lateAnswer = 500 * time.Millisecond

// untilFollowed gives a context that ends with ctx, and when this node has learned from the log that another node than
// leader leads: whatever that one has not answered then it can tell nothing of any more. A call that is repeated anyway is
// not left to it for longer.
func (n *Node) untilFollowed(ctx context.Context, leader string, repeated bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	var mu sync.Mutex
	unbind := func() bool { return true }
	var followed func()
	bind := func(turn context.Context) {
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			unbind = context.AfterFunc(turn, followed)
		}
	}
	followed = func() {
		turn := n.turns.now() // before the state is looked at, so that no turn is missed
		var name string
		n.machine.Read(func(s *fsm.State) { name, _ = s.Leader() })
		switch {
		case name == leader: // that was the beginning of the term in which it was asked
			bind(turn)
		case repeated || pause(ctx, lateAnswer):
			cancel()
		}
	}
	bind(n.turns.now())
	return ctx, func() {
		mu.Lock()
		defer mu.Unlock()
		cancel()
		unbind()
	}
}
