package peer

import (
	"context"
	"net"
	"time"

	"github.com/hashicorp/raft"
)

// defaultDialTimeout is for a Raft dial that names none.
const defaultDialTimeout = 10 * time.Second

// streamLayer is what Raft's network transport listens on and dials with.
type streamLayer struct {
	*queue
	port *Port
}

// Raft is the stream layer for raft.NewNetworkTransportWithConfig. Its Addr is "advertise/incarnation", the address
// of this node in Raft's configuration; its Dial takes such an address and demands that incarnation and our cluster.
// Its Close ends Accept and every Raft connection, and refuses Raft from then on; HTTP goes on.
func (p *Port) Raft() raft.StreamLayer { return streamLayer{p.raftQueue, p} }

// Dial blocks for at most timeout, the handshake included.
func (s streamLayer) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	if timeout <= 0 {
		timeout = defaultDialTimeout
	}
	hostport, incarnation, err := SplitAddress(string(addr))
	if err != nil {
		return nil, &DialError{Target: string(addr), Err: err}
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	c, err := s.port.dial(ctx, kindRaft, target{hostport, incarnation})
	if err != nil {
		return nil, err // not c: a nil *conn is not a nil net.Conn
	}
	return c, nil
}

func (s streamLayer) Close() error {
	err := s.queue.Close()
	s.port.CloseStreams()
	return err
}

// CloseStreams closes every open Raft connection, of both directions. Raft waits for its goroutines before it closes
// its transport, and they may be blocked in a peer that does not answer: so call this before raft.Shutdown.
func (p *Port) CloseStreams() {
	p.closeWhere(func(c *conn) bool { return c.kind == kindRaft })
}
