package fsm

// Code says what became of a command. The numbers are part of the replicated answers and never change; the server has
// one table that turns them into the words of the wire.
type Code uint8

// The codes.
const (
	OK           Code = 1
	Queued       Code = 2  // an acquire that waits
	Held         Code = 3  // a try that was not granted, or a wait that ended without a grant
	Finished     Code = 4  // this number or key was finished or cancelled before
	Mismatch     Code = 5  // this number or key was used with another body
	SessionGone  Code = 6  // expired, closed, or never was
	NotHeld      Code = 7  // the session holds no such grant
	ModeConflict Code = 8  // the lock is in use with another limit
	OverQuota    Code = 9  // Quota says which
	Exhausted    Code = 10 // tokens reached MaxToken
	OwnSession   Code = 11 // a numbered request in a session that belongs to one grant
	Cancelled    Code = 12 // a cancel that ended a wait, or finished a number before its acquire came
	Released     Code = 13 // a cancel that gave a grant back
	Skipped      Code = 14 // a command of a newer version that may be skipped
	Deadlock     Code = 15 // waiting would close a cycle, which Cycle shows
	Delayed      Code = 16 // free, but in its lock-delay; Retry says for how long
	SameMode     Code = 17 // a conversion to the mode that the hold has
	Unjudged     Code = 18 // a try that its entry had no time to judge: nothing came of it, and it can be proposed anew
)

// Quota names the limit that was reached.
type Quota string

// The quotas.
const (
	QuotaSessions   Quota = "sessions"
	QuotaTombstones Quota = "idempotency keys"
	QuotaRequests   Quota = "requests of this session"
	QuotaWaiters    Quota = "waiters of this lock"
	QuotaMultiple   Quota = "requests for several locks that wait for this lock"
	QuotaGaps       Quota = "gaps in the finished request numbers of this session: send done"
)

// Result is what applying one entry gave.
type Result struct {
	Index    uint64
	Term     uint64
	Applied  bool   // false: stamped under another term's beginning; nothing happened (R3)
	Clock    uint64 // the lease clock afterwards, ms
	Wall     uint64 // unix ms at the leader, for people to read
	Outcomes []Outcome
	Events   []Event
	Notices  []Notice
}

// Outcome is what became of one command. Which fields are set depends on the command and the code.
type Outcome struct {
	Code     Code
	Session  uint64    // number of the session concerned
	Request  Seq       // of an acquire that is queued or granted
	Grant    *Grant    // OK of an acquire, or of a cancel that only ends waits
	Replayed bool      // the grant or the place in the queue is of an earlier command
	TTL      uint64    // ms, of the session: open, renew
	Lease    uint64    // ms from this entry to the session's deadline: renew
	Count    int       // holds: renew, close, force
	More     bool      // force: some are left
	Names    []string  // released
	Holders  []Holder  // Held: who, at most MaxHolders
	Waiting  int       // Held: how many wait
	Quota    Quota     // OverQuota
	Limit    uint32    // ModeConflict: the limit in use
	Name     string    // ModeConflict, OverQuota: the lock concerned
	Base     uint64    // raise: every later token is above
	Renewals []Outcome // renew: one for each session, in order
	Lost     []Lost    // renew: holds that the session lost other than by its own doing
	Cycle    []Step    // Deadlock
	Retry    uint64    // Delayed: ms
}

// MaxHolders bounds the holders listed in a refusal.
const MaxHolders = 8

// Seq is a request's place in the log: the index of the entry that brought it and its position therein. It is unique and
// orders the queue.
type Seq struct {
	Index uint64
	Pos   uint32
}

// Less orders by the log.
func (a Seq) Less(b Seq) bool { return a.Index < b.Index || (a.Index == b.Index && a.Pos < b.Pos) }

// Grant is what a session was given by one acquire.
type Grant struct {
	Session  uint64
	ID       ID
	Owner    string
	Number   uint64
	TTL      uint64 // ms
	Deadline uint64 // lease clock: when the session ends unless renewed
	HoldEnds uint64 // lease clock: when the hold ends whatever happens; 0 when it has no maximum
	Locks    []Granted
}

// Granted is one lock of a grant.
type Granted struct {
	Want
	Token uint64
}

// Lost is a hold that a session lost other than by its own doing: Reason is "max_hold" or what an operator said, who is By.
type Lost struct {
	Number uint64 // of the request, 0 in a session of its own
	Name   string
	Token  uint64
	Reason string
	By     string
}

// Step is one task of a deadlock: it waits for a lock that the next one is in the way of.
type Step struct {
	Task     string
	Owner    string
	WaitsFor string
	HeldBy   string // owner of who is in the way
}

// Event tells what happened to a request, apart from the answer to the command that brought it.
type Event struct {
	Kind    EventKind
	Request Seq
	Grant   *Grant // EventGranted
	Code    Code   // EventEnded: SessionGone, Held or Cancelled
	Waited  uint64 // EventGranted: ms since it was asked for
}

// EventKind says what an event tells.
type EventKind uint8

// The events.
const (
	EventGranted EventKind = 1 // a request was granted
	EventEnded   EventKind = 2 // a request ended while it waited
	EventReset   EventKind = 3 // all holds and sessions ended (R10), or the state was replaced by a snapshot
)
