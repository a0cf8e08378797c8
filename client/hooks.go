package client

import (
	"context"
	"errors"
	"time"
)

// Hooks are told what a Client does, to count and measure it with the library of your choice. Any of them may be nil. They
// are called from several goroutines, and must be quick: those that tell of attempts and renewals are waited for.
type Hooks struct {
	// Attempt: a request was answered, or was given up. Long waits are several attempts.
	Attempt func(Attempt)
	// Renewal: the session was renewed, or (err) could not be before its deadline. Took counts all attempts.
	Renewal func(took time.Duration, err error)
	// Acquire: an acquire of these names has ended after this time, most of it waiting in the queue, with a lock or an error.
	Acquire func(names []string, took time.Duration, err error)
	// Lost: a lock was lost. It has a goroutine of its own.
	Lost func(lock *Lock, why *LostError)
}

// Attempt is one request to one node.
type Attempt struct {
	Path     string
	Endpoint string
	Took     time.Duration
	Err      error // of the node or of the network; also a refusal as ErrHeld is one
}

// WithHooks has the Client tell what it does.
func WithHooks(hooks Hooks) Option { return func(c *Client) { c.hooks = hooks } }

// WithTrace sends what traceparent gives for the context of a call as its W3C Traceparent, if it is not "". The cluster shows
// that of an acquire beside its hold, so that who looks for the holder finds the trace. With OpenTelemetry it is
//
//	func(ctx context.Context) string {
//		carrier := propagation.MapCarrier{}
//		propagation.TraceContext{}.Inject(ctx, carrier)
//		return carrier.Get("traceparent")
//	}
func WithTrace(traceparent func(context.Context) string) Option {
	return func(c *Client) { c.traceparent = traceparent }
}

// watchLoss has the hook told when the lock is lost.
func (l *Lock) watchLoss(hook func(*Lock, *LostError)) {
	if hook == nil {
		return
	}
	context.AfterFunc(l.ended, func() {
		var why *LostError
		if errors.As(context.Cause(l.ended), &why) {
			hook(l, why)
		}
	})
}
