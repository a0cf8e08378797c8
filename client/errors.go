package client

import (
	"errors"

	"github.com/pawl-lock/pawl/transport"
)

// What can go wrong on this side of the wire. Errors of the server match the
// codes of package transport, as transport.ErrHeld; the common ones are repeated
// here.
var (
	// ErrNotAcquired is matched by every error of Acquire, TryAcquire and AcquireAll. What
	// else the error matches tells why: a code, ErrUnavailable, or the context's error.
	ErrNotAcquired = errors.New("not acquired")
	// ErrUnavailable: no node gave an answer that counts within the time there was.
	ErrUnavailable = errors.New("no node could serve the request")
	// ErrLost is matched by what ended a hold against the holder's will; see LostError.
	ErrLost = errors.New("the lock is lost")
	// ErrReleased is the cause of a lock's context that ended with Release.
	ErrReleased = errors.New("the lock was released")
	// ErrClosed: the Client was closed.
	ErrClosed = errors.New("the client is closed")
)

// WaitError is part of the error of an acquire whose deadline came while it waited, when the cluster could say in time who
// is in the way. It matches what ended the wait.
type WaitError struct {
	Holders []transport.Holder // at least one; of several names those of the first that are held
	ended   error
}

// Error implements error.
func (e *WaitError) Error() string {
	return e.ended.Error() + "; " + (&transport.Error{Holders: e.Holders}).Explain()
}

// Unwrap gives what ended the wait.
func (e *WaitError) Unwrap() error { return e.ended }

// Codes of the server that callers often ask for with errors.Is.
const (
	ErrHeld        = transport.ErrHeld
	ErrNotHeld     = transport.ErrNotHeld
	ErrSessionGone = transport.ErrSessionGone
	ErrInvalid     = transport.ErrInvalid
	ErrDelayed     = transport.ErrDelayed
	ErrStaleToken  = transport.ErrStaleToken
	// ErrDeadlock: waiting could not end; the *transport.Error has the Cycle.
	ErrDeadlock = transport.ErrDeadlock
	// ErrUnknownOutcome: it may have happened, and could not be asked again. Of an
	// acquire nothing is left behind then: what it may have been granted is given back.
	ErrUnknownOutcome = transport.ErrUnknownOutcome
)

// Reason is why a lock was lost, as an error itself: errors.Is(err,
// client.ReasonExpired) is how to ask.
type Reason string

// Error implements error.
func (r Reason) Error() string { return ErrLost.Error() + ": " + string(r) }

// The reasons of a LostError.
const (
	// ReasonExpired: the server says that the session is gone.
	ReasonExpired Reason = "expired"
	// ReasonUnreachable: no renewal was acknowledged before the deadline.
	ReasonUnreachable Reason = "unreachable"
	// ReasonRevoked: an operator took it; Detail says why and By who.
	ReasonRevoked Reason = "revoked"
	// ReasonClusterChanged: another cluster answers than the one that granted it, as
	// after the recovery of a lost majority.
	ReasonClusterChanged Reason = "cluster_changed"
	// ReasonMaxHold: the hold's own maximum was reached.
	ReasonMaxHold Reason = "max_hold"
	// ReasonConversion: the mode may have been changed without our learning the new
	// token, so the lock was given back.
	ReasonConversion Reason = "conversion"
)

// LostError says why a lock was lost. It matches ErrLost and its Reason.
type LostError struct {
	Reason Reason
	Detail string // what the operator said, when somebody took it
	By     string // who that was
}

// Error implements error.
func (e *LostError) Error() string {
	text := e.Reason.Error()
	if e.By != "" {
		text += " by " + e.By
	}
	if e.Detail != "" {
		text += ": " + e.Detail
	}
	return text
}

// Unwrap makes errors.Is true for ErrLost and for the Reason.
func (e *LostError) Unwrap() []error { return []error{ErrLost, e.Reason} }

// lostAsTold gives the error for what a renewal says is lost.
func lostAsTold(hold transport.LostHold) *LostError {
	if hold.By != "" {
		return &LostError{Reason: ReasonRevoked, Detail: hold.Reason, By: hold.By}
	}
	return &LostError{Reason: Reason(hold.Reason)} // the words are the same
}
