package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

const (
	// longestAttempt bounds an attempt beyond the time that the node may wait (A10).
	longestAttempt = 2 * time.Second
	// patience bounds a call that has no other reason to go on.
	patience = 10 * time.Second
	// maxAnswer bounds what is read of an answer, in bytes.
	maxAnswer = 16 << 20
)

// call is what do must know of a request beside its body.
type call struct {
	method string // POST unless said otherwise
	path   string
	query  url.Values
	key    string // Idempotency-Key
	// repeatable says that a second arrival does no more than the first: it has a
	// request number or key, or asks for a state rather than for a change.
	repeatable bool
	wait       time.Duration   // for how long the node may wait before it answers
	patience   time.Duration   // until when it is tried; 0 = as long as the context
	renewal    bool            // has a pace of its own
	once       bool            // asks one node, about itself
	outlives   bool            // is sent although the Client is being closed
	during     context.Context // ends the call too; nil is the Client, with which every other ends
	failed     func()          // is told of each attempt that must be repeated; nil for nobody
}

// duration reads milliseconds of an answer, within what a lease can last: a
// nonsensical number must not become a lease that overflows.
func duration(milliseconds int64) time.Duration {
	return time.Duration(min(max(milliseconds, 0), transport.MaxTTLMS+transport.MaxWaitMS)) * time.Millisecond
}

// none is the body of a call without one.
type none struct{}

// answer is a good answer.
type answer[Resp any] struct {
	body Resp
	sent time.Duration // on the lease clock, before the attempt that was answered
	// index is that of the log entry that the answer reflects.
	index uint64
	// uncertain says that an earlier attempt may have had its effect already.
	uncertain bool
}

// do is the one way to a node: it chooses where to send, bounds every attempt,
// and repeats what is safe to repeat (R14): what was surely not applied
// anywhere, what may have been applied only when the call is repeatable. It
// blocks until there is an answer, a refusal (*transport.Error), the end of ctx
// or of the call's patience. When no node served, the error matches
// ErrUnavailable, beside the last failure and the context's error.
func do[Req, Resp any](ctx context.Context, c *Client, spec call, request *Req) (answer[Resp], error) {
	var result answer[Resp]
	body, err := encode(request)
	if err != nil {
		return result, err
	}
	ctx, cancel := c.bounded(ctx, spec)
	defer cancel()
	pace := c.calls
	if spec.renewal {
		pace = c.renewals
	}
	var failure error // why the last attempt must be repeated
	for attempt := 0; ; attempt++ {
		if err := pace.enter(ctx); err != nil {
			return result, unavailable(spec, failure, errors.Join(err, doubt(spec, result.uncertain)))
		}
		if err := ctx.Err(); err != nil {
			return result, unavailable(spec, failure, errors.Join(context.Cause(ctx), doubt(spec, result.uncertain)))
		}
		target, up := c.nodes.pick(attempt < maxHints && !spec.once)
		var received Resp // a fresh one: an answer cut short must leave nothing behind
		began := time.Now()
		result.sent = c.now()
		index, err := c.attempt(ctx, up, target, spec, body, &received)
		if c.hooks.Attempt != nil {
			c.hooks.Attempt(Attempt{Path: spec.path, Endpoint: target.url, Took: time.Since(began), Err: err})
		}
		verdict := judge(err, spec)
		if verdict.served {
			c.calls.succeeded()
			c.renewals.succeeded()
			result.body, result.index = received, index
			return result, err
		}
		if ctx.Err() != nil && verdict.silent {
			// Our own end says nothing about the node; and one that waited for longer
			// than an answer takes was doing what it was asked to.
			if spec.wait > 0 && time.Since(began) > longestAttempt {
				failure = nil
			}
			return result, unavailable(spec, failure, errors.Join(context.Cause(ctx), unknownUnless(spec.repeatable)))
		}
		if up.Err() == nil || spec.wait == 0 {
			pace.failed()
			c.nodes.turn(target, verdict.silent)
		} // else another attempt has found the node failing, and turned already
		c.log.Debug("attempt failed", "path", spec.path, "node", target.url, "error", err)
		failure = err
		if spec.failed != nil {
			spec.failed()
		}
		if !verdict.repeat || spec.once {
			return result, unavailable(spec, failure, unknownUnless(verdict.repeat))
		}
		result.uncertain = result.uncertain || verdict.uncertain
		if verdict.after > 0 {
			if err := sleep(ctx, jitter(verdict.after)); err != nil {
				return result, unavailable(spec, failure, errors.Join(err, doubt(spec, result.uncertain)))
			}
		}
	}
}

// unknownUnless gives what a call that may have happened, and must not be
// repeated by us, is reported as.
func unknownUnless(repeatable bool) error {
	if repeatable {
		return nil
	}
	return transport.NewError(transport.ErrUnknownOutcome, "it may have happened, and cannot be repeated safely")
}

// doubt says of a change that was given up after an attempt without an answer that it may have happened.
func doubt(spec call, uncertain bool) error {
	if !uncertain || spec.method == http.MethodGet {
		return nil
	}
	return transport.NewError(transport.ErrUnknownOutcome, "an attempt got no answer: it may have happened")
}

// unavailable joins what is known about a call that nobody served. Without a
// failure nothing was wrong but the caller's own context.
func unavailable(spec call, failure, end error) error {
	switch {
	case failure == nil:
		return fmt.Errorf("calling %s: %w", spec.path, end)
	case end == nil:
		return fmt.Errorf("calling %s: %w: %w", spec.path, ErrUnavailable, failure)
	case errors.Is(end, ErrUnavailable):
		return fmt.Errorf("calling %s: %w: last failure: %w", spec.path, end, failure)
	default:
		return fmt.Errorf("calling %s: %w: %w: last failure: %w", spec.path, ErrUnavailable, end, failure)
	}
}

// errPatience ends a call that had no context to end it.
var errPatience = errors.New("tried for as long as this call may take")

// bounded gives the context of a whole call: the caller's, the Client's or the
// session's, and the call's patience.
func (c *Client) bounded(ctx context.Context, spec call) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := func() bool { return true }
	if !spec.outlives {
		during := cmp.Or(spec.during, c.alive)
		stop = context.AfterFunc(during, func() { cancel(context.Cause(during)) })
	}
	patient, release := ctx, context.CancelFunc(func() {})
	if spec.patience > 0 {
		patient, release = context.WithTimeoutCause(ctx, spec.patience, errPatience)
	}
	return patient, func() { stop(); release(); cancel(context.Canceled) }
}

func encode[Req any](request *Req) ([]byte, error) {
	if _, empty := any(request).(*none); empty || request == nil {
		return nil, nil
	}
	body, err := json.Marshal(request)
	if err != nil {
		return nil, fmt.Errorf("encoding the request: %w", err)
	}
	return body, nil
}

// attempt sends the call to one node and reads its whole answer, so that the
// connection can be used again (D12). The index is what the answer reflects.
func (c *Client) attempt(ctx, up context.Context, target *node, spec call, body []byte, into any) (index uint64, err error) {
	// A node that hangs with its sockets open must cost a renewal no more than a
	// part of its lease (A10). A quarter leaves time for two more attempts after
	// the one that begins at a third.
	longest := min(longestAttempt, c.ttl/4)
	if spec.outlives {
		longest = min(longest, closeTimeout/3) // Close has time for three nodes
	}
	ctx, cancel := context.WithTimeout(ctx, spec.wait+longest)
	defer cancel()
	if spec.wait > 0 {
		defer context.AfterFunc(up, cancel)()
	}
	request, err := c.request(ctx, target, spec, body)
	if err != nil {
		return 0, err
	}
	response, err := c.http.Do(request)
	if err != nil {
		return 0, fmt.Errorf("sending to %s: %w", target.url, err)
	}
	defer response.Body.Close()
	c.answeredBy(response.Header.Get(transport.HeaderCluster))
	c.nodes.leads(response.Header.Get(transport.HeaderLeader))
	if response.StatusCode/100 != 2 {
		return 0, transport.ReadError(response)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return 0, fmt.Errorf("reading the answer of %s: %w", target.url, err)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return 0, fmt.Errorf("reading the answer of %s: %w", target.url, err)
	}
	index, _ = strconv.ParseUint(response.Header.Get(transport.HeaderIndex), 10, 64) // 0 of one that says nothing
	return index, nil
}

// request makes the request of one attempt.
func (c *Client) request(ctx context.Context, target *node, spec call, body []byte) (*http.Request, error) {
	address := target.url + spec.path
	if len(spec.query) > 0 {
		address += "?" + spec.query.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, cmp.Or(spec.method, http.MethodPost), address, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("making the request: %w", err)
	}
	if body != nil {
		request.Header.Set("Content-Type", transport.TypeJSON)
	}
	if spec.key != "" {
		request.Header.Set(transport.HeaderIdempotencyKey, spec.key)
	}
	if c.traceparent != nil {
		if trace := c.traceparent(ctx); trace != "" {
			request.Header.Set("Traceparent", trace)
		}
	}
	if c.credential != nil {
		if bearer := c.credential(); bearer != "" {
			request.Header.Set("Authorization", "Bearer "+bearer)
		}
	}
	return request, nil
}

// verdict is what an attempt's error means for the next one.
type verdict struct {
	served    bool          // the cluster has spoken: an answer or a refusal that stands
	repeat    bool          // may be tried again, elsewhere
	silent    bool          // the node gave no answer
	uncertain bool          // it may have been applied
	after     time.Duration // not before
}

func judge(err error, spec call) verdict {
	if err == nil {
		return verdict{served: true}
	}
	var refusal *transport.Error
	if !errors.As(err, &refusal) {
		// A connection that was never made carried nothing, so this is safe to repeat
		// whatever it is. Anything else may have arrived (D09).
		var connection *net.OpError
		unsent := errors.As(err, &connection) && connection.Op == "dial"
		return verdict{silent: true, uncertain: !unsent, repeat: unsent || spec.repeatable}
	}
	switch refusal.Code {
	case transport.ErrNoLeader, transport.ErrOverloaded, transport.ErrShuttingDown, transport.ErrRateLimited:
	default:
		if !passing(refusal) {
			return verdict{served: true}
		}
	}
	uncertain := refusal.Applied != transport.AppliedNo
	return verdict{
		repeat:    !uncertain || spec.repeatable,
		uncertain: uncertain,
		after:     min(time.Duration(refusal.RetryAfterMS)*time.Millisecond, advice(spec)),
	}
}

// passing says of a status whether it may be another one soon, or elsewhere.
func passing(refusal *transport.Error) bool {
	switch refusal.Status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return refusal.Code != transport.ErrQuota // of a proxy, then
	}
	// A bug of the node (500) would be repeated for ever, so it stands. A redirect is
	// no answer of a node, and followed nowhere: see nodes.
	return refusal.Status/100 == 3
}

// advice bounds how long a node's advice to wait is followed.
func advice(spec call) time.Duration {
	if spec.renewal {
		// A renewal cannot wait: its deadline does not.
		return minRenewalSpacing
	}
	return longestAdvice
}
