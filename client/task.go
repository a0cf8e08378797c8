package client

import (
	"context"
	"strconv"
	"sync"
)

// task is a unit of work that holds and waits in sequence, as the server's search for deadlocks needs it (R7). An acquire
// under the context of a lock goes on with that lock's task, so that the server sees what is nested; any other begins one.
//
// What the client cannot see is which goroutine asks, and two goroutines in one task would be refused falsely: one can
// release what the other waits for. So only the innermost lock of a task is gone on from. Who acquires under the context
// of an outer one does it beside what the task is doing already, and gets a task of its own.
type task struct {
	client *Client // the server knows a task by session and name: what another client calls so is another one
	id     string

	mu        sync.Mutex
	innermost *step // nil: nothing is left of it
}

// step is one acquire of a task: from its beginning until it has failed, or the server holds nothing for it any more.
type step struct {
	task  *task
	under *step // whose lock's context it was made under
	over  bool  // guarded by task.mu
}

// stepKey is where a context keeps the step whose lock it belongs to.
type stepKey struct{}

// step begins an acquire under ctx. An id that the caller gives is taken as it is.
func (c *Client) step(ctx context.Context, id string) *step {
	under, _ := ctx.Value(stepKey{}).(*step)
	if under != nil && under.task.client == c && (id == "" || id == under.task.id) {
		if next := under.next(); next != nil {
			return next
		}
	}
	if id == "" {
		// The sign keeps these apart from what callers choose.
		id = "#" + strconv.FormatUint(c.tasks.Add(1), 10)
	}
	first := &step{task: &task{client: c, id: id}}
	first.task.innermost = first
	return first
}

// next gives the step that follows, or nil when this one is not the innermost.
func (s *step) next() *step {
	s.task.mu.Lock()
	defer s.task.mu.Unlock()
	if s.task.innermost != s {
		return nil
	}
	s.task.innermost = &step{task: s.task, under: s}
	return s.task.innermost
}

// end says that the server holds nothing for the step any more. It may be called again.
func (s *step) end() {
	s.task.mu.Lock()
	defer s.task.mu.Unlock()
	s.over = true
	for s.task.innermost != nil && s.task.innermost.over {
		s.task.innermost = s.task.innermost.under
	}
}
