// Package messagefence fences the consumer of a queue or log: the producer, who holds a lock, sends
// its stamp in a header of each message, and the consumer compares it with the mark in the
// transaction in which it handles the message.
//
//	messagefence.SetStamp(message.Headers, stamps.Next())      // producer; then send
//
//	stamp, err := messagefence.StampOf(message.Headers)        // consumer
//	…
//	outcome, err := messagefence.Handle(ctx, store, message.Key, stamp, func(ctx context.Context) error {
//		return apply(boltfence.Tx(ctx), message)
//	})
//	if err != nil { return err }                                // not acknowledged: it comes again
//	if outcome == messagefence.Stale { deadLetter(message) }
//	acknowledge(message)
//
// The stamp is above all earlier ones of its hold, so a message that is delivered again (queues
// deliver at least once) is recognised, without a table of all messages: its stamp is not above the
// mark, but has the mark's token.
//
// What it cannot guarantee: AlreadyDone is the truth only where the messages of one name are
// delivered in the order of their stamps (a partition of Kafka, a FIFO group of SQS, a JetStream
// subject with one consumer at a time). Where they overtake each other, the overtaken one was never
// handled: keep a record of each message instead. So take the stamp where the order of sending is
// decided, and do not send from several goroutines. Messages of shared holders have no sequence:
// they are fenced against older holds, and each delivery is handled anew. What handling does beside
// the store's transaction is neither fenced nor done once. A message that was sent in time but is
// delivered after the next holder's is Stale and was not done: keep it for somebody to look at.
package messagefence

import (
	"context"
	"errors"
	"fmt"

	"github.com/pawl-lock/pawl/client/fence"
)

// Header is where the stamp is in a message's headers, as fence.Stamp.String writes it. It is lower
// case, which all kinds of queues allow.
const Header = "pawl-stamp"

// ErrUnstamped: the message has no stamp. Whether such ones are handled is the consumer's to say.
var ErrUnstamped = errors.New("messagefence: the message has no stamp")

// SetStamp puts the stamp into the headers, which must not be nil. Every message needs a stamp of
// its own.
func SetStamp[V ~string | ~[]byte](headers map[string]V, stamp fence.Stamp) {
	headers[Header] = V(stamp.String())
}

// StampOf gives the stamp of the headers; ErrUnstamped when there is none, or an error that matches
// fence.ErrInvalid. Anybody may have written them.
func StampOf[V ~string | ~[]byte](headers map[string]V) (fence.Stamp, error) {
	value, found := headers[Header]
	if !found {
		return fence.Stamp{}, ErrUnstamped
	}
	return fence.Parse(string(value))
}

// Outcome is what became of a message.
type Outcome int

// The outcomes; 0 comes with an error. All three may be acknowledged.
const (
	// Done: it was handled now.
	Done Outcome = iota + 1
	// AlreadyDone: this message, or a later one of the same hold, was handled before, and this is
	// another delivery of it.
	AlreadyDone
	// Stale: a newer holder's message was handled before. This one was not handled now; it may have
	// been before that.
	Stale
)

// String gives a word for logs.
func (o Outcome) String() string {
	switch o {
	case Done:
		return "done"
	case AlreadyDone:
		return "already done"
	case Stale:
		return "stale"
	}
	return "failed"
}

// Handle runs handle in the store's step if the message's stamp is allowed under this name: what
// its messages must be ordered by, such as their key. An error (handle's own, the store's, or one
// that matches fence.ErrInvalid, which no repetition will mend) says that the message must not be
// acknowledged: it was not done, or nobody knows, and its next delivery tells. It blocks as the
// store and handle do.
func Handle(ctx context.Context, store fence.Store, name string, stamp fence.Stamp, handle func(ctx context.Context) error) (Outcome, error) {
	err := store(ctx, name, stamp, func(ctx context.Context) error {
		// What handle returns must not be taken for the store's refusal: handle may write to
		// something that is fenced itself, and its refusal there is a failure here.
		if err := handle(fence.WithStamp(ctx, stamp)); err != nil {
			return &handleError{err}
		}
		return nil
	})
	var failed *handleError
	var stale *fence.StaleError
	switch {
	case err == nil:
		return Done, nil
	case errors.As(err, &failed):
		return 0, fmt.Errorf("handling the message with stamp %v: %w", stamp, failed.err)
	case errors.As(err, &stale) && !stamp.Shared && stale.SameHold():
		return AlreadyDone, nil
	case errors.As(err, &stale):
		return Stale, nil
	}
	return 0, fmt.Errorf("handling the message with stamp %v: %w", stamp, err)
}

type handleError struct{ err error }

func (e *handleError) Error() string { return e.err.Error() }
func (e *handleError) Unwrap() error { return e.err }
