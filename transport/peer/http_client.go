package peer

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	// maxClients bounds the cache of HTTP clients; the least recently used makes room.
	maxClients = 32

	// httpDialTimeout bounds a connection attempt, which no single caller's context may end: others wait for it too.
	httpDialTimeout = 5 * time.Second

	// initialStreams is how many requests HTTP/2 sends on a connection before it knows the listener's limit.
	initialStreams = 100

	// A peer that vanished is noticed by pings: what is under way fails after pingAfter + pingTimeout of silence.
	pingAfter   = 3 * time.Second
	pingTimeout = 3 * time.Second
)

// HTTPClient gives the client for one peer: whatever the host in a URL, it talks to who answers at hostport, if that
// is the given incarnation ("" = any, also of another cluster: for asking who it is). It keeps its connection alive,
// follows no redirects and has no time limit but the request's context. Failures to connect are *DialError. Clients
// are shared and cached; do not keep one beyond its use. After Close every request fails.
func (p *Port) HTTPClient(hostport, incarnation string) *http.Client {
	client, evicted := p.cachedClient(target{hostport, incarnation})
	if evicted != nil {
		evicted.closeIdle() // not under the lock: it closes a connection, which takes it
	}
	return client.client
}

func (p *Port) cachedClient(to target) (client, evicted *httpClient) {
	p.mu.Lock()
	defer p.mu.Unlock()
	client = p.clients[to]
	if client == nil {
		client = p.newHTTPClient(to)
		if p.closed {
			return client, nil // its dials fail
		}
		if len(p.clients) >= maxClients {
			evicted = p.takeOldestClientLocked()
		}
		p.clients[to] = client
	}
	p.clientAt++
	client.lastUse = p.clientAt
	return client, evicted
}

func (p *Port) takeOldestClientLocked() *httpClient {
	var oldest target
	for to, client := range p.clients {
		if chosen := p.clients[oldest]; chosen == nil || client.lastUse < chosen.lastUse {
			oldest = to
		}
	}
	client := p.clients[oldest]
	delete(p.clients, oldest)
	return client
}

// Forget drops the client for a peer that was removed or replaced, and closes its connection, also one in use.
func (p *Port) Forget(hostport, incarnation string) {
	to := target{hostport, incarnation}
	p.mu.Lock()
	delete(p.clients, to)
	p.mu.Unlock()
	p.closeWhere(func(c *conn) bool { return c.kind == kindHTTP && !c.accepted && c.target == to })
}

// httpClient is the http.RoundTripper for one peer, over one connection. The pool of http.Transport is not used: a
// burst of first requests makes it open more than its own limit, and the listener would close some in use.
type httpClient struct {
	port    *Port
	to      target
	client  *http.Client
	maker   *http.Transport // makes connections, holds none
	lastUse uint64          // guarded by the port's lock

	mu       sync.Mutex
	conn     *http.ClientConn
	dialling *dialling // the attempt under way, if any
}

// dialling is one attempt to connect, for all who wait for it.
type dialling struct {
	done chan struct{} // closed when conn or err is set
	conn *http.ClientConn
	err  error
}

func (p *Port) newHTTPClient(to target) *httpClient {
	c := &httpClient{port: p, to: to}
	c.maker = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			connection, err := p.dial(ctx, kindHTTP, to)
			if err != nil {
				return nil, err // not connection: a nil *conn is not a nil net.Conn
			}
			return connection, nil
		},
		Protocols: protocols(false),
		HTTP2: &http.HTTP2Config{
			SendPingTimeout:  pingAfter,
			PingTimeout:      pingTimeout,
			WriteByteTimeout: 10 * time.Second,
		},
		DisableCompression:     true,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxPeerHeader,
	}
	c.client = &http.Client{
		Transport:     c,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// RoundTrip implements http.RoundTripper.
func (c *httpClient) RoundTrip(request *http.Request) (*http.Response, error) {
	connection, err := c.connection(request.Context())
	if err != nil {
		if request.Body != nil {
			request.Body.Close() // the contract of RoundTripper
		}
		return nil, err
	}
	return connection.RoundTrip(request) // waits for a place when maxStreams are under way
}

// connection gives the open connection, made if need be. Its errors are *DialError.
func (c *httpClient) connection(ctx context.Context) (*http.ClientConn, error) {
	connection, attempt := c.current()
	if connection != nil {
		return connection, nil
	}
	select {
	case <-attempt.done:
		return attempt.conn, attempt.err
	case <-ctx.Done():
		return nil, &DialError{Target: c.to.String(), Err: context.Cause(ctx)}
	}
}

// current gives the open connection, or the attempt to make one.
func (c *httpClient) current() (*http.ClientConn, *dialling) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		if usable(c.conn) {
			return c.conn, nil
		}
		c.conn = nil // closed, or closing by itself when what is still under way on it has ended
	}
	if c.dialling == nil {
		attempt := &dialling{done: make(chan struct{})}
		c.dialling = attempt
		if !c.port.start(func() { c.connect(attempt) }) {
			c.finishLocked(attempt, nil, &DialError{Target: c.to.String(), Err: ErrClosing})
		}
		return nil, attempt
	}
	return nil, c.dialling
}

// usable says whether a new request may go on a connection. Full and about to close look the same from outside but
// for the number of requests under way; on a full one a request waits for its place. (Until the listener's settings
// have arrived a connection counts as full at initialStreams.)
func usable(connection *http.ClientConn) bool {
	return connection.Err() == nil && (connection.Available() > 0 || connection.InFlight() >= initialStreams)
}

func (c *httpClient) connect(attempt *dialling) {
	ctx, cancel := context.WithTimeout(c.port.ctx, httpDialTimeout)
	defer cancel()
	connection, err := c.maker.NewClientConn(ctx, "http", c.to.hostport)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finishLocked(attempt, connection, err)
}

func (c *httpClient) finishLocked(attempt *dialling, connection *http.ClientConn, err error) {
	attempt.conn, attempt.err = connection, err
	c.conn, c.dialling = connection, nil
	close(attempt.done)
}

// closeIdle closes a connection that nobody uses; one in use ends by itself when it has been idle for long.
func (c *httpClient) closeIdle() {
	c.mu.Lock()
	connection := c.conn
	c.mu.Unlock()
	if connection != nil && connection.InFlight() == 0 {
		connection.Close()
	}
}
