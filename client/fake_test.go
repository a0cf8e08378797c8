package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

// network is a cluster in memory behind an http.RoundTripper: exclusive locks
// with sessions, numbers, queues and expiry, just enough to show what the client
// does to a server. What a node does to a request is scripted.
type network struct {
	mu    sync.Mutex
	fault map[string]fault // by host
	delay func() time.Duration
	// answer, when set and not giving 0, answers in place of the state.
	answer  func(host, path string, body []byte) (status int, message any)
	leader  string // host named by Pawl-Leader
	cluster string // named by Pawl-Cluster
	sent    []sent

	sessions map[string]*fakeSession
	locks    map[string]*fakeLock
	finished map[claim]bool
	index    uint64
}

type fault string

const (
	healthy  fault = ""
	refusing fault = "refusing" // no connection is made
	hanging  fault = "hanging"  // the connection stands, nothing comes
	mute     fault = "mute"     // the request has its effect, the answer is lost
)

type sent struct {
	at, until  time.Time
	host, path string
	body       string
	header     http.Header
}

type fakeSession struct {
	ttl      time.Duration
	deadline time.Time
}

type claim struct {
	session string
	number  uint64
}

type fakeLock struct {
	holder claim
	token  transport.Token
	queue  []claim
}

// Long has scenarios run at their full size, here and in the tests from outside.
var Long = flag.Bool("long", false, "run the scenarios at their full size: minutes")

// sized gives how often something is tried.
func sized(usually, full int) int {
	if *Long {
		return full
	}
	return usually
}

func newNetwork() *network {
	return &network{fault: map[string]fault{}, sessions: map[string]*fakeSession{}, locks: map[string]*fakeLock{}, finished: map[claim]bool{}, index: 10}
}

// hosts are the endpoints of every test.
var hosts = []string{"n1", "n2", "n3"}

// client makes a Client in virtual time, without goroutines of its own before
// its first lock.
func (n *network) client(t *testing.T, options ...Option) *Client {
	t.Helper()
	start := time.Now()
	options = append([]Option{WithHTTPClient(&http.Client{Transport: n}), WithClock(func() time.Duration { return time.Since(start) })}, options...)
	c, err := New([]string{"http://n1", "http://n2", "http://n3"}, options...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (n *network) setAll(f fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, host := range hosts {
		n.fault[host] = f
	}
}

func (n *network) set(host string, f fault) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fault[host] = f
}

// requests gives what was sent to the path ("" = any) since the given time.
func (n *network) requests(path string, since time.Time) []sent {
	n.mu.Lock()
	defer n.mu.Unlock()
	var found []sent
	for _, s := range n.sent {
		if (path == "" || s.path == path) && !s.at.Before(since) {
			found = append(found, s)
		}
	}
	return found
}

// state says who holds the lock and how many wait.
func (n *network) state(name string) (held bool, waiting int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.expireLocked()
	l := n.lockLocked(name)
	return l.token != 0, len(l.queue)
}

func (n *network) RoundTrip(request *http.Request) (*http.Response, error) {
	var body []byte
	if request.Body != nil {
		body, _ = io.ReadAll(request.Body)
		request.Body.Close()
	}
	n.mu.Lock()
	f, pause := n.fault[request.URL.Host], time.Duration(0)
	if n.delay != nil {
		pause = n.delay()
	}
	position := len(n.sent)
	n.sent = append(n.sent, sent{at: time.Now(), host: request.URL.Host, path: request.URL.Path, body: string(body), header: request.Header.Clone()})
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		n.sent[position].until = time.Now()
		n.mu.Unlock()
	}()
	switch f {
	case refusing:
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	case hanging:
		<-request.Context().Done()
		return nil, request.Context().Err()
	}
	if err := sleep(request.Context(), pause); err != nil {
		return nil, err // it was still on its way
	}
	status, message, err := n.serve(request, body)
	if err != nil {
		return nil, err
	}
	if f == mute {
		return nil, io.EOF
	}
	if err := sleep(request.Context(), pause); err != nil {
		return nil, err // it had its effect
	}
	recorder := httptest.NewRecorder()
	n.mu.Lock()
	if n.leader != "" {
		recorder.Header().Set(transport.HeaderLeader, "http://"+n.leader)
	}
	if n.cluster != "" {
		recorder.Header().Set(transport.HeaderCluster, n.cluster)
	}
	n.mu.Unlock()
	if problem, ok := message.(*transport.Error); ok {
		transport.WriteError(recorder, problem)
	} else {
		recorder.WriteHeader(status)
		_ = json.NewEncoder(recorder).Encode(message)
	}
	response := recorder.Result()
	response.Request = request
	return response, nil
}

func (n *network) serve(request *http.Request, body []byte) (int, any, error) {
	n.mu.Lock()
	answer := n.answer
	n.mu.Unlock()
	if answer != nil {
		if status, message := answer(request.URL.Host, request.URL.Path, body); status != 0 {
			return status, message, nil
		}
	}
	switch request.URL.Path {
	case "/v1/session":
		return reply(body, n.open)
	case "/v1/session/close":
		return reply(body, n.close)
	case "/v1/renew":
		return reply(body, n.renew)
	case "/v1/release":
		return reply(body, n.release)
	case "/v1/cancel":
		return reply(body, n.cancel)
	case "/v1/acquire":
		var acquire transport.AcquireRequest
		if err := transport.Decode(body, &acquire); err != nil {
			return 0, err, nil
		}
		if err := acquire.Validate(); err != nil {
			return 0, err, nil
		}
		return n.acquire(request.Context(), acquire)
	}
	return 0, transport.NewError(transport.ErrNotFound, "no such path"), nil
}

// reply decodes as strictly as the server does, so that these tests also find a
// request that the server would refuse.
func reply[Req any](body []byte, handle func(Req) any) (int, any, error) {
	var request Req
	if err := transport.Decode(body, &request); err != nil {
		return 0, err, nil
	}
	return http.StatusOK, handle(request), nil
}

func (n *network) lockLocked(name string) *fakeLock {
	if n.locks[name] == nil {
		n.locks[name] = &fakeLock{}
	}
	return n.locks[name]
}

func (n *network) expireLocked() {
	for id, s := range n.sessions {
		if time.Now().After(s.deadline) {
			n.dropLocked(id)
		}
	}
}

func (n *network) dropLocked(session string) {
	delete(n.sessions, session)
	for _, l := range n.locks {
		l.queue = slices.DeleteFunc(l.queue, func(c claim) bool { return c.session == session })
		if l.holder.session == session {
			n.freeLocked(l)
		}
	}
}

func (n *network) freeLocked(l *fakeLock) {
	l.holder, l.token = claim{}, 0
	if len(l.queue) > 0 {
		n.index++
		l.holder, l.token, l.queue = l.queue[0], transport.Token(n.index), l.queue[1:]
	}
}

func (n *network) open(r transport.SessionRequest) any {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.index++
	id := fmt.Sprintf("s%d", n.index)
	ttl := time.Duration(r.TTLMS) * time.Millisecond
	n.sessions[id] = &fakeSession{ttl, time.Now().Add(ttl)}
	return transport.SessionResponse{Session: id, TTLMS: r.TTLMS}
}

func (n *network) close(r transport.SessionCloseRequest) any {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.dropLocked(r.Session)
	return transport.SessionCloseResponse{}
}

func gone() any { return transport.NewError(transport.ErrSessionGone, "gone") }

func (n *network) renew(r transport.RenewRequest) any {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.expireLocked()
	s := n.sessions[r.Session]
	if s == nil {
		return gone()
	}
	s.deadline = time.Now().Add(s.ttl)
	return transport.RenewResponse{Session: r.Session, TTLMS: s.ttl.Milliseconds(), LeaseMS: s.ttl.Milliseconds()}
}

func (n *network) release(r transport.ReleaseRequest) any {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.expireLocked()
	if n.sessions[r.Session] == nil {
		return gone()
	}
	c := claim{r.Session, r.Request}
	n.finished[c] = true
	for name, l := range n.locks {
		if l.holder == c {
			n.freeLocked(l)
			return transport.ReleaseResponse{Released: []string{name}}
		}
	}
	return transport.NewError(transport.ErrNotHeld, "not held")
}

func (n *network) cancel(r transport.CancelRequest) any {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.expireLocked()
	if n.sessions[r.Session] == nil {
		return gone()
	}
	c := claim{r.Session, r.Request}
	n.finished[c] = true
	for _, l := range n.locks {
		l.queue = slices.DeleteFunc(l.queue, func(other claim) bool { return other == c })
		if l.holder == c {
			n.freeLocked(l)
			return transport.CancelResponse{State: transport.StateReleased}
		}
	}
	return transport.CancelResponse{State: transport.StateCancelled}
}

func (n *network) acquire(ctx context.Context, r transport.AcquireRequest) (int, any, error) {
	c, wanted := claim{r.Session, r.Request}, r.Requested()[0].Name
	until := time.Now().Add(time.Duration(r.WaitMS) * time.Millisecond)
	for {
		n.mu.Lock()
		n.expireLocked()
		s, l := n.sessions[r.Session], n.lockLocked(wanted)
		switch {
		case s == nil:
			n.mu.Unlock()
			return 0, gone(), nil
		case n.finished[c]:
			n.mu.Unlock()
			return 0, transport.NewError(transport.ErrFinished, "finished"), nil
		case l.holder == claim{}:
			n.index++
			l.holder, l.token = c, transport.Token(n.index)
		case l.holder != c && r.WaitMS == 0:
			n.finished[c] = true
			n.mu.Unlock()
			return 0, transport.NewError(transport.ErrHeld, "held"), nil
		case l.holder != c && !slices.Contains(l.queue, c):
			l.queue = append(l.queue, c)
		}
		if l.holder == c {
			defer n.mu.Unlock()
			return http.StatusOK, transport.AcquireResponse{Granted: true, Session: r.Session, Token: l.token, Request: r.Request,
				Locks: []transport.GrantedLock{{Name: wanted, Mode: transport.ModeExclusive, Token: l.token}}, TTLMS: s.ttl.Milliseconds(),
				LeaseMS: time.Until(s.deadline).Milliseconds()}, nil
		}
		n.mu.Unlock()
		if !time.Now().Before(until) {
			return http.StatusAccepted, transport.AcquireResponse{Request: r.Request}, nil
		}
		if err := sleep(ctx, time.Millisecond); err != nil {
			return 0, nil, err
		}
	}
}

// contains says whether a request's body has the text.
func (s sent) contains(text string) bool { return bytes.Contains([]byte(s.body), []byte(text)) }
