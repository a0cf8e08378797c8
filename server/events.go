package server

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/transport"
)

// Bounds of what a node keeps of the past for readers of events.
const (
	maxEvents     = 16_384
	maxEventBytes = 16 << 20
)

// position is a place in the sequence of events: behind event seq (from 1) of the entry at index. Which events an entry
// makes is a matter of the log alone (R1), so a position means the same on every node.
type position struct {
	index uint64
	seq   uint32
}

func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.index, q.index), cmp.Compare(p.seq, q.seq))
}

func (p position) String() string { return fmt.Sprintf("%d.%d", p.index, p.seq) }

// parsePosition reads what String writes, and no other spelling.
func parsePosition(text string) (p position, ok bool) {
	before, after, _ := strings.Cut(text, ".")
	index, err1 := strconv.ParseUint(before, 10, 64)
	seq, err2 := strconv.ParseUint(after, 10, 32)
	p = position{index, uint32(seq)}
	return p, err1 == nil && err2 == nil && p.String() == text
}

// eventLog keeps the newest events of this node's applied state, for readers that each go through them at their own pace.
// The state machine feeds it under its lock: what that costs does not depend on how many read, or how slowly.
type eventLog struct {
	mu      sync.Mutex
	batches []*eventBatch // oldest first
	count   int           // events in them
	bytes   int
	floor   position // what is at or before it is not kept
	why     string   // a reader behind the floor is reset for this reason
	next    uint64   // every entry below it was applied
	changed chan struct{}

	wake chan struct{} // has room for one
}

// eventBatch is what one entry did.
type eventBatch struct {
	index   uint64
	wall    uint64 // unix ms
	notices []fsm.Notice
	raised  bool // and then everything was reset

	once sync.Once
	list []event // made when the first reader comes by
}

// event is one as it is sent.
type event struct {
	name string // of the lock; "" of what concerns no single lock
	kind transport.EventKind
	text []byte
}

func newEventLog() *eventLog {
	return &eventLog{next: 1, changed: make(chan struct{}), wake: make(chan struct{}, 1)}
}

// applied takes what an entry, or a snapshot that replaced the state, did. It is called in the order of the log.
func (l *eventLog) applied(r *fsm.Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = r.Index + 1
	raised := slices.ContainsFunc(r.Events, func(e fsm.Event) bool { return e.Kind == fsm.EventReset })
	switch {
	case r.Term == 0: // entries have one; what a snapshot's last entry did is not known, so no place in it is good enough
		l.batches, l.count, l.bytes = nil, 0, 0
		l.floor, l.why = position{r.Index, math.MaxUint32}, transport.ResetRestored
	case len(r.Notices) > 0 || raised:
		l.pushLocked(&eventBatch{index: r.Index, wall: r.Wall, notices: r.Notices, raised: raised})
	default:
		return // there is nothing to tell
	}
	select {
	case l.wake <- struct{}{}:
	default: // it is to be waked already
	}
}

func (l *eventLog) pushLocked(b *eventBatch) {
	l.batches = append(l.batches, b)
	l.count += b.count()
	l.bytes += b.size()
	// The newest entry stays whatever its size, which the state machine bounds.
	for len(l.batches) > 1 && (l.count > maxEvents || l.bytes > maxEventBytes) {
		oldest := l.batches[0]
		l.batches[0] = nil // the slice's array lives on
		l.batches = l.batches[1:]
		l.count -= oldest.count()
		l.bytes -= oldest.size()
		l.floor, l.why = position{oldest.index, uint32(oldest.count())}, transport.ResetTooOld
	}
}

// run wakes the readers, whose number is nothing to the state machine, until ctx ends.
func (l *eventLog) run(ctx context.Context) {
	for {
		select {
		case <-l.wake:
			l.mu.Lock()
			close(l.changed)
			l.changed = make(chan struct{})
			l.mu.Unlock()
		case <-ctx.Done():
			return
		}
	}
}

// pageOfEvents is how many entries a reader is given at once.
const pageOfEvents = 64

// page is what a reader finds behind its place.
type page struct {
	batches []*eventBatch // which may begin with events that are not behind it
	head    position      // all that this node knows of is before it
	lost    string        // not "": events behind the place are not known here, for this reason
	changed <-chan struct{}
}

func (l *eventLog) read(at position) page {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := page{head: position{index: l.next}, changed: l.changed}
	if at.compare(l.floor) < 0 {
		p.lost = l.why
		return p
	}
	first, _ := slices.BinarySearchFunc(l.batches, at.index, func(b *eventBatch, index uint64) int { return cmp.Compare(b.index, index) })
	rest := l.batches[first:]
	if len(rest) > 0 && rest[0].index == at.index && int(at.seq) >= rest[0].count() {
		rest = rest[1:]
	}
	p.batches = slices.Clone(rest[:min(len(rest), pageOfEvents)])
	return p
}

func (b *eventBatch) count() int {
	if b.raised {
		return len(b.notices) + 1
	}
	return len(b.notices)
}

// size bounds the memory of a batch: what the state machine told, and the text that is made of it, where a byte may need
// two.
func (b *eventBatch) size() int {
	const whole, each = 128, 448
	size := whole
	for i := range b.notices {
		n := &b.notices[i]
		size += each + 3*(len(n.Name)+len(n.Owner)+len(n.Task)+len(n.Reason)+len(n.By))
	}
	return size
}

// events gives the events of the batch as they are sent. They are written once, however many read them.
func (b *eventBatch) events() []event {
	b.once.Do(func() {
		list := make([]event, 0, b.count())
		for i := range b.notices {
			kind, data := describeNotice(&b.notices[i])
			list = append(list, b.event(len(list), kind, data))
		}
		if b.raised {
			list = append(list, b.event(len(list), transport.EventReset, transport.EventData{Reason: transport.ResetRaised}))
		}
		b.list = list
	})
	return b.list
}

func (b *eventBatch) event(before int, kind transport.EventKind, data transport.EventData) event {
	data.Index = b.index
	if b.wall != 0 {
		data.Time = time.UnixMilli(int64(b.wall)).UTC().Format("2006-01-02T15:04:05.000Z07:00")
	}
	return event{data.Name, kind, eventText(position{b.index, uint32(before) + 1}, kind, data)}
}

// eventText writes an event in the form of Server-Sent Events. JSON has no line ends, so the data is one line.
func eventText(at position, kind transport.EventKind, data transport.EventData) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "id: %s\nevent: %s\ndata: ", at, kind)
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false) // names are sent as they are
	_ = encoder.Encode(data)     // of texts and numbers; it ends the line
	b.WriteByte('\n')
	return bytes.Clone(b.Bytes()) // no longer than it must be
}

// eventKinds turns the state machine's numbers into the words of the wire.
var eventKinds = map[fsm.NoticeKind]transport.EventKind{
	fsm.NoticeGranted:       transport.EventGranted,
	fsm.NoticeReleased:      transport.EventReleased,
	fsm.NoticeExpired:       transport.EventExpired,
	fsm.NoticeRevoked:       transport.EventRevoked,
	fsm.NoticeQueued:        transport.EventQueued,
	fsm.NoticeCancelled:     transport.EventCancelled,
	fsm.NoticeDelayed:       transport.EventDelayed,
	fsm.NoticeConverted:     transport.EventConverted,
	fsm.NoticeValue:         transport.EventValue,
	fsm.NoticeSessionOpened: transport.EventSessionOpened,
	fsm.NoticeSessionEnded:  transport.EventSessionEnded,
	fsm.NoticeRaised:        transport.EventRaised,
}

func describeNotice(n *fsm.Notice) (transport.EventKind, transport.EventData) {
	data := transport.EventData{
		Name: n.Name, Owner: n.Owner, Task: n.Task, Token: transport.Token(n.Token), Reason: n.Reason, By: n.By,
	}
	if n.Mode != 0 {
		data.Mode = modeWord(n.Mode)
	}
	return eventKinds[n.Kind], data
}

// concerns reports whether a reader of names with this prefix is told. What concerns no single lock is told only to those
// who read everything, but a reset and its reason concern all.
func (e *event) concerns(prefix string) bool {
	switch {
	case prefix == "" || e.kind == transport.EventReset || e.kind == transport.EventRaised:
		return true
	case e.name == "":
		return false
	}
	return strings.HasPrefix(e.name, prefix)
}
