package peer

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

const (
	testCluster = "7f0c1d8e-0f7a-4a53-9f0e-1f3ad5d0c001"
	timeLimit   = 5 * time.Second // on the real clock: what the port promises, not how long a test may take
)

func identity(name string, life byte) Identity {
	incarnation := []byte("00000000000000a0")
	incarnation[incarnationBytes-1] = "0123456789abcdef"[life%16]
	return Identity{Name: name, Incarnation: string(incarnation)}
}

func constant(cluster string) func() string { return func() string { return cluster } }

// openPort opens a port on a free loopback port, or as changed by the options.
func openPort(t *testing.T, self Identity, cluster string, options ...func(*Config)) *Port {
	t.Helper()
	config := Config{Listen: "127.0.0.1:0", Self: self, Cluster: constant(cluster)}
	for _, option := range options {
		option(&config)
	}
	port, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { port.Close() })
	return port
}

func (p *Port) raftAddress() raft.ServerAddress {
	return raft.ServerAddress(Address(p.Advertise(), p.Self().Incarnation))
}

// pipeNetwork is the smallest network there is: net.Pipe between one dialler and one listener at a time. It works in
// virtual time.
type pipeNetwork struct {
	mu        sync.Mutex
	listeners map[string]*pipeListener
}

func newPipeNetwork() *pipeNetwork { return &pipeNetwork{listeners: make(map[string]*pipeListener)} }

func (n *pipeNetwork) Listen(at string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &pipeListener{at: address(at), waiting: make(chan net.Conn), done: make(chan struct{})}
	n.listeners[at] = l
	return l, nil
}

func (n *pipeNetwork) Dial(ctx context.Context, at string) (net.Conn, error) {
	n.mu.Lock()
	l := n.listeners[at]
	n.mu.Unlock()
	if l == nil {
		return nil, errors.New("nobody listens")
	}
	here, there := net.Pipe()
	select {
	case l.waiting <- there:
		return here, nil
	case <-l.done:
		return nil, errors.New("nobody listens")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type pipeListener struct {
	at      address
	waiting chan net.Conn
	done    chan struct{}
	once    sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.waiting:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return l.at }

// mustEnd reads until the other side has closed, and fails when that takes longer than the limit.
func mustEnd(t *testing.T, c net.Conn, limit time.Duration) (read []byte) {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(limit))
	read, err := io.ReadAll(c)
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		t.Fatalf("connection is still open after %v", limit)
	}
	return read
}

// refusedWith reads what a listener answers to raw bytes.
func refusedWith(t *testing.T, c net.Conn) refusal {
	t.Helper()
	c.SetReadDeadline(time.Now().Add(timeLimit))
	frame, err := readFrame(c, answerMagic)
	if err != nil {
		t.Fatalf("reading the answer: %v", err)
	}
	a, err := parseAnswer(frame)
	if err != nil {
		t.Fatalf("answer %x: %v", frame, err)
	}
	return a.code
}

// nothingAccepted fails when a connection got through the handshake.
func nothingAccepted(t *testing.T, p *Port) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.conns) > 0 || len(p.raftQueue.waiting) > 0 || len(p.httpQueue.waiting) > 0 {
		t.Errorf("a connection got through: %d open, %d for raft, %d for HTTP", len(p.conns), len(p.raftQueue.waiting),
			len(p.httpQueue.waiting))
	}
}
