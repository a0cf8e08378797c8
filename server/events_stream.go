package server

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

// Bounds of the readers of events.
const (
	maxEventReaders = 256              // at once, of one node
	heartbeat       = 15 * time.Second // after which a reader that had nothing to hear hears so
	readerPatience  = 10 * time.Second // within which a reader takes what it is sent, else it is cut off
	eventChunk      = 64 << 10         // bytes that are sent at once
	stopRetry       = 500              // ms after which a reader of a node that stops comes back, to another
)

// stream is an answer that is no JSON message: it writes itself, for as long as it likes.
type stream func(http.ResponseWriter)

// readEvents is GET /v1/events. The node that is asked answers from its own applied state: what a follower tells comes a
// moment later than at the leader and is never taken back, since only committed entries are applied.
func (n *Node) readEvents(c *call) (handler, error) {
	r := &eventReader{node: n, call: c, prefix: c.query.Get("prefix")}
	if r.prefix != "" {
		if err := transport.ValidateName("prefix", r.prefix); err != nil {
			return nil, err
		}
	}
	// A browser that connects again sends the address that it was given first, so the header says more than "after".
	field, text := transport.HeaderLastEventID, c.request.Header.Get(transport.HeaderLastEventID)
	if text == "" {
		field, text = "after", c.query.Get("after")
	}
	if text != "" {
		var ok bool
		if r.at, ok = parsePosition(text); !ok {
			return nil, badField(field, "is not the id of an event")
		}
		r.resumes = true
	}
	return func(*call) (reply, error) { return r.admit() }, nil
}

// eventReader is one caller of GET /v1/events.
type eventReader struct {
	node    *Node
	call    *call
	prefix  string
	at      position // it has all that is at or before it
	resumes bool     // from a place that it named

	w       http.ResponseWriter
	pending bytes.Buffer // not yet sent
	failed  bool         // it has gone, or was cut off
}

// readers counts the callers that follow events.
type readers struct{ atomic.Int64 }

func (r *readers) enter() bool {
	if r.Add(1) > maxEventReaders {
		r.Add(-1)
		return false
	}
	return true
}

func (r *readers) leave() { r.Add(-1) }

func (r *eventReader) admit() (reply, error) {
	switch {
	case r.node.stopping():
		return reply{}, transport.NewError(transport.ErrShuttingDown, "this node is stopping")
	case !r.node.readers.enter():
		return reply{}, transport.NewError(transport.ErrRateLimited, "this node has %d readers of events", maxEventReaders)
	}
	return reply{http.StatusOK, stream(r.follow)}, nil
}

// follow sends events until the reader goes, is too slow, or the node stops.
func (r *eventReader) follow(w http.ResponseWriter) {
	defer r.node.readers.leave()
	r.w = w
	if !r.resumes {
		r.at = r.node.events.read(position{}).head
	}
	w.Header().Set("Content-Type", transport.TypeEvents)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	// An id without data makes the place known before anything happens: a reader that is cut off now misses nothing.
	r.comment("following", r.at)
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	due := false
	for !r.failed {
		if r.node.stopping() {
			fmt.Fprintf(&r.pending, "retry: %d\n", stopRetry)
			r.comment("this node is stopping", r.at)
			return
		}
		page := r.node.events.read(r.at)
		switch {
		case page.lost != "":
			r.reset(page)
			continue
		case len(page.batches) > 0:
			r.take(page)
			continue
		case r.at.compare(page.head) < 0:
			r.at = page.head // there was nothing between: the place may be as new as it can
		}
		if due {
			due = false
			r.beat(page)
			continue
		}
		select {
		case <-page.changed:
		case <-beat.C:
			due = true
		case <-r.node.draining:
		case <-r.call.Done():
			return
		}
	}
}

// take sends the events of a page that concern the reader, and moves its place behind them all.
func (r *eventReader) take(p page) {
	for _, batch := range p.batches {
		for i, e := range batch.events() {
			at := position{batch.index, uint32(i) + 1}
			if at.compare(r.at) <= 0 || !e.concerns(r.prefix) {
				continue
			}
			r.pending.Write(e.text)
			if r.pending.Len() >= eventChunk && !r.send() {
				return
			}
		}
		r.at = position{batch.index, uint32(batch.count())}
	}
	r.send()
}

// reset tells the reader that it has missed events, and goes on from now: what it reads next of the state shows all that
// happened before.
func (r *eventReader) reset(p page) {
	r.at = p.head
	r.pending.Write(eventText(r.at, transport.EventReset, transport.EventData{Index: r.at.index - 1, Reason: p.lost}))
	r.send()
}

// beat shows a reader that the connection lives, and gives it a newer place, else one that hears little would find
// its own too old some day.
func (r *eventReader) beat(p page) {
	if r.at.compare(p.head) > 0 {
		// This node has had time to get there. Either it is cut off, or the reader knew another cluster.
		p.lost = transport.ResetAhead
		r.reset(p)
		return
	}
	r.comment("nothing else", r.at)
}

// comment sends a line for nobody, and a place.
func (r *eventReader) comment(text string, at position) {
	fmt.Fprintf(&r.pending, ": %s\nid: %s\n\n", text, at)
	r.send()
}

// send writes what is pending. A reader is never waited for longer than its patience allows, and stands in nobody's way
// meanwhile.
func (r *eventReader) send() bool {
	control := http.NewResponseController(r.w)
	err := control.SetWriteDeadline(time.Now().Add(readerPatience))
	if err == nil {
		_, err = r.w.Write(r.pending.Bytes())
	}
	if err == nil {
		err = control.Flush()
	}
	r.pending.Reset()
	r.failed = err != nil
	if errors.Is(err, os.ErrDeadlineExceeded) {
		r.node.metrics.readersCut.Inc()
	}
	return !r.failed
}
