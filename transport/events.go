package transport

// EventKind is what an event of GET /v1/events tells: its "event" field there.
type EventKind string

// The events. Those of a session and of the whole cluster name no lock.
const (
	EventGranted       EventKind = "granted"
	EventReleased      EventKind = "released"
	EventExpired       EventKind = "expired" // the hold ended with its session or its own maximum: Reason says which
	EventRevoked       EventKind = "revoked" // by an operator: Reason and By
	EventQueued        EventKind = "queued"
	EventCancelled     EventKind = "cancelled" // a wait ended without a grant
	EventDelayed       EventKind = "delayed"   // the lock is in its lock-delay
	EventConverted     EventKind = "converted"
	EventValue         EventKind = "value"
	EventSessionOpened EventKind = "session-opened"
	EventSessionEnded  EventKind = "session-ended"
	EventRaised        EventKind = "raised" // all holds and sessions ended (R10)
	// EventReset says that what was known from events is to be forgotten and read
	// anew: some before this place cannot be told. Reason is one of the next ones.
	EventReset EventKind = "reset"
)

// Reasons of a reset.
const (
	ResetTooOld   = "too_old"  // the events behind the reader's place are not kept any more
	ResetRestored = "restored" // the node took its state from a snapshot, and does not know them
	ResetAhead    = "ahead"    // the reader's place is one that this cluster has not come to
	ResetRaised   = "raised"   // all holds and sessions ended (R10)
)

// EventData is the "data" of one event. Fields that do not apply are absent.
type EventData struct {
	Index  uint64 `json:"index"` // of the log entry that it happened in; of a reset, of the state that is to be read
	Name   string `json:"name,omitempty"`
	Owner  string `json:"owner,omitempty"`
	Task   string `json:"task,omitempty"`
	Mode   string `json:"mode,omitempty"`
	Token  Token  `json:"token,omitempty"`
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
	Time   string `json:"time,omitempty"` // RFC 3339, of the leader's wall clock: for people to read
}

// Header and media type of GET /v1/events, as the standard for Server-Sent
// Events has them.
const (
	HeaderLastEventID = "Last-Event-ID"
	TypeEvents        = "text/event-stream"
)
