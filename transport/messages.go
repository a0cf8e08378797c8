package transport

import "encoding/json"

// Modes of a lock.
const (
	ModeExclusive = "exclusive"
	ModeShared    = "shared"
)

// List is a slice that is written as [] when it is nil, never as null.
type List[T any] []T

// MarshalJSON implements json.Marshaler.
func (l List[T]) MarshalJSON() ([]byte, error) {
	if l == nil {
		return []byte("[]"), nil
	}
	return json.Marshal([]T(l))
}

// LockRequest is one lock of an AcquireRequest for several.
type LockRequest struct {
	Name  string `json:"name"`
	Mode  string `json:"mode,omitempty"`
	Limit int64  `json:"limit,omitempty"`
}

// AcquireRequest is the body of POST /v1/acquire. Exactly one of Name (with
// Mode and Limit) and Locks is given. Session and Request belong to clients
// with a session; Owner and TTLMS to those without.
type AcquireRequest struct {
	Name    string        `json:"name,omitempty"`
	Locks   []LockRequest `json:"locks,omitempty"`
	Mode    string        `json:"mode,omitempty"`
	Limit   int64         `json:"limit,omitempty"`
	Session string        `json:"session,omitempty"`
	Request uint64        `json:"request,omitempty"`
	Done    uint64        `json:"done,omitempty"`
	Task    string        `json:"task,omitempty"`
	TTLMS   int64         `json:"ttl_ms,omitempty"`
	Owner   string        `json:"owner,omitempty"`
	WaitMS  int64         `json:"wait_ms,omitempty"`

	Priority    int64  `json:"priority,omitempty"`      // higher ones stand before lower ones in the queue
	MaxHoldMS   int64  `json:"max_hold_ms,omitempty"`   // the hold ends then, whatever the renewals; 0 is never
	LockDelayMS int64  `json:"lock_delay_ms,omitempty"` // how long the locks stay free after an unclean end
	Value       string `json:"value,omitempty"`         // kept with the hold for others to read
}

// GrantedLock is one lock of a grant, with its own token.
type GrantedLock struct {
	Name  string `json:"name"`
	Mode  string `json:"mode"`
	Limit int64  `json:"limit,omitempty"`
	Token Token  `json:"token"`
}

// QueuePosition says how many stand before a waiting request at one lock: the
// next in line has position 1.
type QueuePosition struct {
	Name     string `json:"name"`
	Position int64  `json:"position"`
}

// AcquireResponse answers an acquire: 200 when Granted; otherwise 202, and only
// Request and Queue are set.
type AcquireResponse struct {
	Granted bool          `json:"granted"`
	Session string        `json:"session,omitempty"`
	Token   Token         `json:"token,omitempty"` // of a single lock; several have theirs in Locks
	Locks   []GrantedLock `json:"locks,omitempty"`
	TTLMS   int64         `json:"ttl_ms,omitempty"`
	// LeaseMS is how long the lease lasts counted from the moment this very
	// call was sent (R9, "lease as the client sees it").
	LeaseMS int64 `json:"lease_ms"`
	// HoldMS is the same for the maximum hold, which renewals do not extend, and
	// nil without one.
	HoldMS   *int64          `json:"hold_ms,omitempty"`
	Owner    string          `json:"owner,omitempty"`
	Request  uint64          `json:"request,omitempty"`
	Replayed bool            `json:"replayed"`
	Queue    []QueuePosition `json:"queue,omitempty"`
}

// MarshalJSON writes one of the two forms, so that a request still queued shows
// no lease at all rather than one of 0 ms.
func (r AcquireResponse) MarshalJSON() ([]byte, error) {
	if !r.Granted {
		return json.Marshal(struct {
			Granted bool                `json:"granted"`
			Request uint64              `json:"request,omitempty"`
			Queue   List[QueuePosition] `json:"queue"`
		}{false, r.Request, r.Queue})
	}
	type granted AcquireResponse
	return json.Marshal(granted(r))
}

// ConvertRequest is the body of POST /v1/convert: it changes the mode of the lock
// Name that the request numbered Of was granted with Token. It has a number of its
// own, by which it is repeated, awaited and cancelled. The answer is an
// AcquireResponse with that number and the lock's new token.
type ConvertRequest struct {
	Session string `json:"session"`
	Request uint64 `json:"request"`
	Of      uint64 `json:"of"`
	Token   Token  `json:"token"`
	Name    string `json:"name"`
	Mode    string `json:"mode"`
	Limit   int64  `json:"limit,omitempty"`
	WaitMS  int64  `json:"wait_ms,omitempty"`
}

// CheckRequest is the body of POST /v1/check: is Token that of a present holder?
type CheckRequest struct {
	Name  string `json:"name"`
	Token Token  `json:"token"`
}

// CheckResponse says that it is, and whose; otherwise the answer is
// ErrStaleToken. Of several holders that share the token it tells one.
type CheckResponse struct {
	Valid       bool   `json:"valid"`
	Owner       string `json:"owner"`
	Mode        string `json:"mode"`
	RemainingMS int64  `json:"remaining_ms"`
}

// ValueRequest is the body of POST /v1/value: the holder changes what is kept with
// its hold. Value may be empty, but must be there.
type ValueRequest struct {
	Session string  `json:"session"`
	Request uint64  `json:"request,omitempty"`
	Token   Token   `json:"token"`
	Name    string  `json:"name"`
	Value   *string `json:"value"`
}

// ValueResponse answers it.
type ValueResponse struct{}

// ForceReleaseRequest is the body of POST /v1/force-release: an operator ends the
// holds of Name that have Token. Afterwards nobody is granted the lock for
// LockDelayMS, or for what its holder had asked for if that is longer.
type ForceReleaseRequest struct {
	Name        string `json:"name"`
	Token       Token  `json:"token"`
	Reason      string `json:"reason"`
	LockDelayMS int64  `json:"lock_delay_ms,omitempty"`
}

// ForceReleaseResponse counts the holds that were ended.
type ForceReleaseResponse struct {
	Released int64 `json:"released"`
}

// RenewRequest is the body of POST /v1/renew; TTLMS changes the session's TTL.
type RenewRequest struct {
	Session string `json:"session"`
	Done    uint64 `json:"done,omitempty"`
	TTLMS   int64  `json:"ttl_ms,omitempty"`
}

// LostHold is a hold that the session lost other than by its own doing.
type LostHold struct {
	Name   string `json:"name"`
	Token  Token  `json:"token"`
	Reason string `json:"reason"`
	By     string `json:"by,omitempty"`
}

// RenewResponse answers a renew. LeaseMS counts from when the renew was sent.
// Lost is repeated until the next renew shows that it arrived.
type RenewResponse struct {
	Session string         `json:"session"`
	TTLMS   int64          `json:"ttl_ms"`
	LeaseMS int64          `json:"lease_ms"`
	Holds   int64          `json:"holds"`
	Lost    List[LostHold] `json:"lost"`
}

// ReleaseRequest is the body of POST /v1/release. A numbered grant is named by
// Request, any other by Token; Name restricts it to one lock of the grant.
type ReleaseRequest struct {
	Session string `json:"session"`
	Request uint64 `json:"request,omitempty"`
	Token   Token  `json:"token,omitempty"`
	Name    string `json:"name,omitempty"`
}

// ReleaseResponse names the locks that were released.
type ReleaseResponse struct {
	Released List[string] `json:"released"`
}

// CancelRequest is the body of POST /v1/cancel; it is empty when the request is
// named by its Idempotency-Key.
type CancelRequest struct {
	Session string `json:"session,omitempty"`
	Request uint64 `json:"request,omitempty"`
}

// States of a cancelled request.
const (
	StateCancelled = "cancelled" // the wait is gone
	StateReleased  = "released"  // it had been granted, and was given back
	StateFinished  = "finished"  // it was over already
)

// CancelResponse says what a cancel found.
type CancelResponse struct {
	State string `json:"state"`
}

// SessionRequest is the body of POST /v1/session.
// Labels are for people to find the session by.
type SessionRequest struct {
	Owner  string            `json:"owner"`
	TTLMS  int64             `json:"ttl_ms,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

// SessionResponse answers it with 201. The lease lasts TTLMS, counted from when
// the request was sent.
type SessionResponse struct {
	Session string `json:"session"`
	TTLMS   int64  `json:"ttl_ms"`
}

// SessionCloseRequest is the body of POST /v1/session/close.
type SessionCloseRequest struct {
	Session string `json:"session"`
}

// SessionCloseResponse counts the holds that ended with the session.
type SessionCloseResponse struct {
	Released int64 `json:"released"`
}
