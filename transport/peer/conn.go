package peer

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// conn is a connection whose handshake is done. The port knows it until it is closed.
type conn struct {
	net.Conn
	port     *Port
	kind     kind
	accepted bool
	peer     Identity // the other end
	cluster  string   // the other end's, as it said
	stranger bool     // accepted without being known to be of our cluster
	target   target   // of a dialled one
	lastRead atomic.Int64
	close    sync.Once
	closeErr error
}

// Read notes when the peer was last heard: the least recently heard makes room when the peer opens too many.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.heard()
	}
	return n, err
}

// heard counts from the port's beginning: a wall clock may be set.
func (c *conn) heard() { c.lastRead.Store(int64(time.Since(c.port.began))) }

func (c *conn) Close() error {
	c.close.Do(func() {
		c.port.drop(c)
		c.closeErr = c.Conn.Close()
	})
	return c.closeErr
}

// messageProgress is how long a Raft message that has begun to arrive may stand still, and an answer to it may stay
// unwritten. Raft's main loop itself reads a snapshot from the connection, with no deadline: without this one a
// leader that dies in mid snapshot would occupy the node for as long as the connection lives.
const messageProgress = 10 * time.Second

// acceptedStream is the listening end of a Raft connection, where messages are read and answers written, in turns.
//
// Between two messages it may be silent for ever: a limit there would close connections that the other end keeps
// pooled, and its next vote request would fail on each of them, which costs a whole election round. What bounds idle
// connections is the keepalive and the limit per peer.
type acceptedStream struct {
	*conn
	inMessage atomic.Bool
}

func (s *acceptedStream) Read(b []byte) (int, error) {
	var deadline time.Time
	if s.inMessage.Load() {
		deadline = time.Now().Add(messageProgress)
	}
	if err := s.SetReadDeadline(deadline); err != nil {
		return 0, err
	}
	n, err := s.conn.Read(b)
	if n > 0 {
		s.inMessage.Store(true)
	}
	return n, err
}

// Write writes an answer, so the next byte that is read begins another message.
func (s *acceptedStream) Write(b []byte) (int, error) {
	if err := s.SetWriteDeadline(time.Now().Add(messageProgress)); err != nil {
		return 0, err
	}
	n, err := s.conn.Write(b)
	s.inMessage.Store(false)
	return n, err
}
