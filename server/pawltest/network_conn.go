package pawltest

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// window is how many bytes may be on their way or unread in one direction; then the writer blocks.
const window = 256 << 10

// pipe is a connection: two ends, and what each has sent to the other. The network's lock guards it.
type pipe struct {
	network *Network
	changed signal
	ends    [2]end
}

// end is one side of a pipe.
type end struct {
	name          string // of the host
	address       address
	sent          stream
	closed        error // what its own calls answer, once it is closed or its host has crashed
	readDeadline  time.Time
	writeDeadline time.Time
}

// stream is what one end has sent and the other not yet read, in order of sending and of arrival.
type stream struct {
	segments []segment
	size     int   // bytes in the segments
	held     *Hold // holds what is sent
}

// segment is some bytes, or the end of the stream.
type segment struct {
	at   time.Time // arrival
	data []byte
	end  error // io.EOF after Close, ECONNRESET after a crash; then there is no data
	held bool  // by a Hold, whatever its time
}

// hasArrived says whether a segment is with its receiver: in its time, and not held by a cut.
func (n *Network) hasArrivedLocked(p *pipe, from int, s segment) bool {
	l := n.linkLocked(p.ends[from].name, p.ends[1-from].name)
	return !s.held && !s.at.After(time.Now()) && !(l.cut && s.at.After(l.since))
}

func (n *Network) sendLocked(p *pipe, from int, s segment) {
	sender := &p.ends[from]
	s.at = n.arrivalLocked(sender.name, p.ends[1-from].name)
	if last := len(sender.sent.segments) - 1; last >= 0 && sender.sent.segments[last].at.After(s.at) {
		s.at = sender.sent.segments[last].at // jitter and changed delays never reorder a stream
	}
	n.holdLocked(p, from, &s)
	sender.sent.segments = append(sender.sent.segments, s)
	sender.sent.size += len(s.data)
	p.changed.broadcast()
}

// closeEndLocked closes one end: the other reads what was sent and then EOF or the reset.
func (n *Network) closeEndLocked(p *pipe, side int, reason error) {
	closing := &p.ends[side]
	if closing.closed != nil {
		return
	}
	closing.closed = reason
	atOther := io.EOF
	if reason != net.ErrClosed {
		atOther = reason
	}
	n.sendLocked(p, side, segment{end: atOther})
	if p.ends[1-side].closed != nil {
		delete(n.pipes, p)
	}
}

// silentLocked is when the keep-alive of an open pipe gives it up, if its link stays cut; zero: never.
func (n *Network) silentLocked(p *pipe) (end time.Time) {
	if n.keepAlive == 0 {
		return end
	}
	for side := range p.ends {
		if l := n.linkLocked(p.ends[side].name, p.ends[1-side].name); l.cut {
			end = earlier(end, l.since.Add(n.keepAlive))
		}
	}
	return end
}

// connection is one end of a pipe, as a net.Conn.
type connection struct {
	pipe *pipe
	side int
}

func (c *connection) Read(b []byte) (int, error) {
	n, p := c.pipe.network, c.pipe
	n.mu.Lock()
	defer n.mu.Unlock()
	own, incoming := &p.ends[c.side], &p.ends[1-c.side].sent
	for {
		switch {
		case own.closed != nil:
			return 0, c.failure("read", own.closed)
		case passed(own.readDeadline):
			return 0, c.failure("read", os.ErrDeadlineExceeded)
		case len(b) == 0:
			return 0, nil
		}
		silent := n.silentLocked(p)
		if passed(silent) {
			n.closeEndLocked(p, c.side, syscall.ETIMEDOUT)
			continue
		}
		wake := own.readDeadline
		if !silent.IsZero() {
			wake = earlier(wake, silent)
		}
		if len(incoming.segments) > 0 {
			first := incoming.segments[0]
			switch arrived := n.hasArrivedLocked(p, 1-c.side, first); {
			case arrived && first.end == io.EOF:
				return 0, io.EOF
			case arrived && first.end != nil:
				return 0, c.failure("read", first.end)
			case arrived:
				return c.takeLocked(incoming, b), nil
			case first.at.After(time.Now()):
				wake = earlier(wake, first.at) // if the link is cut by then the loop goes on to wait for the heal
			}
		}
		n.waitLocked(&p.changed, wake, nil)
	}
}

// takeLocked moves bytes that have arrived into b: as many as fit, over segment borders, like a socket's buffer.
func (c *connection) takeLocked(incoming *stream, b []byte) int {
	taken := 0
	for taken < len(b) && len(incoming.segments) > 0 {
		first := &incoming.segments[0]
		if first.end != nil || !c.pipe.network.hasArrivedLocked(c.pipe, 1-c.side, *first) {
			break
		}
		count := copy(b[taken:], first.data)
		taken += count
		first.data = first.data[count:]
		if len(first.data) == 0 {
			incoming.segments = incoming.segments[1:]
		}
	}
	incoming.size -= taken
	c.pipe.changed.broadcast() // there is room for the writer
	return taken
}

func (c *connection) Write(b []byte) (int, error) {
	n, p := c.pipe.network, c.pipe
	n.mu.Lock()
	defer n.mu.Unlock()
	own, back := &p.ends[c.side], &p.ends[1-c.side].sent
	written := 0
	for {
		wake := own.writeDeadline
		switch {
		case own.closed != nil:
			return written, c.failure("write", own.closed)
		case passed(own.writeDeadline):
			return written, c.failure("write", os.ErrDeadlineExceeded)
		case len(back.segments) > 0:
			// An end is always the last segment, and it counts as soon as it arrives, read or not.
			if last := back.segments[len(back.segments)-1]; last.end != nil {
				if n.hasArrivedLocked(p, 1-c.side, last) {
					return written, c.failure("write", syscall.EPIPE)
				}
				if last.at.After(time.Now()) {
					wake = earlier(wake, last.at)
				}
			}
		}
		if count := min(len(b)-written, window-own.sent.size); count > 0 {
			n.sendLocked(p, c.side, segment{data: append([]byte(nil), b[written:written+count]...)})
			written += count
		}
		if written == len(b) {
			return written, nil
		}
		n.waitLocked(&p.changed, wake, nil)
	}
}

func (c *connection) Close() error {
	n := c.pipe.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if c.pipe.ends[c.side].closed != nil {
		return c.failure("close", net.ErrClosed)
	}
	n.closeEndLocked(c.pipe, c.side, net.ErrClosed)
	return nil
}

func (c *connection) LocalAddr() net.Addr  { return c.pipe.ends[c.side].address }
func (c *connection) RemoteAddr() net.Addr { return c.pipe.ends[1-c.side].address }

func (c *connection) SetDeadline(t time.Time) error {
	return c.change(func(own *end) { own.readDeadline, own.writeDeadline = t, t })
}

func (c *connection) SetReadDeadline(t time.Time) error {
	return c.change(func(own *end) { own.readDeadline = t })
}

func (c *connection) SetWriteDeadline(t time.Time) error {
	return c.change(func(own *end) { own.writeDeadline = t })
}

func (c *connection) change(set func(*end)) error {
	n := c.pipe.network
	n.mu.Lock()
	defer n.mu.Unlock()
	own := &c.pipe.ends[c.side]
	if own.closed != nil {
		return c.failure("set", net.ErrClosed)
	}
	set(own)
	c.pipe.changed.broadcast()
	return nil
}

func (c *connection) failure(act string, err error) error {
	return &net.OpError{Op: act, Net: address("").Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

func passed(deadline time.Time) bool { return !deadline.IsZero() && !deadline.After(time.Now()) }

// earlier is the first of two times of which a zero one never comes.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}
