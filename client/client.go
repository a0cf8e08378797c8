package client

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

// closeTimeout bounds Close when no node answers (A14).
const closeTimeout = 2 * time.Second

// Client talks to one Pawl cluster. It is safe for concurrent use and must be
// closed.
type Client struct {
	owner  string
	labels map[string]string
	ttl    time.Duration
	http   http.Client
	pool   *http.Transport // the default one, which is ours to close
	log    *slog.Logger
	now    func() time.Duration // the lease clock; see the package's clock rule

	hooks       Hooks
	credential  func() string                // nil for none
	traceparent func(context.Context) string // nil for none

	nodes    *nodes
	calls    *pace // of everything but renewals
	renewals *pace // of renewals, which must not stand behind other retries

	alive   context.Context // ends with Close
	kill    context.CancelCauseFunc
	working sync.WaitGroup // sessions' goroutines

	opening chan struct{} // held by whoever opens a session; a channel, so that waiting ends with a context
	mu      sync.Mutex
	tasks   atomic.Uint64
	cluster string   // whose answers came last; "" before the first
	current *session // nil before the first lock and after a loss
	closed  bool
}

// New makes a Client for the cluster whose nodes' API URLs are endpoints, as
// http://127.0.0.1:7700. One suffices, as that node passes on what only the leader
// can do; with all of them the Client survives any failure that the cluster does.
// It sends requests to them and nowhere else: given as the nodes call themselves
// (--api-url), it goes to the leader directly. New sends nothing and does not block.
func New(endpoints []string, options ...Option) (*Client, error) {
	c := defaults()
	for _, option := range options {
		option(c)
	}
	if c.http.Timeout != 0 {
		return nil, fmt.Errorf("making a client: the HTTP client's Timeout must be 0, is %v", c.http.Timeout)
	}
	if c.ttl%time.Millisecond != 0 {
		return nil, fmt.Errorf("making a client: the TTL must be whole milliseconds, is %v", c.ttl)
	}
	if c.ttl == 0 {
		return nil, fmt.Errorf("making a client: the TTL must not be 0")
	}
	if err := c.sessionRequest().Validate(); err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	var err error
	if c.nodes, err = newNodes(endpoints); err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	// The API never redirects; following one could repeat a POST as a GET, or take a
	// credential elsewhere.
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.calls = newPace(callSpacing, greatestSpacing)
	renewalSpacing := min(max(c.ttl/10, minRenewalSpacing), greatestSpacing)
	c.renewals = newPace(renewalSpacing, renewalSpacing)
	c.alive, c.kill = context.WithCancelCause(context.Background())
	c.opening = make(chan struct{}, 1)
	return c, nil
}

// sessionRequest is what the Client opens its session with.
func (c *Client) sessionRequest() *transport.SessionRequest {
	return &transport.SessionRequest{Owner: c.owner, TTLMS: c.ttl.Milliseconds(), Labels: c.labels}
}

// Close ends the session and with it every lock, stops what the Client runs and
// waits for it. It takes at most 2 s when no node answers, and then returns an
// error: the locks end by themselves within the TTL. Calls in flight end with
// ErrClosed. It may be called again.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	again, s := c.closed, c.current
	c.closed, c.current = true, nil
	c.mu.Unlock()
	// First end everything that sends, then close: a renewal behind the close
	// would be answered with a false alarm (A11).
	c.kill(ErrClosed)
	if s != nil {
		s.end(ErrClosed)
	}
	c.working.Wait()
	defer c.pool.CloseIdleConnections()
	if s == nil || again {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	_, err := do[transport.SessionCloseRequest, transport.SessionCloseResponse](ctx, c, call{path: "/v1/session/close", repeatable: true, outlives: true},
		&transport.SessionCloseRequest{Session: s.id})
	if err != nil && !isGone(err) {
		return fmt.Errorf("closing the session: %w", err)
	}
	return nil
}

// session gives the session in use, and opens one when there is none.
func (c *Client) session(ctx context.Context) (*session, error) {
	select {
	case c.opening <- struct{}{}:
		defer func() { <-c.opening }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-c.alive.Done():
		return nil, ErrClosed
	}
	c.mu.Lock()
	s := c.current
	c.mu.Unlock()
	if s != nil && s.usable() {
		return s, nil
	}
	// Repeatable: what an unanswered attempt may leave behind is a session without
	// holds, which ends after its TTL.
	answer, err := do[transport.SessionRequest, transport.SessionResponse](ctx, c, call{path: "/v1/session", repeatable: true}, c.sessionRequest())
	if err != nil {
		return nil, fmt.Errorf("opening a session: %w", err)
	}
	if answer.body.Session == "" || answer.body.TTLMS < transport.MinTTLMS {
		return nil, transport.NewError(transport.ErrInternal, "the answer to opening a session is not complete")
	}
	s = newSession(c, answer.body.Session, duration(answer.body.TTLMS), answer.sent)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed // it ends after its TTL
	}
	c.current = s
	c.working.Go(s.run)
	return s, nil
}

// forget takes a lost session out of use.
func (c *Client) forget(s *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current == s {
		c.current = nil
	}
}

// answeredBy notes which cluster answers. When it is another than before, what was
// held there is lost: nobody knows what became of it, and tokens of the two do not
// compare.
func (c *Client) answeredBy(cluster string) {
	c.mu.Lock()
	before, s := c.cluster, c.current
	if cluster == "" || cluster == before {
		c.mu.Unlock() // a proxy's own answer says nothing
		return
	}
	c.cluster = cluster
	c.mu.Unlock()
	if before == "" {
		return
	}
	c.log.Warn("another cluster answers", "before", before, "now", cluster)
	if s != nil {
		s.end(&LostError{Reason: ReasonClusterChanged})
	}
}

// running says whether Close has not been called.
func (c *Client) running() bool { return c.alive.Err() == nil }

// work runs a goroutine that Close waits for; not when it has begun to wait.
func (c *Client) work(task func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.working.Go(task)
	return true
}
