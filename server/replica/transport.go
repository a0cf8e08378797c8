package replica

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	// rpcLimit is how long one exchange may take; a half-open connection blocks a heartbeat for that long.
	rpcLimit = 2 * time.Second
	// pooledConnections is how many idle connections are kept for each peer.
	pooledConnections = 3
)

// transport is the library's network transport with two of its features taken away and a screen before Raft.
type transport struct {
	*raft.NetworkTransport
	streams *streams
	meter   Meter
	rpcs    chan raft.RPC
	screen  *screen
	stopped chan struct{}
	done    chan struct{} // closed when the screen's goroutine has ended
	once    sync.Once
}

// Raft looks for these by itself and works differently without them.
var (
	_ raft.Transport   = (*transport)(nil)
	_ raft.WithPreVote = (*transport)(nil)
	_ raft.WithClose   = (*transport)(nil)
)

// newTransport starts to accept connections; what they send waits until open is called.
func newTransport(stream raft.StreamLayer, logger hclog.Logger) *transport {
	tracked := &streams{StreamLayer: stream, open: map[*trackedConn]struct{}{}}
	// Guard D3: no pipelining. One answer "no" makes the pipeline's two ends wait for each other for ever, and that
	// follower gets no entries until the leader restarts (raft#612). It gains nothing either (measured).
	inFlight := 1
	if off(guardD3) {
		inFlight = raft.DefaultMaxRPCsInFlight
	}
	return &transport{
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream:          tracked,
			MaxPool:         pooledConnections,
			Timeout:         rpcLimit,
			Logger:          logger,
			MaxRPCsInFlight: inFlight,
		}),
		streams: tracked,
		rpcs:    make(chan raft.RPC),
		stopped: make(chan struct{}),
		done:    make(chan struct{}),
	}
}

// SetHeartbeatHandler is guard D1: it does nothing, so heartbeats go the way of all messages, through Raft's main loop.
// The handler would change term and state on the connection's goroutine while the main loop is leading: a deposed
// leader can then write its entries with the term of the new one, and two nodes hold different entries that Raft
// believes to be equal (raft#695).
func (t *transport) SetHeartbeatHandler(handle func(rpc raft.RPC)) {
	if off(guardD1) {
		t.NetworkTransport.SetHeartbeatHandler(handle)
	}
}

// Consumer gives Raft the messages that passed the screen.
func (t *transport) Consumer() <-chan raft.RPC { return t.rpcs }

// start lets messages in.
func (t *transport) start(screen *screen) {
	t.screen = screen
	go func() {
		defer close(t.done)
		for {
			select {
			case rpc := <-t.NetworkTransport.Consumer():
				t.admit(rpc)
			case <-t.stopped:
				return
			}
		}
	}()
}

func (t *transport) admit(rpc raft.RPC) {
	err := t.screen.check(rpc.Command)
	request, install := rpc.Command.(*raft.InstallSnapshotRequest)
	switch {
	case err != nil && install:
		rpc.Respond(hangUp{}, nil)
		return
	case err != nil:
		rpc.Respond(nil, err)
		return
	case install:
		var forRaft bool
		if rpc, forRaft = t.receive(rpc, request); !forRaft {
			return
		}
	}
	select {
	case t.rpcs <- rpc:
	case <-t.stopped:
	}
}

// Close ends the listener and every connection in both directions. The library's own Close leaves accepted ones open,
// and their goroutines with them.
func (t *transport) Close() error {
	var err error
	t.once.Do(func() {
		close(t.stopped)
		err = t.NetworkTransport.Close()
		t.CloseStreams()
		if t.screen != nil {
			<-t.done
		}
	})
	return err
}

// hangUp is an answer that cannot be encoded: the library then closes the connection, which it offers no other way to
// do. What else the peer has sent on it is never looked at.
type hangUp struct{}

var errHangUp = errors.New("the connection is given up")

// MarshalBinary refuses.
func (hangUp) MarshalBinary() ([]byte, error) { return nil, errHangUp }

// UnmarshalBinary is there because the codec calls the one only beside the other.
func (*hangUp) UnmarshalBinary([]byte) error { return errHangUp }

// streams is a stream layer that knows its connections, to close them all.
type streams struct {
	raft.StreamLayer

	mu     sync.Mutex
	open   map[*trackedConn]struct{}
	closed bool
}

type trackedConn struct {
	net.Conn
	streams *streams
}

func (s *streams) Accept() (net.Conn, error) {
	conn, err := s.StreamLayer.Accept()
	if err != nil {
		return nil, err
	}
	return s.track(conn)
}

func (s *streams) Dial(address raft.ServerAddress, limit time.Duration) (net.Conn, error) {
	conn, err := s.StreamLayer.Dial(address, limit)
	if err != nil {
		return nil, fmt.Errorf("dialling %s: %w", address, err)
	}
	return s.track(conn)
}

var errStreamsClosed = errors.New("stream layer is closed")

func (s *streams) track(conn net.Conn) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = conn.Close()
		return nil, errStreamsClosed
	}
	tracked := &trackedConn{conn, s}
	s.open[tracked] = struct{}{}
	return tracked, nil
}

func (s *streams) Close() error {
	s.mu.Lock()
	s.closed = true
	open := s.open
	s.open = map[*trackedConn]struct{}{}
	s.mu.Unlock()
	for conn := range open {
		_ = conn.Conn.Close()
	}
	return s.StreamLayer.Close()
}

func (c *trackedConn) Close() error {
	c.streams.mu.Lock()
	delete(c.streams.open, c)
	c.streams.mu.Unlock()
	return c.Conn.Close()
}
