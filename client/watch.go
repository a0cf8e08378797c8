package client

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

const (
	// silence is how long a node may say nothing at all before it is given up: it
	// has a comment to send every 15 s.
	silence = 40 * time.Second
	// maxEventLine bounds one line of a stream of events, in bytes.
	maxEventLine = 64 << 10
)

// ResetCluster is the reason of a reset that this side finds by itself: another
// cluster answers than before.
const ResetCluster = "another_cluster"

// Event is one thing that happened. Its JSON has what the node sent, and beside it
// the ID and what happened.
type Event struct {
	ID   string              `json:"id"` // the place behind the event, the same on every node
	Kind transport.EventKind `json:"event"`
	transport.EventData
}

// WatchQuery says which events to follow. The zero value asks for all from now on.
type WatchQuery struct {
	Prefix string // only of locks whose names begin like this, and of what concerns all
	After  string // the ID of an event: what comes after it

	// Start bounds how long it is tried to reach a first node, which then is
	// ErrUnavailable; 0 is without end.
	Start time.Duration
}

// Watch follows what happens, in the order of the log, without end: when a node
// stops or breaks off, it goes on at another where it was, missing nothing and
// repeating nothing. The error that is not nil is the last: it is the cause of
// ctx's end, ErrClosed, or a refusal that matches a code of package transport.
// While no node can be reached, it goes on trying, but for what Start says.
//
// An event of the kind transport.EventReset says that some could not be told: read
// the state, and leave out the events whose Index is not above the index of what
// was read (the header Pawl-Index). Whoever takes events more slowly than they
// come may get it at any time.
func (c *Client) Watch(ctx context.Context, which WatchQuery) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		ctx, cancel := c.bounded(ctx, call{path: "/v1/events"})
		defer cancel()
		f := follower{client: c, prefix: which.Prefix, place: which.After, yield: yield}
		if which.Start > 0 {
			f.start = time.Now().Add(which.Start)
		}
		if err := f.follow(ctx); !errors.Is(err, errEnough) {
			yield(Event{}, fmt.Errorf("following events: %w", err))
		}
	}
}

// follower is one loop over Watch.
type follower struct {
	client *Client
	prefix string
	yield  func(Event, error) bool

	place   string // all up to it was told
	cluster string // whose place it is
	lost    bool   // another cluster answered: the next thing to tell is a reset

	start    time.Time // until when a first node is to answer; zero when that is no matter any more
	answered bool      // by the node that is read
	retry    time.Duration
}

// errEnough says that the caller has left the loop.
var errEnough = errors.New("enough")

// follow reads from one node after the other.
func (f *follower) follow(ctx context.Context) error {
	c := f.client
	for {
		if err := c.calls.enter(ctx); err != nil {
			return err
		}
		// Not the leader by preference: every node knows all events, and the leader has enough to do.
		target, _ := c.nodes.pick(false)
		f.answered, f.retry = false, callSpacing
		err := f.read(ctx, target)
		switch {
		case errors.Is(err, errEnough):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case f.answered:
			// It went well for a while, which says nothing against the node: it may stop, or we were too slow for it.
			c.nodes.turn(target, false)
		default:
			verdict := judge(err, call{repeatable: true})
			if verdict.served {
				return err
			}
			if !f.start.IsZero() && !time.Now().Before(f.start) {
				return fmt.Errorf("%w: %w", ErrUnavailable, err)
			}
			c.calls.failed()
			c.nodes.turn(target, verdict.silent)
			f.retry = max(f.retry, verdict.after)
		}
		c.log.Debug("the stream of events ended", "node", target.url, "error", err)
		if err := sleep(ctx, jitter(f.retry)); err != nil {
			return err
		}
	}
}

// read follows one node until its stream ends.
func (f *follower) read(ctx context.Context, target *node) error {
	c := f.client
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	quiet := time.AfterFunc(longestAttempt, cancel)
	defer quiet.Stop()
	query := url.Values{}
	if f.prefix != "" {
		query.Set("prefix", f.prefix)
	}
	request, err := c.request(ctx, target, call{method: http.MethodGet, path: "/v1/events", query: query}, nil)
	if err != nil {
		return err
	}
	if f.place != "" {
		request.Header.Set(transport.HeaderLastEventID, f.place)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("sending to %s: %w", target.url, err)
	}
	defer response.Body.Close()
	c.answeredBy(response.Header.Get(transport.HeaderCluster))
	c.nodes.leads(response.Header.Get(transport.HeaderLeader))
	if response.StatusCode != http.StatusOK {
		return transport.ReadError(response)
	}
	c.calls.succeeded()
	f.answered, f.start = true, time.Time{}
	if cluster := response.Header.Get(transport.HeaderCluster); cluster != "" {
		if f.cluster != "" && f.cluster != cluster && f.place != "" {
			f.cluster, f.place, f.lost = cluster, "", true
			return errors.New("another cluster answers, where the place means nothing: it is asked again for one of its own")
		}
		f.cluster = cluster
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, maxEventLine)
	var block eventBlock
	for quiet.Reset(silence); lines.Scan(); quiet.Reset(silence) {
		if line := lines.Text(); line != "" {
			block.add(line)
			continue
		}
		if err := f.tell(block); err != nil {
			return err
		}
		block = eventBlock{}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("reading events of %s: %w", target.url, err)
	}
	return io.ErrUnexpectedEOF // also a stream that ends in good order is to be gone on with elsewhere
}

// tell gives the caller an event, and moves the place.
func (f *follower) tell(block eventBlock) error {
	if block.retry > 0 {
		f.retry = min(block.retry, longestAdvice)
	}
	if block.id != "" {
		f.place = block.id
	}
	if f.lost && f.place != "" {
		f.lost = false
		if !f.yield(Event{ID: f.place, Kind: transport.EventReset, EventData: transport.EventData{Reason: ResetCluster}}, nil) {
			return errEnough
		}
	}
	if block.data == "" {
		return nil
	}
	event := Event{ID: block.id, Kind: transport.EventKind(block.kind)}
	if err := json.Unmarshal([]byte(block.data), &event.EventData); err != nil {
		return fmt.Errorf("reading an event: %w", err)
	}
	if !f.yield(event, nil) {
		return errEnough
	}
	return nil
}

// eventBlock is what stands between two empty lines of a stream (WHATWG HTML,
// Server-Sent Events). A stream that breaks off within one has not told it.
type eventBlock struct {
	id, kind, data string
	retry          time.Duration
}

func (b *eventBlock) add(line string) {
	field, value, _ := strings.Cut(line, ":")
	value = strings.TrimPrefix(value, " ")
	switch field {
	case "id":
		b.id = value
	case "event":
		b.kind = value
	case "data":
		b.data = value // nodes send one line
	case "retry":
		if ms, err := strconv.ParseUint(value, 10, 31); err == nil {
			b.retry = time.Duration(ms) * time.Millisecond
		}
	}
}
