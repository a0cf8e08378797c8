package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/server"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/server/replica"
	"github.com/pawl-lock/pawl/transport"
)

// heard is an event as it was sent.
type heard struct {
	ID   string
	Kind transport.EventKind
	Data transport.EventData
}

// listener follows the events of a node.
type listener struct {
	w      *world
	stop   context.CancelFunc
	header http.Header
	ended  chan struct{}

	mu    sync.Mutex
	all   []heard
	notes []string // comments
	place string   // the last id
	retry string
	err   error
}

// listen follows the events of a node from a place, "" for now, which is given by header or in the query.
func (w *world) listen(node int, query, place string, byHeader bool) *listener {
	w.t.Helper()
	l, refused := w.tryListen(node, query, place, byHeader)
	if l == nil {
		w.t.Fatalf("following events of %s: %d %s", w.Name(node), refused.Status, refused.Body)
	}
	return l
}

func (w *world) tryListen(node int, query, place string, byHeader bool) (*listener, pawltest.Answer) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.ctx)
	if place != "" && !byHeader {
		query += "&after=" + place
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.URL(node)+"/v1/events?"+strings.TrimPrefix(query, "&"), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	if place != "" && byHeader {
		r.Header.Set("Last-Event-ID", place)
	}
	response, err := w.caller().http.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK {
		defer cancel()
		defer response.Body.Close()
		a := pawltest.Answer{Status: response.StatusCode, Header: response.Header, Body: make([]byte, 1000)}
		n, _ := response.Body.Read(a.Body) // a problem is short
		a.Body = a.Body[:n]
		return nil, a
	}
	l := &listener{w: w, stop: cancel, header: response.Header, ended: make(chan struct{})}
	go func() {
		defer close(l.ended)
		defer response.Body.Close()
		l.read(bufio.NewScanner(response.Body))
	}()
	return l, pawltest.Answer{}
}

func (l *listener) read(lines *bufio.Scanner) {
	var e heard
	hasData := false
	for lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		l.mu.Lock()
		switch field {
		case "id":
			e.ID, l.place = value, value
		case "event":
			e.Kind = transport.EventKind(value)
		case "data":
			hasData = true
			decoder := json.NewDecoder(strings.NewReader(value))
			decoder.DisallowUnknownFields()
			if err := decoder.Decode(&e.Data); err != nil {
				l.err = err
			}
		case "retry":
			l.retry = value
		case "":
			switch {
			case value != "": // ": text" is a comment
				l.notes = append(l.notes, value)
			case hasData:
				l.all = append(l.all, e)
				e, hasData = heard{}, false
			}
		default:
			l.err = fmt.Errorf("the line %q", lines.Text())
		}
		l.mu.Unlock()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = lines.Err()
	}
}

func (l *listener) events() []heard {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.all)
}

func (l *listener) state() (place, retry string, notes []string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.place, l.retry, slices.Clone(l.notes), l.err
}

// wait waits for so many events.
func (l *listener) wait(count int) []heard {
	l.w.t.Helper()
	if !eventually(callLimit, func() bool { return len(l.events()) >= count }) {
		l.w.t.Fatalf("%d events were told, want %d: %+v", len(l.events()), count, l.events())
	}
	return l.events()
}

// until waits until an event of a kind was told about a name, and returns all.
func (l *listener) until(kind transport.EventKind, name string) []heard {
	l.w.t.Helper()
	l.w.until(callLimit, fmt.Sprint(kind, " of ", name), func() bool {
		return slices.ContainsFunc(l.events(), func(e heard) bool { return e.Kind == kind && e.Data.Name == name })
	})
	return l.events()
}

// end stops following, and checks that all that came was in order.
func (l *listener) end() {
	l.w.t.Helper()
	if _, _, _, err := l.state(); err != nil {
		l.w.t.Error(err)
	}
	l.stop()
	<-l.ended
}

// told is what the tests compare of an event with what must have happened.
type told struct {
	kind                      transport.EventKind
	name, owner, task, reason string
	token                     uint64
}

func (h heard) told() told {
	return told{h.Kind, h.Data.Name, h.Data.Owner, h.Data.Task, h.Data.Reason, uint64(h.Data.Token)}
}

// happen makes a bit of everything happen through all nodes, and returns what is to be told of it. Every node must run.
func (w *world) happen(mark string) (want []told) {
	w.t.Helper()
	node := 0
	post := func(status int, path, body string, arguments ...any) pawltest.Answer {
		w.t.Helper()
		node = (node + 1) % w.Size()
		return w.MustPost(node, status, path, fmt.Sprintf(body, arguments...))
	}
	number := func(a pawltest.Answer) uint64 {
		token, _ := a.Field("token").(float64)
		return uint64(token)
	}
	tell := func(kind transport.EventKind, name, owner, task, reason string, token uint64) {
		want = append(want, told{kind, name, owner, task, reason, token})
	}
	a, b, c, owner := mark+"/a", mark+"/b", mark+"/c", "o"+mark

	id := post(201, "/v1/session", `{"owner":%q,"ttl_ms":60000}`, owner).Field("session")
	tell("session-opened", "", owner, "", "", 0)
	token := number(post(200, "/v1/acquire", `{"session":%q,"request":1,"task":"t","name":%q}`, id, a))
	tell("granted", a, owner, "t", "", token)
	post(409, "/v1/acquire", `{"owner":"x","name":%q}`, a) // nothing happens
	waits := post(201, "/v1/session", `{"owner":"x","ttl_ms":60000}`).Field("session")
	tell("session-opened", "", "x", "", "", 0)
	post(202, "/v1/acquire", `{"session":%q,"request":1,"name":%q,"wait_ms":1}`, waits, a)
	tell("queued", a, "x", "", "", 0)
	post(200, "/v1/cancel", `{"session":%q,"request":1}`, waits)
	tell("cancelled", a, "x", "", "", 0)

	both := post(200, "/v1/acquire", `{"owner":"w","locks":[{"name":%q},{"name":%q,"mode":"shared","limit":2}]}`, b, c)
	var grant transport.AcquireResponse
	both.Into(w.t, &grant)
	joint := uint64(grant.Locks[0].Token)
	tell("granted", b, "w", "", "", joint)
	tell("granted", c, "w", "", "", joint)
	post(200, "/v1/release", `{"session":%q,"token":%d,"name":%q}`, grant.Session, joint, c)
	tell("released", c, "w", "", "", joint)

	post(200, "/v1/release", `{"session":%q,"request":1}`, id)
	tell("released", a, owner, "t", "", token)
	post(200, "/v1/release", `{"session":%q,"token":%d}`, grant.Session, joint)
	tell("released", b, "w", "", "", joint)

	token = number(post(200, "/v1/acquire", `{"session":%q,"request":2,"name":%q}`, id, a))
	tell("granted", a, owner, "", "", token)
	post(200, "/v1/value", `{"session":%q,"request":2,"token":%d,"name":%q,"value":"v"}`, id, token, a)
	tell("value", a, owner, "", "", token)
	token = number(post(200, "/v1/convert", `{"session":%q,"request":3,"of":2,"token":%d,"name":%q,"mode":"shared"}`, id, token, a))
	tell("converted", a, owner, "", "", token)
	post(200, "/v1/session/close", `{"session":%q}`, id)
	tell("released", a, owner, "", "", token)
	tell("session-ended", "", owner, "", "closed", 0)

	token = number(post(200, "/v1/acquire", `{"owner":"f","name":%q}`, a))
	tell("granted", a, "f", "", "", token)
	post(200, "/v1/force-release", `{"name":%q,"token":%d,"reason":"stuck","lock_delay_ms":100}`, a, token)
	tell("revoked", a, "f", "", "stuck", token)
	tell("delayed", a, "", "", "", 0)

	token = number(post(200, "/v1/acquire", `{"owner":"e","ttl_ms":500,"name":%q}`, b))
	tell("granted", b, "e", "", "", token)
	w.untilFree(b)
	tell("expired", b, "e", "", "session", token)
	token = number(post(200, "/v1/acquire", `{"owner":"m","max_hold_ms":500,"name":%q}`, b))
	tell("granted", b, "m", "", "", token)
	w.untilFree(b)
	tell("expired", b, "m", "", "max_hold", token)
	w.checkAgreement() // no node is behind what was told
	return want
}

func (w *world) untilFree(name string) {
	w.t.Helper()
	w.until(callLimit, "the end of the hold of "+name, func() bool {
		v, _, err := w.view(w.Leader(), name, "")
		return err == nil && len(v.Holders) == 0
	})
}

func (w *world) checkTold(node int, got []heard, want []told) {
	w.t.Helper()
	var list []told
	for _, h := range got {
		list = append(list, h.told())
	}
	if !slices.Equal(list, want) {
		w.t.Errorf("%s told\n%+v, want\n%+v", w.Name(node), list, want)
	}
}

// What happened is told completely, in the order of the log, once, and word for word the same by every node.
func TestEventsAreTheSameOnAllNodes(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		var all []*listener
		for node := range w.Size() {
			all = append(all, w.listen(node, "", "", false))
		}
		want := append(w.happen("1"), w.happen("2")...)
		first := all[0].wait(len(want))
		w.checkTold(0, first, want)
		for i, e := range first {
			if i > 0 && first[i-1].Data.Index > e.Data.Index {
				t.Errorf("%s after %s", e.ID, first[i-1].ID)
			}
			if !strings.HasPrefix(e.ID, fmt.Sprint(e.Data.Index, ".")) || e.Data.Time == "" {
				t.Errorf("%+v", e)
			}
		}
		for node, l := range all {
			if got := l.wait(len(want)); !slices.Equal(got, first) {
				t.Errorf("%s told\n%+v, want\n%+v", w.Name(node), got, first)
			}
			if h := l.header; h.Get("Content-Type") != "text/event-stream" || h.Get("Cache-Control") != "no-store" ||
				h.Get("Pawl-Node") != w.Name(node) || h.Get("Pawl-Cluster") == "" || h.Get("Pawl-Index") == "" || h.Get("Pawl-Leader") == "" {
				t.Errorf("%s answers with %v", w.Name(node), h)
			}
			l.end()
		}
	})
}

// From every place that an event has, every node tells exactly what comes after, also when other nodes have led since and
// have been started anew.
func TestEventsGoOnFromAnyPlaceOnAnyNode(t *testing.T) {
	for _, c := range changes {
		t.Run(c.name, func(t *testing.T) {
			inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
				l := w.listen(w.Leader(), "", "", false)
				before := w.happen("1")
				l.wait(len(before))
				start, _, _, _ := l.state()
				l.end()

				c.make(w)
				w.WaitReady()
				node := w.follower()
				l = w.listen(node, "", start, true)
				want := w.happen("2")
				w.checkTold(node, l.wait(len(want)), want)
				l.end()

				l = w.listen(node, "", "0.0", false)
				all := l.wait(len(before) + len(want))
				l.end()
				w.checkTold(node, all, append(before, want...))
				for i, e := range all {
					for node := range w.Size() {
						l := w.listen(node, "", e.ID, i%2 == 0)
						if got := l.wait(len(all) - i - 1); !slices.Equal(got, all[i+1:]) {
							t.Fatalf("behind %s %s told\n%+v, want\n%+v", e.ID, w.Name(node), got, all[i+1:])
						}
						l.end()
					}
				}
			})
		})
	}
}

// A reader that is connected all the time misses nothing and hears nothing twice while the lead changes.
func TestEventsThroughLeaderChanges(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		var want []told
		place := "0.0"
		for round, c := range slices.Concat(changes, changes) {
			if c.name == "stop" || c.name == "crash" {
				continue // those end the connection
			}
			node := round % w.Size()
			l := w.listen(node, "", place, true)
			first := w.happen(fmt.Sprint(round, "a"))
			c.make(w)
			w.WaitReady()
			first = append(first, w.happen(fmt.Sprint(round, "b"))...)
			want = append(want, first...)
			w.checkTold(node, l.wait(len(first)), first)
			place, _, _, _ = l.state()
			l.end()
		}
		l := w.listen(0, "", "0.0", true)
		w.checkTold(0, l.wait(len(want)), want)
		l.end()
	})
}

// A place that is too old is said to be so, before anything else, and what comes after is told.
func TestEventsOfAPlaceThatIsGone(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		early := w.happen("1")
		l := w.listen(0, "", "0.0", false)
		l.wait(len(early))
		l.end()
		var locks []string
		for i := range transport.MaxLocks {
			locks = append(locks, fmt.Sprintf(`{"name":"x%d"}`, i))
		}
		body := fmt.Sprintf(`{"owner":"o","locks":[%s]}`, strings.Join(locks, ","))
		for range server.MaxEvents / transport.MaxLocks / 2 {
			var g transport.AcquireResponse
			w.MustPost(0, 200, "/v1/acquire", body).Into(t, &g)
			w.MustPost(0, 200, "/v1/release", fmt.Sprintf(`{"session":%q,"token":%d}`, g.Session, g.Locks[0].Token))
		}
		w.happen("2")
		for node := range w.Size() {
			l := w.listen(node, "", "0.0", false)
			reset := l.wait(1)[0]
			if reset.Kind != "reset" || reset.Data.Reason != "too_old" {
				t.Errorf("%s tells %+v", w.Name(node), reset)
			}
			want := w.happen(fmt.Sprint("3", node))
			w.checkTold(node, l.wait(len(want) + 1)[1:], want)
			l.end()
			// The reset's own place is as good as any.
			l = w.listen(node, "", reset.ID, true)
			w.checkTold(node, l.wait(len(want)), want)
			l.end()
		}
	})
}

// A node whose data was lost, and one that was too far behind, take a snapshot: they tell their readers that they do not
// know what was before it, and then the same as the others.
func TestEventsAfterASnapshotWasRestored(t *testing.T) {
	cut := func(_ int, config *server.Config) { config.Snapshots = replica.SnapshotPolicy{Trailing: 5} }
	inVirtualTime(t, pawltest.Options{Configure: cut}, func(t *testing.T, w *world) {
		early := w.happen("1")
		far, leader := w.follower(), w.Leader()
		connected := w.listen(far, "", "0.0", false)
		old := connected.wait(len(early))
		w.Network.Isolate(w.Name(far))
		w.happen2(leader, "2")
		if err := w.Node(leader).CutSnapshot(w.ctx); err != nil {
			t.Fatal(err)
		}
		w.happen2(leader, "3")
		w.Network.Rejoin(w.Name(far))
		w.checkAgreement()
		want := w.happen("4")
		w.until(callLimit, "the last event", func() bool {
			got := connected.events()
			return got[len(got)-1].told() == want[len(want)-1]
		})
		got := connected.events()[len(old):]
		if got[0].Kind != "reset" || got[0].Data.Reason != "restored" {
			t.Fatalf("a reader of a node that was behind is told %+v", got)
		}
		connected.end()
		// What the node was sent behind the snapshot is told as well.
		w.checkTold(far, got[len(got)-len(want):], want)

		// A reader that heard everything has a place behind the last entry soon, which is good wherever that is the last one
		// known too.
		other := w.listen(w.Leader(), "", "", false)
		time.Sleep(20 * time.Second)
		if err := w.Node(w.Leader()).CutSnapshot(w.ctx); err != nil {
			t.Fatal(err)
		}
		place, _, _, _ := other.state()
		other.end()
		w.Stop(far)
		w.Wipe(far)
		w.Start(far)
		w.WaitNodeReady(far)
		l := w.listen(far, "", place, true)
		want = w.happen("5")
		w.checkTold(far, l.wait(len(want)), want)
		l.end()
		l = w.listen(far, "", old[2].ID, true)
		if reset := l.wait(1)[0]; reset.Kind != "reset" || reset.Data.Reason != "restored" {
			t.Errorf("a node that was wiped tells %+v", reset)
		}
		l.end()
	})
}

// happen2 makes something happen through one node, while others do not answer.
func (w *world) happen2(node int, mark string) {
	w.t.Helper()
	for i := range 5 {
		a := w.MustPost(node, 200, "/v1/acquire", fmt.Sprintf(`{"owner":"o","name":"%s/%d"}`, mark, i))
		w.MustPost(node, 200, "/v1/release", fmt.Sprintf(`{"session":%q,"token":%.0f}`, a.Field("session"), a.Field("token")))
	}
}

// A place that the cluster has not come to is waited for for as long as a follower may be behind, and not for ever: its
// reader may have known another cluster.
func TestEventsOfAPlaceAhead(t *testing.T) {
	inVirtualTime(t, pawltest.Options{}, func(t *testing.T, w *world) {
		l := w.listen(0, "", "0.0", false)
		w.happen("1")
		all := l.until("expired", "1/b")
		l.end()
		last := all[len(all)-1].Data.Index

		// Only what is behind the place is told when the node gets there.
		near := w.listen(1, "", fmt.Sprint(last+2, ".1"), true)
		w.happen("2")
		got := near.until("expired", "2/b")
		if got[0].Data.Index <= last+1 || slices.ContainsFunc(got, func(e heard) bool { return e.Kind == "reset" }) {
			t.Errorf("behind %d.1 came %+v", last+2, got[0])
		}
		near.end()

		far := w.listen(1, "", "1000000.0", true)
		began := time.Now()
		w.until(20*time.Second, "a reset", func() bool { return len(far.events()) > 0 })
		if e := far.events()[0]; e.Kind != "reset" || e.Data.Reason != "ahead" || time.Since(began) < 14*time.Second {
			t.Errorf("after %v: %+v", time.Since(began), e)
		}
		want := w.happen("3")
		w.checkTold(1, far.wait(len(want) + 1)[1:], want)
		far.end()
	})
}
