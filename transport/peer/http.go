package peer

import (
	"context"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	// maxClients bounds the cache of HTTP clients; the least recently used makes room.
	maxClients = 32

	// clientConns is how many connections one client opens. HTTP/2 carries maxStreams requests on each, so a long
	// poll that waits at the leader for a follower's caller costs no connection and no file descriptor of its own.
	clientConns = 2
	maxStreams  = 4096

	maxPeerHeader = 16 << 10

	// A peer that vanished is noticed by pings: what is under way fails after pingAfter + pingTimeout of silence.
	pingAfter   = 3 * time.Second
	pingTimeout = 3 * time.Second
)

// HTTP is the listener of connections whose handshake said "http". Serve it with [Port.Server]: clients speak HTTP/2
// without TLS, which a plain http.Server does not.
func (p *Port) HTTP() net.Listener { return p.httpQueue }

// Server makes the http.Server for [Port.HTTP], with bounds on what a peer may send and [PeerOf] at work. The caller
// may change it before it serves, and owns it: Serve(port.HTTP()), Shutdown.
func (p *Port) Server(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ConnContext:       p.ConnContext,
		Protocols:         protocols(true),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams, WriteByteTimeout: 10 * time.Second},
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       3 * time.Minute,
		MaxHeaderBytes:    maxPeerHeader,
		ErrorLog:          p.errorLog(),
	}
}

func (p *Port) errorLog() *log.Logger {
	return p.config.Logger.StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug})
}

func protocols(http1 bool) *http.Protocols {
	var set http.Protocols
	set.SetHTTP1(http1)
	set.SetUnencryptedHTTP2(true)
	return &set
}

type callerKey struct{}

type caller struct {
	identity Identity
	cluster  string
}

// ConnContext is for http.Server.ConnContext: it tells the handlers who the handshake said is calling.
func (p *Port) ConnContext(ctx context.Context, c net.Conn) context.Context {
	if c, ok := c.(*conn); ok {
		return context.WithValue(ctx, callerKey{}, caller{c.peer, c.cluster})
	}
	return ctx
}

// PeerOf tells, from a request's context, who the handshake said is calling and which cluster it said it is of ("" =
// none yet; it may be another than ours when the caller wanted no particular incarnation). Not ok when the request
// did not come over a peer port. Without TLS this is the caller's word.
func PeerOf(ctx context.Context) (who Identity, cluster string, ok bool) {
	c, ok := ctx.Value(callerKey{}).(caller)
	return c.identity, c.cluster, ok
}

type httpClient struct {
	client    *http.Client
	transport *http.Transport
	lastUse   uint64
}

// HTTPClient gives the client for one peer: whatever the host in a URL, it talks to who answers at hostport, if that
// is the given incarnation ("" = any, also of another cluster: for asking who it is). It keeps connections alive,
// follows no redirects and has no time limit but the request's context. Failures to connect are *DialError. Clients
// are shared and cached; do not keep one beyond its use. After Close every request fails.
func (p *Port) HTTPClient(hostport, incarnation string) *http.Client {
	client, evicted := p.cachedClient(target{hostport, incarnation})
	if evicted != nil {
		evicted.transport.CloseIdleConnections() // not under the lock: it closes connections, which take it
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

func (p *Port) newHTTPClient(to target) *httpClient {
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := p.dial(ctx, kindHTTP, to)
			if err != nil {
				return nil, err // not c: a nil *conn is not a nil net.Conn
			}
			return c, nil
		},
		Protocols: protocols(false),
		HTTP2: &http.HTTP2Config{
			SendPingTimeout: pingAfter, PingTimeout: pingTimeout, WriteByteTimeout: 10 * time.Second,
		},
		DisableCompression:     true,
		MaxConnsPerHost:        clientConns,
		MaxIdleConnsPerHost:    clientConns,
		IdleConnTimeout:        90 * time.Second,
		MaxResponseHeaderBytes: maxPeerHeader,
	}
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return &httpClient{client: client, transport: transport}
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

// Forget drops the client for a peer that was removed or replaced, and closes its connections, also those in use.
func (p *Port) Forget(hostport, incarnation string) {
	to := target{hostport, incarnation}
	p.mu.Lock()
	cached := p.clients[to]
	delete(p.clients, to)
	p.mu.Unlock()
	if cached != nil {
		cached.transport.CloseIdleConnections()
	}
	p.closeWhere(func(c *conn) bool { return c.kind == kindHTTP && !c.accepted && c.target == to })
}
