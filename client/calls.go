package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

// Calls are the calls of the API one by one, for tools: they keep nothing and renew
// nothing. Each tries for at most 10 s beyond what it may wait, or until ctx
// ends, to find a node that serves. Errors match the codes of package transport,
// or ErrUnavailable.
type Calls struct{ client *Client }

// Calls gives the calls of the API one by one. It sends nothing.
func (c *Client) Calls() Calls { return Calls{c} }

// Acquire sends one acquire. With a request number or a key (Idempotency-Key, ""
// for none) it is repeated when its outcome is unknown; otherwise that is
// transport.ErrUnknownOutcome. An answer that is not Granted is still queued.
func (c Calls) Acquire(ctx context.Context, request transport.AcquireRequest, key string) (transport.AcquireResponse, error) {
	return post[transport.AcquireRequest, transport.AcquireResponse](ctx, c.client, call{path: "/v1/acquire", key: key,
		repeatable: key != "" || request.Request != 0, wait: time.Duration(request.WaitMS) * time.Millisecond}, &request)
}

// Renew renews a session.
func (c Calls) Renew(ctx context.Context, request transport.RenewRequest) (transport.RenewResponse, error) {
	return post[transport.RenewRequest, transport.RenewResponse](ctx, c.client, call{path: "/v1/renew", repeatable: true}, &request)
}

// Release gives locks back. When a repeat finds that an earlier attempt has done
// it, the answer names no locks.
func (c Calls) Release(ctx context.Context, request transport.ReleaseRequest) (transport.ReleaseResponse, error) {
	answer, err := do[transport.ReleaseRequest, transport.ReleaseResponse](ctx, c.client, call{path: "/v1/release", repeatable: true, patience: patience}, &request)
	if err != nil && answer.uncertain && isGone(err) {
		return transport.ReleaseResponse{}, nil
	}
	return answer.body, err
}

// Cancel takes an acquire back, by session and number or by key.
func (c Calls) Cancel(ctx context.Context, request transport.CancelRequest, key string) (transport.CancelResponse, error) {
	return post[transport.CancelRequest, transport.CancelResponse](ctx, c.client, call{path: "/v1/cancel", key: key, repeatable: true}, &request)
}

// OpenSession opens a session that the caller renews. Repeated, it may leave a
// session behind that nobody uses, until its TTL has passed.
func (c Calls) OpenSession(ctx context.Context, request transport.SessionRequest) (transport.SessionResponse, error) {
	return post[transport.SessionRequest, transport.SessionResponse](ctx, c.client, call{path: "/v1/session", repeatable: true}, &request)
}

// CloseSession ends a session with all its holds and waits.
func (c Calls) CloseSession(ctx context.Context, request transport.SessionCloseRequest) (transport.SessionCloseResponse, error) {
	return post[transport.SessionCloseRequest, transport.SessionCloseResponse](ctx, c.client, call{path: "/v1/session/close", repeatable: true}, &request)
}

// Convert sends one convert, which is repeated when its outcome is unknown.
func (c Calls) Convert(ctx context.Context, request transport.ConvertRequest) (transport.AcquireResponse, error) {
	return post[transport.ConvertRequest, transport.AcquireResponse](ctx, c.client, call{path: "/v1/convert", repeatable: true,
		wait: time.Duration(request.WaitMS) * time.Millisecond}, &request)
}

// Check asks whether the token is that of a present holder of the lock; when it is
// not, the error matches ErrStaleToken.
func (c Calls) Check(ctx context.Context, name string, token transport.Token) (transport.CheckResponse, error) {
	return post[transport.CheckRequest, transport.CheckResponse](ctx, c.client, call{path: "/v1/check", repeatable: true}, &transport.CheckRequest{Name: name, Token: token})
}

// ForceRelease ends the holds of a lock that have the token, against their holders'
// will: they learn of it with their next renewal. Repeated after an unknown
// outcome, it may answer ErrNotHeld because an earlier attempt has done it; then it
// says that nothing was released.
func (c Calls) ForceRelease(ctx context.Context, request transport.ForceReleaseRequest) (transport.ForceReleaseResponse, error) {
	answer, err := do[transport.ForceReleaseRequest, transport.ForceReleaseResponse](ctx, c.client, call{path: "/v1/force-release", repeatable: true, patience: patience}, &request)
	if err != nil && answer.uncertain && isGone(err) {
		return transport.ForceReleaseResponse{}, nil
	}
	return answer.body, err
}

// Page says which part of a list to give: at most Limit entries (0 = the
// server's default) behind After.
type Page struct {
	After string
	Limit int
}

func (p Page) into(query url.Values) url.Values {
	if p.After != "" {
		query.Set("after", p.After)
	}
	if p.Limit > 0 {
		query.Set("limit", strconv.Itoa(p.Limit))
	}
	return query
}

// LocksQuery restricts ListLocks; the zero value asks for all by name.
type LocksQuery struct {
	Page
	Prefix  string
	Held    bool
	Waiting bool
	// Sort is name (the default), held (longest first) or queue (longest first). The
	// latter two are orders among the up to 10,000 locks that one call looks at, by
	// name; when there are more, Next goes on behind those, not behind this page.
	Sort string
}

// GetLock reads one lock; a free one has no holders.
func (c Calls) GetLock(ctx context.Context, name string) (transport.LockResponse, error) {
	spec := getLock(name)
	spec.patience = patience
	answer, err := do[none, transport.LockResponse](ctx, c.client, spec, nil)
	return answer.body, err
}

func getLock(name string) call {
	return call{method: http.MethodGet, path: "/v1/lock", query: url.Values{"name": {name}}, repeatable: true}
}

// ListLocks reads one page of the locks that are held or waited for.
func (c Calls) ListLocks(ctx context.Context, which LocksQuery) (transport.LocksResponse, error) {
	query := which.Page.into(url.Values{})
	if which.Prefix != "" {
		query.Set("prefix", which.Prefix)
	}
	if which.Held {
		query.Set("held", "true")
	}
	if which.Waiting {
		query.Set("waiting", "true")
	}
	if which.Sort != "" {
		query.Set("sort", which.Sort)
	}
	return get[transport.LocksResponse](ctx, c.client, "/v1/locks", query)
}

// ListSessions reads one page of the sessions, of one owner if it is not "".
func (c Calls) ListSessions(ctx context.Context, owner string, page Page) (transport.SessionsResponse, error) {
	query := page.into(url.Values{})
	if owner != "" {
		query.Set("owner", owner)
	}
	return get[transport.SessionsResponse](ctx, c.client, "/v1/sessions", query)
}

// Cluster reads the members and who leads, as the node that answers sees them: it must work without a leader too.
func (c Calls) Cluster(ctx context.Context) (transport.ClusterResponse, error) {
	return get[transport.ClusterResponse](ctx, c.client, "/v1/cluster", url.Values{"consistency": {"stale"}})
}

// Transfer hands leadership over. It is not repeated when its outcome is unknown.
func (c Calls) Transfer(ctx context.Context, request transport.TransferRequest) (transport.TransferResponse, error) {
	return post[transport.TransferRequest, transport.TransferResponse](ctx, c.client, call{path: "/v1/cluster/transfer", wait: patience}, &request)
}

// Remove takes a member out of the cluster. It is not repeated when its outcome
// is unknown.
func (c Calls) Remove(ctx context.Context, request transport.RemoveRequest) (transport.MembershipResponse, error) {
	return post[transport.RemoveRequest, transport.MembershipResponse](ctx, c.client, call{path: "/v1/cluster/remove", wait: patience}, &request)
}

// Raise makes all later tokens larger and ends every hold and session (R10). It
// is not repeated when its outcome is unknown.
func (c Calls) Raise(ctx context.Context, request transport.RaiseRequest) (transport.RaiseResponse, error) {
	return post[transport.RaiseRequest, transport.RaiseResponse](ctx, c.client, call{path: "/v1/raise"}, &request)
}

// Health asks the first endpoint, and no other, for "livez" or "readyz". The
// error says why it is not well.
func (c Calls) Health(ctx context.Context, which string) (transport.HealthResponse, error) {
	answer, err := do[none, transport.HealthResponse](ctx, c.client, call{method: http.MethodGet, path: "/" + which, repeatable: true, once: true}, nil)
	return answer.body, err
}

func post[Req, Resp any](ctx context.Context, c *Client, spec call, request *Req) (Resp, error) {
	spec.patience = spec.wait + patience
	answer, err := do[Req, Resp](ctx, c, spec, request)
	return answer.body, err
}

func get[Resp any](ctx context.Context, c *Client, path string, query url.Values) (Resp, error) {
	answer, err := do[none, Resp](ctx, c, call{method: http.MethodGet, path: path, query: query, repeatable: true, patience: patience}, nil)
	return answer.body, err
}
