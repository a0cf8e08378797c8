package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-lock/pawl/server/pawltest"
)

// world is a whole cluster in virtual time, and what tests of its behaviour under faults need of it. What fails in a
// goroutine of a test is collected; only the test's own goroutine ends the test.
type world struct {
	*pawltest.Cluster
	t       *testing.T
	ctx     context.Context // ends with the test, and what its goroutines still do with it
	clients atomic.Int64
}

// virtualLimit ends a test, in virtual time.
const virtualLimit = time.Hour

// inVirtualTime runs a test of a cluster that is ready in a bubble; a goroutine that is left behind fails it.
func inVirtualTime(t *testing.T, options pawltest.Options, test func(t *testing.T, w *world)) {
	t.Helper()
	inVirtualTimeUnready(t, options, func(t *testing.T, w *world) {
		w.WaitReady()
		test(t, w)
	})
}

func inVirtualTimeUnready(t *testing.T, options pawltest.Options, test func(t *testing.T, w *world)) {
	t.Helper()
	if options.Seed == 0 {
		options.Seed = 1
	}
	options.Dir = memoryDir(t)
	began := time.Now()
	var lasted time.Duration
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		w := &world{Cluster: pawltest.New(t, options), t: t, ctx: ctx}
		bubble := time.Now()
		// Heartbeats go on for ever, so in a bubble a test that waits in vain is never seen to be stuck.
		guard := time.AfterFunc(virtualLimit, func() { panic("the test does not end in virtual time") })
		defer func() {
			guard.Stop()
			cancel()
			w.Network.HealAll()
			w.Close()
			lasted = time.Since(bubble)
		}()
		test(t, w)
	})
	t.Logf("seed %d: %v of virtual time in %v", options.Seed, lasted.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
}

// memoryDir is a directory in memory where the system has one: in virtual time a disk's flushes prove nothing and cost
// the only time that is spent.
func memoryDir(t *testing.T) string {
	const shared = "/dev/shm"
	dir, err := os.MkdirTemp(shared, "pawl-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fewer is how often a test does something: n times, or a fifth of that with -short, as under the race detector, where one
// round shows as much and takes ten times as long.
func fewer(n int) int {
	if testing.Short() {
		return max(1, n/5)
	}
	return n
}

// until waits until is becomes true, looking every millisecond, and ends the test when it has not after limit.
func (w *world) until(limit time.Duration, what string, is func() bool) {
	w.t.Helper()
	if !eventually(limit, is) {
		w.t.Fatalf("not after %v: %s", limit, what)
	}
}

func eventually(limit time.Duration, is func() bool) bool {
	for end := time.Now().Add(limit); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// otherLeader waits until a node other than this one is at work as leader.
func (w *world) otherLeader(than int) int {
	w.t.Helper()
	found := -1
	w.until(30*time.Second, "another leader", func() bool {
		for i := range w.Size() {
			if n := w.Node(i); i != than && n != nil && n.Leads() {
				found = i
				return true
			}
		}
		return false
	})
	return found
}

// follower is a node that runs and does not lead.
func (w *world) follower() int {
	w.t.Helper()
	leader := w.Leader()
	for i := range w.Size() {
		if i != leader && w.Node(i) != nil {
			return i
		}
	}
	w.t.Fatal("there is no follower")
	return -1
}

// change is a way to have another node lead. It returns how long nobody was at work.
type change func(w *world) (gap time.Duration)

// changes are all ways, by name.
var changes = []struct {
	name string
	make change
}{
	{"transfer", func(w *world) time.Duration {
		began, leader := time.Now(), w.Leader()
		for tries := 0; ; tries++ { // it may come back when who was to have it is behind
			a, err := w.Post(w.ctx, leader, "/v1/cluster/transfer", `{}`)
			if err == nil && a.Status == http.StatusOK {
				break
			}
			if err != nil || tries == 5 {
				w.t.Fatalf("handing over: %v %d %s", err, a.Status, a.Body)
			}
		}
		w.otherLeader(leader)
		return time.Since(began)
	}},
	{"crash", func(w *world) time.Duration {
		began, leader := time.Now(), w.Leader()
		w.Crash(leader)
		w.otherLeader(leader)
		gap := time.Since(began)
		w.Start(leader)
		w.WaitNodeReady(leader)
		return gap
	}},
	{"cut", func(w *world) time.Duration {
		began, leader := time.Now(), w.Leader()
		w.Network.Isolate(w.Name(leader))
		w.otherLeader(leader)
		gap := time.Since(began)
		w.Network.Rejoin(w.Name(leader))
		w.WaitNodeReady(leader)
		return gap
	}},
	{"stop", func(w *world) time.Duration {
		began, leader := time.Now(), w.Leader()
		w.Stop(leader)
		w.otherLeader(leader)
		gap := time.Since(began)
		w.Start(leader)
		w.WaitNodeReady(leader)
		return gap
	}},
	{"hold", func(w *world) time.Duration { // every message of the leader's and to it, its clients' too, arrives seconds late
		began, leader := time.Now(), w.Leader()
		w.Network.Isolate(w.Name(leader))
		gap := time.Duration(0)
		w.otherLeader(leader)
		gap = time.Since(began)
		time.Sleep(3 * time.Second)
		w.Network.Rejoin(w.Name(leader))
		return gap
	}},
}

// problem is the error that an answer tells.
type problem struct {
	Code    string `json:"code"`
	Applied string `json:"applied"`
}

func problemOf(a pawltest.Answer) (p problem) {
	_ = json.Unmarshal(a.Body, &p) // no JSON: no code
	return p
}

// again says whether an answer leaves it open, or says that nothing happened and another node may do it.
func again(a pawltest.Answer, err error) bool {
	if err != nil {
		return true
	}
	switch problemOf(a).Code {
	case "no_leader", "overloaded", "shutting_down", "unknown_outcome":
		return true
	}
	return false
}

// caller is a program that talks to the cluster from a host of its own. It may be used by several goroutines.
type caller struct {
	w    *world
	http *http.Client
	host string
	last atomic.Int64 // the node that answered last
}

func (w *world) caller() *caller {
	host := fmt.Sprintf("client%d", w.clients.Add(1))
	return &caller{w: w, http: w.ClientAt(host), host: host}
}

// callLimit is how long a caller waits for one answer besides its wait_ms.
const callLimit = 5 * time.Second

func (c *caller) once(ctx context.Context, node int, path, body string, header ...string) (pawltest.Answer, error) {
	return c.w.Do(ctx, c.http, http.MethodPost, c.w.URL(node)+path, body, header...)
}

// repeat sends a request that can be repeated to one node after the other, beginning with the one that answered last, until
// one gives a definite answer; each time it waits at most patience. sent is when the call that was answered was sent.
func (c *caller) repeat(ctx context.Context, patience time.Duration, path, body string, header ...string) (a pawltest.Answer, sent time.Time, err error) {
	for node := int(c.last.Load()); ; node = (node + 1) % c.w.Size() {
		limited, cancel := context.WithTimeout(ctx, patience)
		sent = time.Now()
		a, err = c.once(limited, node, path, body, header...)
		cancel()
		if !again(a, err) {
			c.last.Store(int64(node))
			return a, sent, nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return a, sent, context.Cause(ctx)
		}
	}
}

// session is one with numbered requests.
type session struct {
	*caller
	id      string
	ttl     time.Duration
	number  atomic.Uint64
	renewed atomic.Int64 // when the last acknowledged renew was sent, in ns of virtual time
}

func (w *world) session(ttl time.Duration) *session {
	w.t.Helper()
	s, err := w.trySession(ttl)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) trySession(ttl time.Duration) (*session, error) { return w.openUntil(w.ctx, ttl) }

func (w *world) openUntil(ctx context.Context, ttl time.Duration) (*session, error) {
	s := &session{caller: w.caller(), ttl: ttl}
	a, sent, err := s.repeat(ctx, callLimit, "/v1/session", fmt.Sprintf(`{"owner":%q,"ttl_ms":%d}`, s.host, ttl.Milliseconds()))
	if err != nil {
		return nil, err
	}
	if a.Status != http.StatusCreated {
		return nil, fmt.Errorf("opening a session: %d %s", a.Status, a.Body)
	}
	s.id, _ = a.Field("session").(string)
	s.renewed.Store(sent.UnixNano())
	return s, nil
}

// grant is what the tests look at of an answer to acquire.
type grant struct {
	Granted  bool   `json:"granted"`
	Session  string `json:"session"`
	Token    uint64 `json:"token"`
	TTL      int64  `json:"ttl_ms"`
	Lease    int64  `json:"lease_ms"`
	Replayed bool   `json:"replayed"`
	Queue    []struct {
		Position int `json:"position"`
	} `json:"queue"`

	sent, came time.Time // of the call that was answered
}

var errRefused = errors.New("refused")

// acquire goes on, through all nodes, until the request with this number is granted, refused or ctx ends.
func (s *session) acquire(ctx context.Context, number uint64, name string, wait time.Duration) (grant, error) {
	body := fmt.Sprintf(`{"name":%q,"session":%q,"request":%d,"wait_ms":%d}`, name, s.id, number, wait.Milliseconds())
	for {
		a, sent, err := s.repeat(ctx, wait+callLimit, "/v1/acquire", body)
		if err != nil {
			return grant{}, err
		}
		if a.Status == http.StatusAccepted && wait > 0 {
			continue
		}
		return readGrant(a, sent)
	}
}

func readGrant(a pawltest.Answer, sent time.Time) (grant, error) {
	if a.Status != http.StatusOK && a.Status != http.StatusAccepted {
		return grant{}, fmt.Errorf("%w: %d %s", errRefused, a.Status, a.Body)
	}
	g := grant{sent: sent, came: time.Now()}
	return g, json.Unmarshal(a.Body, &g)
}

// mustHold acquires a free lock.
func (s *session) mustHold(name string) grant {
	s.w.t.Helper()
	g, err := s.acquire(s.w.ctx, s.number.Add(1), name, 0)
	if err != nil || !g.Granted {
		s.w.t.Fatalf("acquiring %q: %v %+v", name, err, g)
	}
	return g
}

func (s *session) release(number uint64) (pawltest.Answer, error) {
	a, _, err := s.repeat(s.w.ctx, callLimit, "/v1/release", fmt.Sprintf(`{"session":%q,"request":%d}`, s.id, number))
	return a, err
}

// renew asks nodes from this one on until one answers; it is false when the session is gone.
func (s *session) renew(ctx context.Context, patience time.Duration) (alive bool, err error) {
	a, sent, err := s.repeat(ctx, patience, "/v1/renew", fmt.Sprintf(`{"session":%q}`, s.id))
	switch {
	case err != nil:
		return false, err
	case a.Status == http.StatusOK:
		s.renewed.Store(sent.UnixNano())
		return true, nil
	case problemOf(a).Code == "session_gone":
		return false, nil
	}
	return false, fmt.Errorf("renewing: %d %s", a.Status, a.Body)
}

// keepAlive renews every so often until stop is called, which tells whether the session was ever said to be gone.
func (s *session) keepAlive(every time.Duration) (stop func() (gone bool)) {
	ctx, cancel := context.WithCancel(s.w.ctx)
	done := make(chan bool, 1)
	go func() {
		for {
			alive, err := s.renew(ctx, every)
			if err == nil && !alive {
				done <- true
				return
			}
			select {
			case <-time.After(every):
			case <-ctx.Done():
				done <- false
				return
			}
		}
	}()
	return func() bool {
		cancel()
		return <-done
	}
}

// holding is a lock whose holder renews.
type holding struct {
	*session
	name  string
	token uint64
	stop  func() (gone bool)
}

// hold acquires a free lock and renews every so often.
func (w *world) hold(name string, ttl, every time.Duration) *holding {
	w.t.Helper()
	h := &holding{session: w.session(ttl), name: name}
	h.token = h.mustHold(name).Token
	h.stop = h.keepAlive(every)
	return h
}

// checkKept checks that the holder still has the lock with the token that it was granted with, and lets it end.
func (h *holding) checkKept() {
	h.w.t.Helper()
	if h.stop() {
		h.w.t.Errorf("%s: a session that renewed is gone", h.name)
	}
	v, _, err := h.w.view(h.w.Leader(), h.name, "")
	if err != nil || len(v.Holders) != 1 || v.Holders[0].Token != h.token {
		h.w.t.Errorf("%s: held with token %d, and now %+v %v", h.name, h.token, v, err)
	}
}

// lockView is what the tests look at of GET /v1/lock.
type lockView struct {
	Holders []struct {
		Owner     string `json:"owner"`
		Token     uint64 `json:"token"`
		Remaining int64  `json:"remaining_ms"`
		Held      int64  `json:"held_ms"`
	} `json:"holders"`
	Queue []struct {
		Owner string `json:"owner"`
	} `json:"queue"`
}

func (w *world) view(node int, name, query string) (v lockView, status int, err error) {
	a, err := w.Get(context.Background(), node, "/v1/lock?name="+name+query)
	if err != nil {
		return v, 0, err
	}
	if a.Status == http.StatusOK {
		err = json.Unmarshal(a.Body, &v)
	}
	return v, a.Status, err
}
