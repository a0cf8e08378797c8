// Package history is what happened in a run: who began and ended what, and when.
package history

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Type says which part of an operation an Op is. Each invocation of a process is completed by one of the others, or never;
// after Info or no completion the process does nothing more, and another takes its place.
type Type string

// The types, in Jepsen's words.
const (
	Invoke Type = "invoke"
	OK     Type = "ok"   // done
	Fail   Type = "fail" // surely not done, and never will be
	Info   Type = "info" // may have been done, or may yet be; also what a nemesis does
)

// Nemesis is the process number of who makes the faults; clients count from 0.
const Nemesis = -1

// What operations are called.
const (
	Acquire  = "acquire"
	Release  = "release"
	Renew    = "renew"
	Convert  = "convert"
	Lost     = "lost" // the holder learned that the lock is lost: Info, without an invocation
	Read     = "read" // of the register
	Write    = "write"
	Transfer = "transfer"
	Look     = "look"   // a read of a lock: who holds it
	Queue    = "queue"  // asks for a lock and comes back with a place in its queue
	Cancel   = "cancel" // gives a numbered request back
	Open     = "open"   // opens a session
	Close    = "close"  // closes it
	Stray    = "stray"  // a release that names the Token of another grant: Fail is right
	Add      = "add"    // of Value to a set
	Force    = "force"  // an operator takes a lock away; Lock "" stands for all
	Final    = "final"  // a read in the phase after all faults were healed
	Digest   = "digest" // of a node's state: Node, Log, Note
	Heal     = "heal"   // Info of the nemesis: from here on there are no faults
	Fault    = "fault"  // Info of the nemesis: Note says which and Sequence which of the run; Begin or End in Value
)

// Free is the Note of a Final that finds out whether a lock can be had; other Finals read data.
const Free = "free"

// Silent is the Note of an acquire, with Info, whose client went away for good while it waited: nothing is ever sent in its
// session again, and every renewal before was told.
const Silent = "silent"

// Value of a Fault.
const (
	End   = 0
	Begin = 1
)

// Op is one event of a history. Which fields have a meaning depends on F; zero means none.
type Op struct {
	Index    int           `json:"index"`
	Time     time.Duration `json:"time"` // since the run began, on the cluster's clock
	Process  int           `json:"process"`
	Type     Type          `json:"type"`
	F        string        `json:"f"`
	Lock     string        `json:"lock,omitempty"`
	Locks    []Granted     `json:"locks,omitempty"` // of several at once
	Mode     string        `json:"mode,omitempty"`  // exclusive or shared
	Limit    int64         `json:"limit,omitempty"`
	Token    uint64        `json:"token,omitempty"`
	Session  string        `json:"session,omitempty"`
	Request  uint64        `json:"request,omitempty"`
	Sequence uint64        `json:"sequence,omitempty"`
	Value    int64         `json:"value,omitempty"` // of the register
	Previous int64         `json:"previous,omitempty"`
	Values   []int64       `json:"values,omitempty"` // of a set, or of all accounts
	Lease    time.Duration `json:"lease,omitempty"`  // until when the holder may believe to hold it, like Time
	Log      uint64        `json:"log,omitempty"`    // Raft index that the answer reflects
	Node     string        `json:"node,omitempty"`
	Error    string        `json:"error,omitempty"`
	Note     string        `json:"note,omitempty"`
}

// Granted is one of several locks.
type Granted struct {
	Name  string `json:"name"`
	Token uint64 `json:"token,omitempty"`
}

// History is the list of all Ops in order. It is safe for concurrent use.
type History struct {
	now   func() time.Duration
	limit int

	mu       sync.Mutex
	ops      []Op
	overflow bool
	also     func(Op)
}

// New makes an empty history that takes at most limit Ops. now is the time since the run began.
func New(now func() time.Duration, limit int) *History {
	return &History{now: now, limit: limit}
}

// Add appends an Op, with its Index and Time, and returns it.
func (h *History) Add(op Op) Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ops) >= h.limit {
		h.overflow = true // a history with a hole proves nothing: see Whole
		return op
	}
	op.Index, op.Time = len(h.ops), h.now()
	h.ops = append(h.ops, op)
	if h.also != nil {
		h.also(op)
	}
	return op
}

// Tee has each Op that is added from now on given to f too, one after the other. f must not use the history.
func (h *History) Tee(f func(Op)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.also = f
}

// Merge takes in what was recorded elsewhere, on the same clock. All is ordered by time then; what was recorded in one
// place stays in its order.
func (h *History) Merge(elsewhere []Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.ops)+len(elsewhere) > h.limit {
		h.overflow = true
		return
	}
	h.ops = append(slices.Clone(h.ops), elsewhere...)
	slices.SortStableFunc(h.ops, func(a, b Op) int { return cmp.Compare(a.Time, b.Time) })
	for i := range h.ops {
		h.ops[i].Index = i
	}
}

// Whole says whether every Op was kept.
func (h *History) Whole() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.overflow
}

// Ops gives what has been added so far. It must not be changed.
func (h *History) Ops() []Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ops[:len(h.ops):len(h.ops)]
}
