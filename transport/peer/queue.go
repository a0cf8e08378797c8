package peer

import (
	"net"
	"sync"
)

// address is a net.Addr that is only a text.
type address string

func (address) Network() string  { return "peer" }
func (a address) String() string { return string(a) }

// queue is the listener of one kind of connection: those that are through the handshake wait in it to be accepted.
type queue struct {
	address address
	waiting chan net.Conn
	done    chan struct{}
	once    sync.Once
}

func newQueue(addr string, capacity int) *queue {
	return &queue{address: address(addr), waiting: make(chan net.Conn, capacity), done: make(chan struct{})}
}

// push never blocks; a connection for which there is no place is closed.
func (q *queue) push(c net.Conn) {
	select {
	case q.waiting <- c:
	default:
		c.Close()
	}
}

// Accept blocks until a connection is through the handshake, or fails with net.ErrClosed.
func (q *queue) Accept() (net.Conn, error) {
	select {
	case <-q.done: // before anything that still waits
	default:
		select {
		case c := <-q.waiting:
			return c, nil
		case <-q.done:
		}
	}
	return nil, &net.OpError{Op: "accept", Net: q.address.Network(), Addr: q.address, Err: net.ErrClosed}
}

// Close ends Accept, and closes what nobody accepted. Accepted connections stay open.
func (q *queue) Close() error {
	q.once.Do(func() { close(q.done) })
	for {
		select {
		case c := <-q.waiting:
			c.Close()
		default:
			return nil
		}
	}
}

func (q *queue) closed() bool {
	select {
	case <-q.done:
		return true
	default:
		return false
	}
}

func (q *queue) Addr() net.Addr { return q.address }
