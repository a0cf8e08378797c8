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
	ErrNotAcquired = errors.New("pawl: not acquired")
	// ErrUnavailable: no node gave an answer that counts within the time there was.
	ErrUnavailable = errors.New("pawl: no node could serve the request")
	// ErrLost is matched by what ended a hold against the holder's will; see LostError.
	ErrLost = errors.New("pawl: the lock is lost")
	// ErrReleased is the cause of a lock's context that ended with Release.
	ErrReleased = errors.New("pawl: the lock was released")
	// ErrClosed: the Client was closed.
	ErrClosed = errors.New("pawl: the client is closed")
)

// Codes of the server that callers often ask for with errors.Is.
const (
	ErrHeld        = transport.ErrHeld
	ErrNotHeld     = transport.ErrNotHeld
	ErrSessionGone = transport.ErrSessionGone
	ErrInvalid     = transport.ErrInvalid
	ErrDeadlock    = transport.ErrDeadlock
	ErrDelayed     = transport.ErrDelayed
	ErrStaleToken  = transport.ErrStaleToken
)

// Reasons of a LostError. Any other is what an operator said who took the lock; By
// then says who that was.
const (
	// ReasonExpired: the server says that the session is gone.
	ReasonExpired = "expired"
	// ReasonUnreachable: no renewal was acknowledged before the deadline.
	ReasonUnreachable = "unreachable"
	// ReasonMaxHold: the hold's own maximum was reached.
	ReasonMaxHold = "max_hold"
	// ReasonConversion: the mode may have been changed without our learning the new
	// token, so the lock was given back.
	ReasonConversion = "conversion"
)

// LostError says why a lock was lost. It matches ErrLost.
type LostError struct {
	Reason string // one of the Reason… words, or an operator's
	By     string // who, when somebody took it
}

// Error implements error.
func (e *LostError) Error() string {
	if e.By == "" {
		return ErrLost.Error() + ": " + e.Reason
	}
	return ErrLost.Error() + ": " + e.Reason + " by " + e.By
}

// Unwrap makes errors.Is(e, ErrLost) true.
func (e *LostError) Unwrap() error { return ErrLost }
