package server

import (
	"container/list"
	"sync"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/transport"
)

// Bounds of the history: how many locks it knows, those used last, and how many ends of holds of each.
const (
	historyLocks = 4096
	historyHolds = 8
)

// history remembers who held a lock lately and how that ended. It is this node's memory only: not replicated, empty after
// a start and after a snapshot was restored. It is fed by the state machine, under its lock, so it never blocks.
type history struct {
	mu    sync.Mutex
	locks map[string]*list.Element // of *pastHolds
	used  *list.List               // the one that changed last is first
}

// pastHolds are the ended holds of one lock, oldest first.
type pastHolds struct {
	name  string
	ended []transport.HistoryEntry
}

func newHistory() *history { return &history{locks: map[string]*list.Element{}, used: list.New()} }

// applied takes what an entry ended.
func (h *history) applied(r *fsm.Result) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range r.Notices {
		if word := endedWord(n); word != "" {
			past := transport.HistoryEntry{Owner: n.Owner, Token: transport.Token(n.Token), HeldMS: int64(n.Held), Ended: word}
			if n.Kind == fsm.NoticeRevoked {
				past.Reason, past.By = n.Reason, n.By
			}
			h.addLocked(n.Name, past)
		}
	}
	if restored(r) { // what happened in between is not known
		clear(h.locks)
		h.used.Init()
	}
}

// restored reports whether the state was replaced by a snapshot; a raise says in a notice that it ended everything.
func restored(r *fsm.Result) bool {
	for _, e := range r.Events {
		if e.Kind == fsm.EventReset && len(r.Notices) == 0 {
			return true
		}
	}
	return false
}

// endedWord says how a hold ended, "" for what is no end of one.
func endedWord(n fsm.Notice) string {
	switch n.Kind {
	case fsm.NoticeReleased:
		return transport.EndedReleased
	case fsm.NoticeRevoked:
		return transport.EndedRevoked
	case fsm.NoticeExpired:
		if n.Reason == transport.EndedMaxHold {
			return transport.EndedMaxHold
		}
		return transport.EndedExpired
	}
	return ""
}

func (h *history) addLocked(name string, entry transport.HistoryEntry) {
	at, known := h.locks[name]
	if !known {
		if h.used.Len() == historyLocks {
			delete(h.locks, h.used.Remove(h.used.Back()).(*pastHolds).name)
		}
		at = h.used.PushFront(&pastHolds{name: name})
		h.locks[name] = at
	}
	h.used.MoveToFront(at)
	past := at.Value.(*pastHolds)
	if len(past.ended) == historyHolds {
		copy(past.ended, past.ended[1:])
		past.ended[historyHolds-1] = entry
		return
	}
	past.ended = append(past.ended, entry)
}

// of returns the last holds of a lock that have ended, the newest first.
func (h *history) of(name string) (out []transport.HistoryEntry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, known := h.locks[name]
	if !known {
		return nil
	}
	past := at.Value.(*pastHolds).ended
	for i := range past {
		out = append(out, past[len(past)-1-i])
	}
	return out
}
