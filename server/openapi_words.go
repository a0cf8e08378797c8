package server

import (
	"reflect"

	"github.com/pawl-lock/pawl/transport"
)

// operation is what the API's description says of one call and its route does not. A route without one, and one without
// a route, fail a test, as does an answer that is not described.
type operation struct {
	summary string
	detail  string
	answers []described
	errors  []transport.Code // beside those that calls of its kind can have, see commonErrors
	headers []string         // of the request

	bodiless bool // the body may be left out
}

// described is one good answer.
type described struct {
	status  int
	when    string
	message any    // of package transport; nil: text that is no message
	event   bool   // it is a stream of them
	content string // media type, JSON when ""
}

func ok(message any) []described { return []described{{status: 200, when: "Done.", message: message}} }

// queuedAnswer is the other form of an AcquireResponse.
type queuedAnswer struct {
	Granted bool                      `json:"granted"`
	Request uint64                    `json:"request"`
	Queue   []transport.QueuePosition `json:"queue"`
}

var acquired = []described{
	{status: 200, when: "Granted.", message: transport.AcquireResponse{}},
	{status: 202, when: "A numbered request that is still queued when wait_ms has passed. Repeat it to go on waiting.", message: queuedAnswer{}},
}

// operations are the calls by method and path.
var operations = map[string]operation{
	"POST /v1/acquire": {
		summary: "Acquire one lock or several at once",
		detail: "With a session the request is numbered and may be repeated, awaited and cancelled; without one a session is opened that ends with the hold, " +
			"and an Idempotency-Key makes the call repeatable. Names must be distinct; done must not be above request.",
		answers: acquired,
		errors: []transport.Code{transport.ErrHeld, transport.ErrDelayed, transport.ErrDeadlock, transport.ErrModeConflict, transport.ErrFinished,
			transport.ErrRequestMismatch, transport.ErrSessionGone, transport.ErrQuota, transport.ErrTokensExhausted},
		headers: []string{transport.HeaderIdempotencyKey, "Traceparent"},
	},
	"POST /v1/renew": {
		summary: "Renew a session",
		detail:  "What the session has lost is told again until the next renew shows that it arrived.",
		answers: ok(transport.RenewResponse{}), errors: []transport.Code{transport.ErrSessionGone},
	},
	"POST /v1/release": {
		summary: "Give back a grant, or one lock of it",
		detail:  "A grant with a request number is named by it, any other by its token.",
		answers: ok(transport.ReleaseResponse{}), errors: []transport.Code{transport.ErrNotHeld, transport.ErrSessionGone},
	},
	"POST /v1/cancel": {
		summary: "Take back an acquire, whatever became of it",
		detail:  "By session and number, or by the Idempotency-Key alone, with which the body may be left out.",
		answers: ok(transport.CancelResponse{}),
		errors:  []transport.Code{transport.ErrNotHeld, transport.ErrSessionGone, transport.ErrQuota}, headers: []string{transport.HeaderIdempotencyKey}, bodiless: true,
	},
	"POST /v1/convert": {
		summary: "Change the mode of a hold",
		detail:  "The conversion has a request number of its own, which must not be that of the hold.",
		answers: acquired,
		errors: []transport.Code{transport.ErrHeld, transport.ErrDeadlock, transport.ErrModeConflict, transport.ErrFinished, transport.ErrRequestMismatch,
			transport.ErrNotHeld, transport.ErrSessionGone, transport.ErrQuota, transport.ErrTokensExhausted},
	},
	"POST /v1/check": {
		summary: "Ask whether a token is that of a present holder",
		answers: ok(transport.CheckResponse{}), errors: []transport.Code{transport.ErrStaleToken},
	},
	"POST /v1/value": {
		summary: "Change the value kept with a hold",
		answers: ok(transport.ValueResponse{}), errors: []transport.Code{transport.ErrNotHeld, transport.ErrSessionGone},
	},
	"POST /v1/force-release": {
		summary: "End a hold that is somebody else's",
		answers: ok(transport.ForceReleaseResponse{}), errors: []transport.Code{transport.ErrNotHeld},
	},
	"POST /v1/session": {
		summary: "Open a session",
		answers: []described{{status: 201, when: "Opened.", message: transport.SessionResponse{}}}, errors: []transport.Code{transport.ErrQuota},
	},
	"POST /v1/session/close": {
		summary: "Close a session; all its holds and waits end",
		answers: ok(transport.SessionCloseResponse{}), errors: []transport.Code{transport.ErrSessionGone},
	},
	"POST /v1/raise": {
		summary: "Make every later token larger; all holds and sessions end",
		answers: ok(transport.RaiseResponse{}), errors: []transport.Code{transport.ErrTokensExhausted},
	},
	"GET /v1/lock": {
		summary: "Look at one lock: who holds it, who waits, who held it before",
		detail:  "A free lock has empty lists.", answers: ok(transport.LockResponse{}),
	},
	"GET /v1/locks":    {summary: "List the locks that are held or waited for", answers: ok(transport.LocksResponse{})},
	"GET /v1/sessions": {summary: "List the sessions", answers: ok(transport.SessionsResponse{})},
	"GET /v1/cluster":  {summary: "Show the members and who leads", answers: ok(transport.ClusterResponse{})},
	"POST /v1/cluster/transfer": {
		summary: "Hand leadership over; answered when the new leader is ready",
		answers: ok(transport.TransferResponse{}), errors: []transport.Code{transport.ErrMembership},
	},
	"POST /v1/cluster/remove": {
		summary: "Remove a member",
		answers: ok(transport.MembershipResponse{}), errors: []transport.Code{transport.ErrMembership},
	},
	"GET /v1/events": {
		summary: "Follow what happens, as Server-Sent Events",
		detail: "Answered by the node that is asked, from its own applied state: what a follower tells comes a moment later and is never taken back. " +
			"The id of an event is index.seq, its place in the log, and means the same on every node. A reader that names a place is told all that is behind it, " +
			"or a reset when that is not known any more: then read the state, and leave out the events whose index is not above Pawl-Index of that read. " +
			"A block with an id and no data only moves the reader's place. A comment comes every 15 s. A reader that is too slow is cut off.",
		answers: []described{{status: 200, when: "The stream; x-events are the events there are, x-itemSchema describes the data of each.", message: transport.EventData{}, event: true, content: transport.TypeEvents}},
		errors:  []transport.Code{transport.ErrRateLimited, transport.ErrShuttingDown}, headers: []string{transport.HeaderLastEventID},
	},
	"GET /livez": {summary: "Tell whether the process works", answers: ok(transport.HealthResponse{})},
	"GET /readyz": {
		summary: "Tell whether a client that is sent here can have a lock",
		answers: append(ok(transport.HealthResponse{}), described{status: 503, when: "Not now: reason says why.", message: transport.HealthResponse{}}),
	},
	"GET /openapi.json": {summary: "This description", answers: ok(document{})},
	"GET /metrics": {
		summary: "Figures of this node, for Prometheus",
		detail:  "No label has a name, owner, session or token.",
		answers: []described{{status: 200, when: "In the text format.", content: "text/plain"}},
	},
}

// document stands for an answer that is any object.
type document struct{}

// commonErrors are what every call of a kind can be answered.
func commonErrors(r route) []transport.Code {
	codes := []transport.Code{transport.ErrInvalid, transport.ErrForbidden, transport.ErrInternal}
	if r.request != nil {
		codes = append(codes, transport.ErrTooLarge, transport.ErrUnsupportedMedia)
	}
	if !r.here {
		codes = append(codes, transport.ErrNoLeader, transport.ErrOverloaded, transport.ErrShuttingDown)
		if r.request != nil && !r.reads {
			codes = append(codes, transport.ErrUnknownOutcome)
		}
	}
	return codes
}

// enumerations are the words that fields of these names can have.
var enumerations = map[string][]string{
	"mode":  {transport.ModeExclusive, transport.ModeShared},
	"role":  {transport.RoleVoter, transport.RoleNonvoter},
	"state": {transport.StateCancelled, transport.StateReleased, transport.StateFinished},
	"ended": {transport.EndedReleased, transport.EndedExpired, transport.EndedMaxHold, transport.EndedRevoked},
}

// rules are what holds between the fields of a message, by its name.
func rules() map[string]object {
	none := func(fields ...string) object {
		var any []object
		for _, f := range fields {
			any = append(any, object{"required": []string{f}})
		}
		return object{"not": object{"anyOf": any}}
	}
	with := func(fields ...string) object { return object{"required": fields} }
	sharedLimit := object{"limit": object{"properties": object{"mode": object{"const": transport.ModeShared}}, "required": []string{"mode"}}}
	sessionless := none("request", "task")
	sessionless["required"] = []string{"owner"}
	sessionless["properties"] = object{"done": object{"const": 0}}
	inSession := none("owner", "ttl_ms")
	inSession["required"] = []string{"request"}
	return map[string]object{
		reflect.TypeFor[transport.LockRequest]().Name():    {"dependentSchemas": sharedLimit},
		reflect.TypeFor[transport.ConvertRequest]().Name(): {"dependentSchemas": sharedLimit},
		reflect.TypeFor[transport.AcquireRequest]().Name(): {
			"dependentSchemas": sharedLimit,
			"oneOf":            []object{{"allOf": []object{with("name"), none("locks")}}, {"allOf": []object{with("locks"), none("name", "mode", "limit")}}},
			"if":               with("session"), "then": inSession, "else": sessionless,
		},
		reflect.TypeFor[transport.ReleaseRequest]().Name(): {"anyOf": []object{with("token"), with("request")}},
		reflect.TypeFor[transport.CancelRequest]().Name():  {"dependentRequired": object{"session": []string{"request"}, "request": []string{"session"}}},
		// A grant has all of these; the other form of the answer is described for 202.
		reflect.TypeFor[transport.AcquireResponse]().Name(): {
			"required": []string{"granted", "session", "locks", "ttl_ms", "lease_ms", "owner", "replayed"},
		},
	}
}

// fieldWords say what a field is; one name means one thing in all messages.
var fieldWords = map[string]string{
	"above":              "Every later token is larger.",
	"address":            "Where the other nodes reach it: host:port.",
	"alive":              "Whether it answered when it was asked for this.",
	"api_url":            "Where clients reach its API.",
	"applied":            "Whether the request may have taken effect.",
	"by":                 "Who did it.",
	"code":               "What went wrong, as a word that never changes.",
	"cycle":              "The tasks that wait for each other; after the last comes the first.",
	"delay_remaining_ms": "How long the lock is still kept free after an unclean end.",
	"detail":             "For people.",
	"done":               "All request numbers below it are finished.",
	"ended":              "How the hold ended.",
	"failures_tolerated": "How many more voters may fail.",
	"feature_level":      "What all members support.",
	"field":              "The field that is wrong, as a path.",
	"force":              "Also when fewer voters than a quorum would answer.",
	"granted":            "Whether the locks are held now.",
	"held_by":            "The owner of who is in the way.",
	"held_ms":            "For how long it is or was held.",
	"history":            "The last holds that ended, newest first, as the node that answers saw them.",
	"hold_ms":            "How long the hold lasts at most, counted from when this call was sent.",
	"holders":            "Who holds it, some of them when there are many.",
	"holds":              "How many holds it has.",
	"id":                 "Of the cluster, of a session (shortened), or of an error in the node's log.",
	"incarnation":        "Which data directory of that name it is.",
	"index":              "An index of the log.",
	"labels":             "For people to find a session by.",
	"lag":                "How many log entries it is behind.",
	"last_contact_ms":    "How long ago it last answered this node.",
	"leader":             "The name of the node that leads, empty when there is none.",
	"lease_ms":           "How long the lease lasts, counted from when this call was sent.",
	"limit":              "How many may hold the lock together; shared only.",
	"lock_delay_ms":      "How long the lock is kept free after an unclean end.",
	"locks":              "Several locks.",
	"lost":               "Holds that ended other than by the session's own doing.",
	"max_hold_ms":        "The hold ends then, whatever the renewals; 0 is never.",
	"members":            "The nodes of the cluster.",
	"mode":               "Exclusive, or shared; shared with a limit is a semaphore.",
	"name":               "Of a lock, or of a node.",
	"newest":             "The token of the present holders.",
	"next":               "What to send as after for the next page; absent on the last.",
	"next_token_above":   "The next token will be above it.",
	"of":                 "The request number of the hold.",
	"ok":                 "Whether all is well.",
	"owner":              "Who, as people shall read it.",
	"position":           "How many stand before it, and itself.",
	"priority":           "Higher ones stand before lower ones in the queue.",
	"queue":              "Who waits, in order.",
	"queue_length":       "How many wait.",
	"quorum":             "How many voters must agree.",
	"reason":             "Why.",
	"released":           "What was released: names, or how many.",
	"remaining_ms":       "How long until it ends unless it is renewed.",
	"replayed":           "Whether an earlier call was granted this.",
	"request":            "The number that the client gave the request.",
	"requested_limit":    "The limit that was asked for.",
	"retry_after_ms":     "When it is worth trying again.",
	"role":               "Whether it votes.",
	"session":            "The id of a session; shortened where others can see it.",
	"sessions":           "The sessions.",
	"state":              "What became of the request.",
	"status":             "The HTTP status.",
	"task":               "The unit of work that waits and holds in sequence; deadlocks are looked for among tasks.",
	"term":               "Raft's term.",
	"time":               "RFC 3339, of the leader's wall clock: for people to read.",
	"title":              "The code in words.",
	"to":                 "The name of the member; any if absent.",
	"token":              "The fencing token.",
	"trace":              "The traceparent that the acquire came with.",
	"ttl_ms":             "How long the session outlives its last renewal.",
	"type":               "The code as a URN.",
	"valid":              "Whether the token is that of a present holder.",
	"value":              "What the holder keeps with the hold.",
	"version":            "Of the program.",
	"wait_ms":            "How long this call may wait; 0 only tries.",
	"waited_ms":          "For how long it has waited.",
	"waits":              "How many requests of its wait.",
	"waits_for":          "The locks that it cannot have yet.",
}

// queryWords describe the parameters of queries: by path and name where a name means different things.
var queryWords = map[string]object{
	"consistency":        {"type": "string", "enum": []string{"linearizable", "stale"}, "default": "linearizable", "description": "stale reads what the node that is asked has applied."},
	"name":               {"type": "string", "minLength": 1, "maxLength": transport.MaxName, "x-maxBytes": transport.MaxName, "pattern": withoutControls, "description": "Of the lock."},
	"prefix":             {"type": "string", "maxLength": transport.MaxName, "x-maxBytes": transport.MaxName, "pattern": withoutControls, "description": "Only names that begin like this."},
	"after":              {"type": "string", "maxLength": transport.MaxName, "x-maxBytes": transport.MaxName, "pattern": withoutControls, "description": "What the page before gave as next."},
	"/v1/sessions?after": {"type": "string", "pattern": `^(0|[1-9][0-9]{0,19})?$`, "description": "What the page before gave as next."},
	"/v1/events?after":   {"type": "string", "pattern": eventID, "description": "The id of an event: what comes after it. Last-Event-ID counts more."},
	"limit":              {"type": "integer", "minimum": 1, "maximum": maxPage, "default": defaultPage, "description": "How many rows at most."},
	"held":               {"type": "boolean", "default": false, "description": "Only locks that are held."},
	"waiting":            {"type": "boolean", "default": false, "description": "Only locks that are waited for."},
	"sort":               {"type": "string", "enum": []string{transport.SortName, transport.SortHeld, transport.SortQueue}, "default": transport.SortName, "description": "By name, or the first of those held longest or waited for most."},
	"owner":              {"type": "string", "maxLength": transport.MaxOwner, "x-maxBytes": transport.MaxOwner, "pattern": withoutControls, "description": "Only of this owner."},
}

// eventID is how a place in the sequence of events is written.
const eventID = `^((0|[1-9][0-9]{0,19})\.(0|[1-9][0-9]{0,9}))?$`

// headerWords describe headers of requests.
var headerWords = map[string]object{
	transport.HeaderIdempotencyKey: {"type": "string", "minLength": 1, "maxLength": transport.MaxKey, "pattern": `^[!-~]+$`,
		"description": "Makes an acquire without a session, and its cancel, repeatable."},
	"Traceparent":               {"type": "string", "description": "W3C Trace Context; kept with the hold. One that is not well-formed is left out."},
	transport.HeaderLastEventID: {"type": "string", "pattern": eventID, "description": "The id of the last event that the reader has."},
}
