package transport

// Holder is a hold as others see it: in refusals and in reads.
type Holder struct {
	Owner       string `json:"owner"`
	Task        string `json:"task,omitempty"`
	Mode        string `json:"mode"`
	Token       Token  `json:"token"`
	HeldMS      int64  `json:"held_ms"`
	RemainingMS int64  `json:"remaining_ms"` // 0 to the session's TTL
	Value       string `json:"value,omitempty"`
	Trace       string `json:"trace,omitempty"`
	Session     string `json:"session,omitempty"` // shortened: it must not be enough to release
}

// Waiter is a queued request as others see it.
type Waiter struct {
	Owner    string       `json:"owner"`
	Task     string       `json:"task,omitempty"`
	Mode     string       `json:"mode"`
	Priority int64        `json:"priority"`
	WaitedMS int64        `json:"waited_ms"`
	Position int64        `json:"position"`
	WaitsFor List[string] `json:"waits_for"`         // names of the locks that it cannot have yet
	Session  string       `json:"session,omitempty"` // shortened
}

// Step is one task of a deadlock: it waits for a lock that the next one is in the
// way of; after the last comes the first.
type Step struct {
	Task     string `json:"task"`
	Owner    string `json:"owner"`
	WaitsFor string `json:"waits_for"`
	HeldBy   string `json:"held_by"` // owner of who is in the way
}

// HistoryEntry is a hold that has ended.
type HistoryEntry struct {
	Owner  string `json:"owner"`
	Token  Token  `json:"token"`
	HeldMS int64  `json:"held_ms"`
	Ended  string `json:"ended"`            // one of the Ended… words
	Reason string `json:"reason,omitempty"` // that an operator gave
	By     string `json:"by,omitempty"`     // the operator
}

// How a hold ended.
const (
	EndedReleased = "released" // by its holder, or with its session's close
	EndedExpired  = "expired"  // its session was not renewed in time
	EndedMaxHold  = "max_hold" // its own maximum was reached
	EndedRevoked  = "revoked"  // by an operator
)

// LockResponse answers GET /v1/lock. A free lock has empty lists.
type LockResponse struct {
	Name             string             `json:"name"`
	Mode             string             `json:"mode,omitempty"`
	Limit            int64              `json:"limit,omitempty"`
	Holders          List[Holder]       `json:"holders"`
	Queue            List[Waiter]       `json:"queue"`
	DelayRemainingMS int64              `json:"delay_remaining_ms"`
	History          List[HistoryEntry] `json:"history"`
}

// LockSummary is one line of LocksResponse.
type LockSummary struct {
	Name        string       `json:"name"`
	Mode        string       `json:"mode,omitempty"`
	Holders     List[Holder] `json:"holders"`
	QueueLength int64        `json:"queue_length"`
	HeldMS      int64        `json:"held_ms"`
}

// Orders of GET /v1/locks.
const (
	SortName  = "name"  // byte order
	SortHeld  = "held"  // held longest first
	SortQueue = "queue" // most waiters first
)

// LocksResponse answers GET /v1/locks. Next is the value of "after" for the
// next page, absent on the last.
type LocksResponse struct {
	Locks List[LockSummary] `json:"locks"`
	Next  string            `json:"next,omitempty"`
}

// SessionSummary is one line of SessionsResponse; ID is shortened.
type SessionSummary struct {
	ID          string            `json:"id"`
	Owner       string            `json:"owner"`
	Labels      map[string]string `json:"labels,omitempty"`
	TTLMS       int64             `json:"ttl_ms"`
	RemainingMS int64             `json:"remaining_ms"`
	Holds       int64             `json:"holds"`
	Waits       int64             `json:"waits"`
}

// SessionsResponse answers GET /v1/sessions.
type SessionsResponse struct {
	Sessions List[SessionSummary] `json:"sessions"`
	Next     string               `json:"next,omitempty"`
}

// HealthResponse answers GET /livez and /readyz; Reason says why it is not OK.
type HealthResponse struct {
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
}
