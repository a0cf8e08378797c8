package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

// processes is a cluster of real pawl server processes on loopback, which a test can kill and suspend.
type processes struct {
	t      *testing.T
	binary string
	dir    string
	apis   []string
	peers  string
	nodes  []*exec.Cmd
	logs   []*bytes.Buffer
}

// buildBinary builds pawl as the Makefile does.
func buildBinary(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pawl")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("building pawl: %v\n%s", err, out)
	}
	return path
}

// startProcesses starts three nodes and waits until they are ready.
func startProcesses(t *testing.T) *processes {
	t.Helper()
	p := &processes{t: t, binary: buildBinary(t), dir: t.TempDir(), nodes: make([]*exec.Cmd, 3), logs: make([]*bytes.Buffer, 3)}
	var list []string
	for i := range p.nodes {
		p.apis = append(p.apis, freeAddress(t))
		list = append(list, fmt.Sprintf("n%d=%s", i+1, freeAddress(t)))
	}
	p.peers = strings.Join(list, ",")
	for i := range p.nodes {
		p.start(i)
	}
	t.Cleanup(func() {
		for i := range p.nodes {
			p.signal(i, syscall.SIGCONT)
			p.kill(i)
			if t.Failed() {
				t.Logf("last words of n%d:\n%s", i+1, lastLines(p.logs[i].String(), 30))
			}
		}
	})
	for i := range p.nodes {
		p.ready(i)
	}
	return p
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func (p *processes) start(i int) {
	p.t.Helper()
	c := exec.Command(p.binary, "server", "--name", fmt.Sprintf("n%d", i+1), "--data", filepath.Join(p.dir, fmt.Sprintf("n%d", i+1)),
		"--peers", p.peers, "--api", p.apis[i])
	if p.logs[i] == nil {
		p.logs[i] = &bytes.Buffer{}
	}
	c.Stdout, c.Stderr = p.logs[i], p.logs[i]
	if err := c.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.nodes[i] = c
}

// kill is kill -9: nothing is flushed, nobody is told.
func (p *processes) kill(i int) {
	if c := p.nodes[i]; c != nil {
		p.nodes[i] = nil
		_ = c.Process.Kill()
		_ = c.Wait()
	}
}

func (p *processes) signal(i int, s syscall.Signal) {
	if c := p.nodes[i]; c != nil {
		_ = c.Process.Signal(s)
	}
}

func (p *processes) ready(i int) {
	p.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		r, err := http.Get("http://" + p.apis[i] + "/readyz")
		if err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return
			}
		}
		if time.Now().After(end) {
			p.t.Fatalf("n%d is not ready after 20 s: %v", i+1, err)
		}
	}
}

// leader returns who leads, as a node that runs sees it.
func (p *processes) leader() int {
	p.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		for i := range p.nodes {
			if p.nodes[i] == nil {
				continue
			}
			var out transport.ClusterResponse
			if status, err := p.call(context.Background(), i, http.MethodGet, "/v1/cluster", nil, "", &out); err == nil && status == 200 && out.Leader != "" {
				if k := int(out.Leader[1] - '1'); p.nodes[k] != nil {
					return k
				}
			}
		}
	}
	p.t.Fatal("nobody leads after 20 s")
	return -1
}

// call sends one request to one node; the caller does all repeating.
func (p *processes) call(ctx context.Context, i int, method, path string, in any, key string, out any) (status int, err error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return 0, err
		}
		body = bytes.NewReader(b)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+p.apis[i]+path, body)
	if err != nil {
		return 0, err
	}
	if key != "" {
		r.Header.Set(transport.HeaderIdempotencyKey, key)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	if response.StatusCode < 300 && out != nil {
		err = json.Unmarshal(b, out)
	}
	return response.StatusCode, err
}

// ledger checks what the cluster says, as clients see it: no exclusive token twice, and no token that is not above all
// that were acknowledged before its acquire began.
type ledger struct {
	mu     sync.Mutex
	newest map[string]transport.Token
	seen   map[string]map[transport.Token]string // token → key of the acquire
	grants int
	faults []string
}

func (l *ledger) floor(name string) transport.Token {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.newest[name]
}

func (l *ledger) granted(name, key string, token, floor transport.Token) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.grants++
	if other, twice := l.seen[name][token]; twice && other != key {
		l.faults = append(l.faults, fmt.Sprintf("%s: token %d was granted to %s and to %s", name, token, other, key))
	}
	if token <= floor {
		l.faults = append(l.faults, fmt.Sprintf("%s: token %d was granted by an acquire that began when %d was acknowledged", name, token, floor))
	}
	if l.seen[name] == nil {
		l.seen[name] = map[transport.Token]string{}
	}
	l.seen[name][token] = key
	l.newest[name] = max(l.newest[name], token)
}

// more waits until that many further grants were acknowledged: the load goes on.
func (l *ledger) more(t *testing.T, grants int) {
	t.Helper()
	count := func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.grants
	}
	want := count() + grants
	for end := time.Now().Add(30 * time.Second); count() < want; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d grants, want %d: nothing is granted any more", count(), want)
		}
	}
}

// load is clients that acquire and release a few locks until ctx ends, repeating by key what they are not sure of.
func (p *processes) load(ctx context.Context, l *ledger, clients int) *sync.WaitGroup {
	var running sync.WaitGroup
	for k := range clients {
		running.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				name, key := fmt.Sprintf("contended-%d", n%4), fmt.Sprintf("key-%d-%d", k, n)
				floor := l.floor(name)
				var g transport.AcquireResponse
				if !p.persist(ctx, k+n, "/v1/acquire", transport.AcquireRequest{Name: name, Owner: fmt.Sprintf("client-%d", k), TTLMS: 5000, WaitMS: 2000}, key, &g) {
					continue
				}
				l.granted(name, key, g.Token, floor)
				p.persist(ctx, k+n, "/v1/release", transport.ReleaseRequest{Session: g.Session, Token: g.Token}, "", nil)
			}
		})
	}
	return &running
}

// persist repeats a call at one node after another until there is a definite answer; it reports whether that was done.
func (p *processes) persist(ctx context.Context, first int, path string, in any, key string, out any) bool {
	for try := 0; ctx.Err() == nil; try++ {
		limited, cancel := context.WithTimeout(ctx, 4*time.Second)
		status, err := p.call(limited, (first+try)%len(p.apis), http.MethodPost, path, in, key, out)
		cancel()
		if err == nil && status < 500 {
			return status < 300
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return false
}

// TestKillNine kills each node in turn and then all at once, under load: no acknowledged grant is lost, no exclusive
// token is given twice or goes back (I1, I2, I7).
func TestKillNine(t *testing.T) {
	p := startProcesses(t)
	l := &ledger{newest: map[string]transport.Token{}, seen: map[string]map[transport.Token]string{}}

	// Holds that nobody renews or releases: whatever happens, they must be there at the end.
	kept := map[string]transport.Token{}
	keep := func(name string) {
		t.Helper()
		var g transport.AcquireResponse
		if !p.persist(t.Context(), len(kept), "/v1/acquire", transport.AcquireRequest{Name: name, Owner: "keeper", TTLMS: 600_000}, "keep-"+name, &g) {
			t.Fatalf("%s was not granted", name)
		}
		kept[name] = g.Token
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	running := p.load(ctx, l, 8)
	for round := range 3 {
		l.more(t, 50)
		keep(fmt.Sprintf("kept-before-%d", round))
		p.kill(round)
		keep(fmt.Sprintf("kept-without-%d", round)) // the other two serve
		l.more(t, 50)
		p.start(round)
		p.ready(round)
	}
	l.more(t, 50)
	leader := p.leader()
	p.kill(leader)
	keep("kept-without-the-leader")
	p.start(leader)
	p.ready(leader)
	l.more(t, 50)
	for i := range p.nodes {
		p.kill(i)
	}
	for i := range p.nodes {
		p.start(i)
	}
	keep("kept-after-all")
	for i := range p.nodes {
		p.ready(i)
	}
	l.more(t, 50)
	stop()
	running.Wait()

	for i := range p.nodes {
		for name, token := range kept {
			var out transport.LockResponse
			status, err := p.call(t.Context(), i, http.MethodGet, "/v1/lock?name="+name, nil, "", &out)
			if err != nil || status != 200 || len(out.Holders) != 1 || out.Holders[0].Token != token {
				t.Errorf("n%d: %s was granted with token %d; now: %d %v %+v", i+1, name, token, status, err, out)
			}
		}
	}
	for _, fault := range l.faults {
		t.Error(fault)
	}
	t.Logf("%d grants under load, %d kept through 5 kills", l.grants, len(kept))
}

// TestSuspendedLeader stops the leader with SIGSTOP for longer than the TTL of 50 locks, which are renewed through the
// others meanwhile: when it wakes, none is lost (B01).
func TestSuspendedLeader(t *testing.T) {
	p := startProcesses(t)
	leader := p.leader()
	others := []int{(leader + 1) % 3, (leader + 2) % 3}
	type hold struct {
		session string
		token   transport.Token
	}
	holds := map[string]hold{}
	for k := range 50 {
		name := fmt.Sprintf("lock-%d", k)
		var g transport.AcquireResponse
		if !p.persist(t.Context(), others[k%2], "/v1/acquire", transport.AcquireRequest{Name: name, Owner: "holder", TTLMS: 6000}, "key-"+name, &g) {
			t.Fatal("not granted")
		}
		holds[name] = hold{g.Session, g.Token}
	}
	renewAll := func() {
		var running sync.WaitGroup
		k := 0
		for name, h := range holds {
			k++
			node := others[k%2]
			running.Go(func() {
				if !p.persistAt(t.Context(), node, "/v1/renew", transport.RenewRequest{Session: h.session}) {
					t.Errorf("%s was lost", name)
				}
			})
		}
		running.Wait()
	}
	p.signal(leader, syscall.SIGSTOP)
	for range 8 {
		time.Sleep(time.Second) // real processes: real time must pass while the leader stands still
		renewAll()
	}
	p.signal(leader, syscall.SIGCONT)
	for range 3 {
		time.Sleep(time.Second)
		renewAll()
	}
	for name, h := range holds {
		var out transport.LockResponse
		status, err := p.call(t.Context(), others[0], http.MethodGet, "/v1/lock?name="+name, nil, "", &out)
		if err != nil || status != 200 || len(out.Holders) != 1 || out.Holders[0].Token != h.token {
			t.Errorf("%s had token %d; now %d %v %+v", name, h.token, status, err, out)
		}
	}
}

// persistAt is persist at one node only.
func (p *processes) persistAt(ctx context.Context, node int, path string, in any) bool {
	for try := 0; try < 100 && ctx.Err() == nil; try++ {
		limited, cancel := context.WithTimeout(ctx, 2*time.Second)
		status, err := p.call(limited, node, http.MethodPost, path, in, "", nil)
		cancel()
		if err == nil && status < 500 {
			return status < 300
		}
		time.Sleep(50 * time.Millisecond)
	}
	return false
}

// TestTerminated sends SIGTERM to a node: it exits with 0 in time, and membership is as before (F02).
func TestTerminated(t *testing.T) {
	p := startProcesses(t)
	for i := range p.nodes {
		began := time.Now()
		c := p.nodes[i]
		p.nodes[i] = nil
		_ = c.Process.Signal(syscall.SIGTERM)
		if err := c.Wait(); err != nil {
			t.Errorf("n%d: %v", i+1, err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("n%d took %v to stop", i+1, took)
		}
	}
	for i := range p.nodes {
		p.start(i)
	}
	for i := range p.nodes {
		p.ready(i)
	}
	var out transport.ClusterResponse
	if _, err := p.call(t.Context(), 0, http.MethodGet, "/v1/cluster", nil, "", &out); err != nil || len(out.Members) != 3 || out.Quorum != 2 {
		t.Errorf("after the restart: %v %+v", err, out)
	}
	if entries, err := os.ReadDir(filepath.Join(p.dir, "n1")); err != nil || len(entries) == 0 {
		t.Error("the data directory is empty")
	}
}
