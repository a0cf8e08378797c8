package server

import (
	"sync"

	"github.com/pawl-lock/pawl/fsm"
)

// hub wakes the callers on this node that wait for a request to be granted. It is fed by the state machine, under its
// lock, so it never blocks; what it forgets at a restart its callers find again by repeating (design, Waiting).
type hub struct {
	mu      sync.Mutex
	waiters map[fsm.Seq]map[*waiter]struct{}
	callers int // all of them
}

// waiter is one caller. Several may wait for one request.
type waiter struct {
	request fsm.Seq
	news    chan news
}

// news is what a waiter is told, once.
type news struct {
	grant *fsm.Grant // granted
	code  fsm.Code   // or ended, for this reason
	err   error      // or nothing can be said any more
	look  bool       // or: the state was replaced, look again
}

func newHub() *hub { return &hub{waiters: map[fsm.Seq]map[*waiter]struct{}{}} }

// register adds a waiter. The caller looks at the state afterwards: what happened before is there, what happens later
// comes as news, so no grant is missed (A19).
func (h *hub) register(request fsm.Seq) *waiter {
	w := &waiter{request: request, news: make(chan news, 1)}
	h.mu.Lock()
	defer h.mu.Unlock()
	set := h.waiters[request]
	if set == nil {
		set = map[*waiter]struct{}{}
		h.waiters[request] = set
	}
	set[w] = struct{}{}
	h.callers++
	return w
}

// forget takes a waiter out, once.
func (h *hub) forget(w *waiter) {
	h.mu.Lock()
	defer h.mu.Unlock()
	set := h.waiters[w.request]
	delete(set, w)
	h.callers--
	if len(set) == 0 {
		delete(h.waiters, w.request)
	}
}

// applied tells the waiters what an entry did.
func (h *hub) applied(r *fsm.Result) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range r.Events {
		switch e.Kind {
		case fsm.EventGranted:
			h.tellLocked(e.Request, news{grant: e.Grant})
		case fsm.EventEnded:
			h.tellLocked(e.Request, news{code: e.Code})
		case fsm.EventReset:
			for request := range h.waiters {
				h.tellLocked(request, news{look: true})
			}
		}
	}
}

func (h *hub) tellLocked(request fsm.Seq, n news) {
	for w := range h.waiters[request] {
		select {
		case w.news <- n:
		default: // it has not taken the news before; "granted" is final, and after "look" it looks anyway
		}
	}
}

// fail ends the waiting of all callers: each can ask again elsewhere, by number or key, or has a node that does so in its
// stead.
func (h *hub) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for request := range h.waiters {
		h.tellLocked(request, news{err: err})
	}
}

// count returns how many callers wait.
func (h *hub) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.callers
}
