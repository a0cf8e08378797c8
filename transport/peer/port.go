package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	// maxHandshakes is how many connections may be in the handshake at once.
	maxHandshakes = 60

	// strangerShare is the part of MaxConns that connections may take which are not of our cluster (or while we know
	// none): the rest is kept for members, so that no flood of others can cut the cluster apart.
	strangerShare = 4

	defaultHandshakeTimeout = 2 * time.Second
	maxHandshakeTimeout     = 5 * time.Second
	defaultMaxConns         = 64
	defaultMaxConnsPerPeer  = 8
)

// Config of a [Port]. Zero values mean the defaults.
type Config struct {
	Network   Network       // default TCP()
	Listen    string        // host:port to listen at
	Advertise string        // host:port that others dial; default: where the listener turned out to listen
	Self      Identity      // who this node is
	Cluster   func() string // this node's cluster id, "" while unknown; called often and concurrently, must not block
	Logger    hclog.Logger  // default: none

	// HandshakeTimeout is the absolute limit of a handshake, in both directions. Default 2 s, at most 5 s.
	HandshakeTimeout time.Duration
	// MaxConns is how many accepted connections may be open, at least 4. Default 64. Dialled ones do not count.
	MaxConns int
	// MaxConnsPerPeer is how many of them one peer may have for Raft, at least 2; for HTTP, which shares connections,
	// half as many. One more closes the peer's least recently heard: it is alive, so its oldest are the dead ones.
	// Default 8.
	MaxConnsPerPeer int
}

func (c Config) withDefaults() Config {
	if c.Network == nil {
		c.Network = TCP()
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.HandshakeTimeout == 0 {
		c.HandshakeTimeout = defaultHandshakeTimeout
	}
	if c.MaxConns == 0 {
		c.MaxConns = defaultMaxConns
	}
	if c.MaxConnsPerPeer == 0 {
		c.MaxConnsPerPeer = defaultMaxConnsPerPeer
	}
	return c
}

// Validate says which field has no possible value. [Open] calls it after filling in the defaults.
func (c Config) Validate() error {
	if err := c.Self.Validate(); err != nil {
		return err
	}
	if c.Cluster == nil {
		return errors.New("peer port: Cluster is missing")
	}
	if c.HandshakeTimeout < 0 || c.HandshakeTimeout > maxHandshakeTimeout {
		return fmt.Errorf("peer port: HandshakeTimeout %v is not within 0 and %v", c.HandshakeTimeout, maxHandshakeTimeout)
	}
	if c.MaxConns < strangerShare || c.MaxConnsPerPeer < 2 || c.MaxConnsPerPeer > c.MaxConns {
		return fmt.Errorf("peer port: MaxConns %d or MaxConnsPerPeer %d is too small, or the second above the first",
			c.MaxConns, c.MaxConnsPerPeer)
	}
	if c.Advertise != "" {
		if err := validHostport(c.Advertise); err != nil {
			return fmt.Errorf("peer port: Advertise: %w", err)
		}
	}
	return nil
}

// Port is an open peer port. All its methods are safe for concurrent use.
type Port struct {
	config    Config
	began     time.Time
	listener  net.Listener
	ctx       context.Context // ends with Close
	cancel    context.CancelFunc
	group     sync.WaitGroup // the accept loop, the handshakes, HTTP's dials
	raftQueue *queue
	httpQueue *queue
	refusals  refusalLog

	mu       sync.Mutex
	closed   bool
	pending  []net.Conn // in the handshake, oldest first
	conns    map[*conn]struct{}
	clients  map[target]*httpClient
	clientAt uint64 // counts uses of clients
}

// Open listens and begins to accept. The caller owns the port and must close it.
func Open(config Config) (*Port, error) {
	config = config.withDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	listener, err := config.Network.Listen(config.Listen)
	if err != nil {
		return nil, fmt.Errorf("opening the peer port: %w", err)
	}
	if config.Advertise == "" {
		config.Advertise = listener.Addr().String()
		if err := validHostport(config.Advertise); err != nil {
			listener.Close()
			return nil, fmt.Errorf("opening the peer port: Advertise is needed: %w", err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Port{
		config:    config,
		began:     time.Now(),
		listener:  listener,
		ctx:       ctx,
		cancel:    cancel,
		raftQueue: newQueue(Address(config.Advertise, config.Self.Incarnation), config.MaxConns),
		httpQueue: newQueue(config.Advertise, config.MaxConns),
		conns:     make(map[*conn]struct{}),
		clients:   make(map[target]*httpClient),
	}
	p.group.Go(p.accept)
	return p, nil
}

// Advertise is the host:port that others dial.
func (p *Port) Advertise() string { return p.config.Advertise }

// Self is who this node says it is.
func (p *Port) Self() Identity { return p.config.Self }

// Close stops listening, closes every connection of both directions and kind, and returns when the port's own
// goroutines have ended. A second call does nothing.
func (p *Port) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		p.group.Wait()
		return nil
	}
	p.closed = true
	pending := p.pending
	p.pending = nil
	p.clients = nil
	p.mu.Unlock()

	p.cancel() // dials in progress
	err := p.listener.Close()
	for _, raw := range pending {
		raw.Close()
	}
	p.raftQueue.Close()
	p.httpQueue.Close()
	p.closeWhere(func(*conn) bool { return true })
	p.group.Wait()
	if err != nil {
		return fmt.Errorf("closing the peer port: %w", err)
	}
	return nil
}

// start runs work in a goroutine that Close waits for, unless the port is closed.
func (p *Port) start(work func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.group.Go(work)
	return true
}

// accept never waits for a handshake, so that no dialler can hold up the others.
func (p *Port) accept() {
	const maxPause = time.Second
	pause := 5 * time.Millisecond
	for {
		raw, err := p.listener.Accept()
		if err == nil {
			pause = 5 * time.Millisecond
			if p.beginHandshake(raw) {
				p.group.Go(func() { p.welcome(raw) })
			}
			continue
		}
		if p.ctx.Err() != nil {
			return
		}
		// Typically out of file descriptors, which passes; a busy loop would only make it worse.
		p.config.Logger.Error("accepting a peer connection", "error", err, "retry-in", pause)
		timer := time.NewTimer(pause)
		select {
		case <-p.ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		pause = min(2*pause, maxPause)
	}
}

// beginHandshake takes a place among the handshakes. When all are taken the oldest makes room: a peer needs one
// round trip, so the oldest is the likeliest to be somebody who only wants to keep others out.
func (p *Port) beginHandshake(raw net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		raw.Close()
		return false
	}
	if len(p.pending) >= maxHandshakes {
		p.pending[0].Close()
		p.pending = slices.Delete(p.pending, 0, 1)
	}
	p.pending = append(p.pending, raw)
	return true
}

func (p *Port) endHandshake(raw net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endHandshakeLocked(raw)
}

func (p *Port) endHandshakeLocked(raw net.Conn) {
	if i := slices.Index(p.pending, raw); i >= 0 {
		p.pending = slices.Delete(p.pending, i, i+1)
	}
}

// admit gives an accepted connection its place among the open ones, or says why it gets none. From then on the
// connection no longer counts as a handshake, so it cannot be the one that makes room.
func (p *Port) admit(c *conn, raw net.Conn) refusal {
	code, displaced := p.place(c, raw)
	if displaced != nil {
		displaced.Close()
	}
	return code
}

func (p *Port) place(c *conn, raw net.Conn) (code refusal, displaced *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || c.kind == kindRaft && p.raftQueue.closed() || c.kind == kindHTTP && p.httpQueue.closed() {
		return refusedClosing, nil
	}
	limit := p.config.MaxConnsPerPeer
	if c.kind == kindHTTP {
		limit /= 2
	}
	total, strangers, ofPeer := 0, 0, 0
	var oldest *conn
	for other := range p.conns {
		if !other.accepted {
			continue
		}
		total++
		if other.stranger {
			strangers++
		}
		if other.kind == c.kind && other.peer == c.peer {
			ofPeer++
			if oldest == nil || other.lastRead.Load() < oldest.lastRead.Load() {
				oldest = other
			}
		}
	}
	if ofPeer >= limit {
		displaced = oldest
		delete(p.conns, displaced)
		total--
		if displaced.stranger {
			strangers--
		}
	}
	if total >= p.config.MaxConns || c.stranger && strangers >= p.config.MaxConns/strangerShare {
		return refusedTooMany, displaced
	}
	c.heard()
	p.conns[c] = struct{}{}
	p.endHandshakeLocked(raw)
	return accepted, displaced
}

// keep remembers a dialled connection, unless the port is closed.
func (p *Port) keep(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || c.kind == kindRaft && p.raftQueue.closed() {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

func (p *Port) drop(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// closeWhere closes the open connections that match. The lock is not held while they close.
func (p *Port) closeWhere(match func(*conn) bool) {
	p.mu.Lock()
	var matching []*conn
	for c := range p.conns {
		if match(c) {
			matching = append(matching, c)
		}
	}
	p.mu.Unlock()
	for _, c := range matching {
		c.Close()
	}
}
