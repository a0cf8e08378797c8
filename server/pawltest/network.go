package pawltest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/pawl-lock/pawl/transport/peer"
)

const (
	// defaultDelay is the one-way delay of a link. It is never zero: in virtual time a loop over a link without
	// delay would spin and time would stand still.
	defaultDelay = 200 * time.Microsecond

	// jitterShare: a segment takes up to a quarter longer than the link's delay.
	jitterShare = 4

	// connectTimeout ends a dial without a deadline to a host that does not answer, as Linux does by default.
	connectTimeout = 127 * time.Second

	backlog            = 128
	firstEphemeralPort = 32768
)

var errHostCrashed = errors.New("host has crashed")

// Network is an in-memory network of named hosts for whole clusters in virtual time. It has no goroutines of its own:
// what arrives when is worked out by who reads. Inside a testing/synctest bubble every wait is durable, so time
// advances; outside it runs in real time.
//
// Hosts reach each other unless a fault says otherwise. Faults act on open connections too: what is on its way over a
// cut link is held, as TCP would send it again, and arrives after the link is healed. All methods are safe for
// concurrent use.
type Network struct {
	mu        sync.Mutex // over everything below, and every connection: held for moments only
	random    *rand.Rand
	changed   signal // cuts, heals, crashes: wakes the dials
	lives     map[string]int
	isolated  map[string]bool
	links     map[direction]*link
	listeners map[string]*listener // by address
	pipes     map[*pipe]struct{}   // with at least one end open
	lastPort  int
	keepAlive time.Duration // 0: never
	holds     map[*Hold]struct{}
}

// direction is one way between two hosts.
type direction struct{ from, to string }

type link struct {
	delay time.Duration
	cut   bool
	since time.Time // of the cut: what arrived before can be read
}

// NewNetwork makes a network without hosts. The seed decides the jitter.
func NewNetwork(seed uint64) *Network {
	return &Network{
		random:    rand.New(rand.NewPCG(seed, seed)),
		lives:     make(map[string]int),
		isolated:  make(map[string]bool),
		links:     make(map[direction]*link),
		listeners: make(map[string]*listener),
		pipes:     make(map[*pipe]struct{}),
		holds:     make(map[*Hold]struct{}),
		lastPort:  firstEphemeralPort,
	}
}

// Host is the network as one host sees it; servers and clients are hosts alike. It listens at "name:port" addresses
// of its own name. After [Network.Crash] it is dead for good, with everything that still runs on it; another call of
// Host with the same name is the host after its restart.
func (n *Network) Host(name string) peer.Network {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, known := n.lives[name]; !known {
		n.lives[name] = 0
	}
	return &host{network: n, name: name, life: n.lives[name]}
}

// Cut holds everything between two hosts, both ways, until Heal.
func (n *Network) Cut(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cutLocked(a, b)
	n.cutLocked(b, a)
}

// CutOneWay holds what goes from one host to another. What comes back still arrives, but no new connection between
// them can be made from either side.
func (n *Network) CutOneWay(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cutLocked(from, to)
}

// Isolate cuts a host off from every other, also from those that appear later. Heal gives it back single ones,
// Rejoin and HealAll everything.
func (n *Network) Isolate(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.isolated[name] = true
	for other := range n.lives {
		n.cutLocked(name, other)
		n.cutLocked(other, name)
	}
}

// Rejoin heals every link of a host.
func (n *Network) Rejoin(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.isolated, name)
	n.healLocked(func(d direction) bool { return d.from == name || d.to == name })
}

// Heal ends the cuts between two hosts, both ways. What was held arrives after the link's delay.
func (n *Network) Heal(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.linkLocked(a, b) // of an isolated host that never met the other it would be made only later, and then cut
	n.linkLocked(b, a)
	n.healLocked(func(d direction) bool { return d == direction{a, b} || d == direction{b, a} })
}

// HealAll ends every cut. Delays stay as they are.
func (n *Network) HealAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.isolated)
	n.healLocked(func(direction) bool { return true })
}

// SetDelay sets the one-way delay between two hosts, both ways, for what is sent from now on. Zero is the default.
func (n *Network) SetDelay(a, b string, delay time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delay = cmp.Or(max(delay, 0), defaultDelay)
	n.linkLocked(a, b).delay = delay
	n.linkLocked(b, a).delay = delay
}

// SetKeepAlive has connections over a link that has been cut for this long time out, as TCP's keep-alive does where it is
// set. Zero, the default, is never.
func (n *Network) SetKeepAlive(limit time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.keepAlive = limit
	for p := range n.pipes {
		p.changed.broadcast()
	}
}

// Crash ends a host as kill -9 ends a process: its listeners are gone and its connections reset. What it had sent
// still arrives, and then the reset, unless the link is cut. Whatever goes on running on it reaches nobody.
func (n *Network) Crash(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lives[name]++
	for _, l := range n.listeners {
		if l.host.name == name {
			n.closeListenerLocked(l)
		}
	}
	for p := range n.pipes {
		for side := range p.ends {
			if p.ends[side].name == name {
				n.closeEndLocked(p, side, syscall.ECONNRESET)
			}
		}
	}
	n.changed.broadcast()
}

func (n *Network) linkLocked(from, to string) *link {
	l := n.links[direction{from, to}]
	if l == nil {
		l = &link{delay: defaultDelay}
		if from != to && (n.isolated[from] || n.isolated[to]) {
			l.cut, l.since = true, time.Now()
		}
		n.links[direction{from, to}] = l
	}
	return l
}

func (n *Network) cutLocked(from, to string) {
	l := n.linkLocked(from, to)
	if from != to && !l.cut {
		l.cut, l.since = true, time.Now()
		n.changed.broadcast()
		if n.keepAlive == 0 {
			return
		}
		for p := range n.pipes { // their ends learn when the time is over
			if a, b := p.ends[0].name, p.ends[1].name; (a == from && b == to) || (a == to && b == from) {
				p.changed.broadcast()
			}
		}
	}
}

func (n *Network) healLocked(match func(direction) bool) {
	for d, l := range n.links {
		if !l.cut || !match(d) {
			continue
		}
		n.releaseLocked(d, l)
		l.cut = false
	}
	n.changed.broadcast()
}

// releaseLocked sends again, now, what a cut has held.
func (n *Network) releaseLocked(d direction, l *link) {
	now := time.Now()
	for p := range n.pipes {
		for side := range p.ends {
			if p.ends[side].name != d.from || p.ends[1-side].name != d.to {
				continue
			}
			s := &p.ends[side].sent
			for i := range s.segments {
				if s.segments[i].at.After(l.since) {
					s.segments[i].at = now.Add(l.delay)
				}
			}
			p.changed.broadcast()
		}
	}
}

// arrivalLocked is when something sent now gets there, if the link is not cut.
func (n *Network) arrivalLocked(from, to string) time.Time {
	delay := n.linkLocked(from, to).delay
	return time.Now().Add(delay + time.Duration(n.random.Int64N(int64(delay)/jitterShare+1)))
}

// host is a peer.Network for one life of one host.
type host struct {
	network *Network
	name    string
	life    int
}

func (h *host) aliveLocked() bool { return h.network.lives[h.name] == h.life }

func (h *host) Listen(text string) (net.Listener, error) {
	n := h.network
	n.mu.Lock()
	defer n.mu.Unlock()
	name, port, err := net.SplitHostPort(text)
	switch {
	case err != nil:
	case !h.aliveLocked():
		err = errHostCrashed
	case name != h.name && name != "":
		err = syscall.EADDRNOTAVAIL
	}
	if err == nil && port == "0" {
		port = n.nextPortLocked()
	}
	at := address(net.JoinHostPort(h.name, port))
	if err == nil && n.listeners[string(at)] != nil {
		err = syscall.EADDRINUSE
	}
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: at.Network(), Addr: address(text), Err: err}
	}
	l := &listener{host: h, address: at, waiting: make(chan *connection, backlog), done: make(chan struct{})}
	n.listeners[string(at)] = l
	return l, nil
}

func (n *Network) nextPortLocked() string {
	n.lastPort++
	return strconv.Itoa(n.lastPort)
}

func (h *host) Dial(ctx context.Context, text string) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, syscall.ETIMEDOUT)
	defer cancel()
	c, err := h.dial(ctx, text)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: address("").Network(), Addr: address(text), Err: err}
	}
	return c, nil
}

// dial waits as long as the link is cut, then for one round trip, and only then is there a connection, at both ends:
// a listener never sees one whose dialler does not hear it.
func (h *host) dial(ctx context.Context, text string) (*connection, error) {
	to, _, err := net.SplitHostPort(text)
	if err != nil {
		return nil, err
	}
	n := h.network
	n.mu.Lock()
	defer n.mu.Unlock()
	var done time.Time // of the round trip, once it has begun
	for {
		there, back := n.linkLocked(h.name, to), n.linkLocked(to, h.name)
		switch _, known := n.lives[to]; {
		case !h.aliveLocked():
			return nil, errHostCrashed
		case !known:
			return nil, &net.DNSError{Err: "no such host", Name: to, IsNotFound: true}
		case there.cut || back.cut:
			done = time.Time{} // whatever was on its way is sent again after the heal
		case done.IsZero():
			done = time.Now().Add(there.delay + back.delay)
		case !time.Now().Before(done):
			l := n.listeners[text]
			if l == nil {
				return nil, syscall.ECONNREFUSED
			}
			if c, ok := n.connectLocked(h, l); ok {
				return c, nil
			}
			done = time.Now().Add(time.Second) // a full backlog: TCP tries again after a second
		}
		if err := n.waitLocked(&n.changed, done, ctx.Done()); err != nil {
			return nil, context.Cause(ctx)
		}
	}
}

func (n *Network) connectLocked(h *host, l *listener) (*connection, bool) {
	p := &pipe{network: n}
	p.ends[0] = end{name: h.name, address: address(net.JoinHostPort(h.name, n.nextPortLocked()))}
	p.ends[1] = end{name: l.host.name, address: l.address}
	select {
	case l.waiting <- &connection{p, 1}:
	default:
		return nil, false
	}
	n.pipes[p] = struct{}{}
	return &connection{p, 0}, true
}

// waitLocked lets go of the lock until the signal, a time (zero: none), or the end of done, which is an error.
func (n *Network) waitLocked(changed *signal, until time.Time, done <-chan struct{}) error {
	woken := changed.wait()
	n.mu.Unlock()
	defer n.mu.Lock()
	var due <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-woken:
	case <-due:
	case <-done:
		return context.Canceled
	}
	return nil
}

// signal wakes all who wait, like a sync.Cond that can be selected on. Its owner's lock guards it.
type signal struct{ waiting chan struct{} }

func (s *signal) wait() <-chan struct{} {
	if s.waiting == nil {
		s.waiting = make(chan struct{})
	}
	return s.waiting
}

func (s *signal) broadcast() {
	if s.waiting != nil {
		close(s.waiting)
		s.waiting = nil
	}
}

// listener is where a host accepts.
type listener struct {
	host    *host
	address address
	waiting chan *connection
	done    chan struct{}
	closed  bool
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case <-l.done:
	default:
		select {
		case c := <-l.waiting:
			return c, nil
		case <-l.done:
		}
	}
	return nil, &net.OpError{Op: "accept", Net: l.address.Network(), Addr: l.address, Err: net.ErrClosed}
}

func (l *listener) Addr() net.Addr { return l.address }

func (l *listener) Close() error {
	n := l.host.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if l.closed {
		return fmt.Errorf("closing %s: %w", l.address, net.ErrClosed)
	}
	n.closeListenerLocked(l)
	return nil
}

// closeListenerLocked resets what nobody accepted. The lock keeps dials from adding to it meanwhile.
func (n *Network) closeListenerLocked(l *listener) {
	l.closed = true
	delete(n.listeners, string(l.address))
	close(l.done)
	for {
		select {
		case c := <-l.waiting:
			n.closeEndLocked(c.pipe, c.side, syscall.ECONNRESET)
		default:
			return
		}
	}
}

// address is "host:port" with a host of this network.
type address string

func (address) Network() string  { return "memory" }
func (a address) String() string { return string(a) }
