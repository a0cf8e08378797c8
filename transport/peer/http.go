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
	// maxStreams is how many requests one connection carries at once; more wait. A long poll that waits at the
	// leader for a follower's caller so costs no connection and no file descriptor of its own.
	maxStreams = 4096

	maxPeerHeader = 16 << 10
)

// HTTP is the listener of connections whose handshake said "http". Serve it with [Port.Server]: clients speak HTTP/2
// without TLS, which a plain http.Server does not.
func (p *Port) HTTP() net.Listener { return p.httpQueue }

// Server makes the http.Server for [Port.HTTP], with bounds on what a peer may send and [PeerOf] at work. The caller
// may change it before it serves, and owns it: Serve(port.HTTP()), Shutdown.
func (p *Port) Server(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:     handler,
		ConnContext: p.ConnContext,
		Protocols:   protocols(true),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams,
			// Whose kernel answers while its process is stopped has callers that are told nothing: their calls end here, too.
			SendPingTimeout:  pingAfter,
			PingTimeout:      pingTimeout,
			WriteByteTimeout: 10 * time.Second,
		},
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
