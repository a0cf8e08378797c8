package transport

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Code is what went wrong, as a word that never changes. It is an error itself,
// so errors.Is(err, transport.ErrHeld) is how to ask, on either side of the wire.
type Code string

// Error implements error.
func (c Code) Error() string { return string(c) }

// The codes of api.md. The state machine refused, and nothing was changed:
const (
	ErrHeld            Code = "held"             // held or queued for by others, and not waiting
	ErrDelayed         Code = "delayed"          // free, but in its lock-delay
	ErrDeadlock        Code = "deadlock"         // waiting would close a cycle
	ErrModeConflict    Code = "mode_conflict"    // in use with another limit
	ErrFinished        Code = "finished"         // this number or key was finished or cancelled
	ErrRequestMismatch Code = "request_mismatch" // this number or key was used with another body
	ErrNotHeld         Code = "not_held"         // the session holds no such token
	ErrSessionGone     Code = "session_gone"     // expired, closed, or never was
	ErrStaleToken      Code = "stale_token"      // not the token of a current holder
	ErrQuota           Code = "quota"            // a limit of the state machine
	ErrTokensExhausted Code = "tokens_exhausted" // 2^53 reached
	ErrMembership      Code = "membership"       // the change of members is not possible now
)

// The node refused before the state machine saw the request:
const (
	ErrInvalid          Code = "invalid" // a field is missing, unknown, wrong or out of range
	ErrUnauthenticated  Code = "unauthenticated"
	ErrForbidden        Code = "forbidden"
	ErrNotFound         Code = "not_found" // no such path
	ErrMethodNotAllowed Code = "method_not_allowed"
	ErrTooLarge         Code = "too_large"
	ErrUnsupportedMedia Code = "unsupported_media"
	ErrRateLimited      Code = "rate_limited"  // a limit of this node
	ErrNoLeader         Code = "no_leader"     // safe to repeat anywhere
	ErrOverloaded       Code = "overloaded"    // safe to repeat anywhere
	ErrShuttingDown     Code = "shutting_down" // safe to repeat anywhere
)

// Nobody can say whether it happened (R14):
const (
	ErrInternal       Code = "internal"        // a bug; the log has it under the given id
	ErrUnknownOutcome Code = "unknown_outcome" // repeat with the same number or key
)

// Applied says whether a refused request may have taken effect.
type Applied string

// The two answers to that.
const (
	AppliedNo      Applied = "no"
	AppliedUnknown Applied = "unknown"
)

// Description is one row of the error table.
type Description struct {
	Status       int // HTTP
	Applied      Applied
	Level        slog.Level // at which the node logs it
	Title        string
	RetryAfterMS int64 // advice when the error carries none of its own; 0 = none
}

// table is the one error table: nothing else maps codes.
var table = map[Code]Description{
	ErrInvalid:          {400, AppliedNo, slog.LevelInfo, "The request is not valid", 0},
	ErrUnauthenticated:  {401, AppliedNo, slog.LevelWarn, "No valid credential", 0},
	ErrForbidden:        {403, AppliedNo, slog.LevelWarn, "Not allowed", 0},
	ErrNotFound:         {404, AppliedNo, slog.LevelInfo, "No such path", 0},
	ErrMethodNotAllowed: {405, AppliedNo, slog.LevelInfo, "Wrong method for this path", 0},
	ErrHeld:             {409, AppliedNo, slog.LevelDebug, "Held by others", 0},
	ErrDelayed:          {409, AppliedNo, slog.LevelDebug, "In its lock-delay", 0},
	ErrDeadlock:         {409, AppliedNo, slog.LevelInfo, "Waiting would be a deadlock", 0},
	ErrModeConflict:     {409, AppliedNo, slog.LevelInfo, "In use with another limit", 0},
	ErrFinished:         {409, AppliedNo, slog.LevelDebug, "This request is finished", 0},
	ErrRequestMismatch:  {409, AppliedNo, slog.LevelWarn, "Same request, another body", 0},
	ErrMembership:       {409, AppliedNo, slog.LevelWarn, "Membership cannot change like this now", 0},
	ErrNotHeld:          {410, AppliedNo, slog.LevelInfo, "Not held", 0},
	ErrSessionGone:      {410, AppliedNo, slog.LevelInfo, "The session is gone", 0},
	ErrStaleToken:       {412, AppliedNo, slog.LevelInfo, "Stale token", 0},
	ErrTooLarge:         {413, AppliedNo, slog.LevelInfo, "Too large", 0},
	ErrUnsupportedMedia: {415, AppliedNo, slog.LevelInfo, "Unsupported media type", 0},
	ErrQuota:            {429, AppliedNo, slog.LevelWarn, "A quota is used up", 1000},
	ErrRateLimited:      {429, AppliedNo, slog.LevelInfo, "Too many requests", 1000},
	ErrInternal:         {500, AppliedUnknown, slog.LevelError, "Internal error", 0},
	ErrNoLeader:         {503, AppliedNo, slog.LevelWarn, "No leader", 500},
	ErrOverloaded:       {503, AppliedNo, slog.LevelWarn, "Overloaded", 1000},
	ErrShuttingDown:     {503, AppliedNo, slog.LevelInfo, "Shutting down", 500},
	ErrUnknownOutcome:   {504, AppliedUnknown, slog.LevelWarn, "The outcome is unknown", 0},
	ErrTokensExhausted:  {507, AppliedNo, slog.LevelError, "Tokens are exhausted", 0},
}

// Describe gives the code's row of the table; ok is false for a code that this
// version does not know.
func (c Code) Describe() (row Description, ok bool) {
	row, ok = table[c]
	return row, ok
}

// Error is a refusal as RFC 9457 problem details. errors.Is matches its Code.
type Error struct {
	Type    string  `json:"type"`
	Title   string  `json:"title"`
	Status  int     `json:"status"`
	Detail  string  `json:"detail,omitempty"`
	Code    Code    `json:"code"`
	Applied Applied `json:"applied"`

	Field          string   `json:"field,omitempty"` // of ErrInvalid: a path like locks[1].name
	Holders        []Holder `json:"holders,omitempty"`
	QueueLength    *int64   `json:"queue_length,omitempty"`
	RetryAfterMS   int64    `json:"retry_after_ms,omitempty"`
	Limit          int64    `json:"limit,omitempty"`           // of ErrModeConflict: the one in force
	RequestedLimit int64    `json:"requested_limit,omitempty"` // … and the one asked for
	Newest         Token    `json:"newest,omitempty"`          // of ErrStaleToken: of the present holders
	Cycle          []Step   `json:"cycle,omitempty"`           // of ErrDeadlock
	ID             string   `json:"id,omitempty"`              // of ErrInternal: where to look in the log
}

// NewError makes an error of the table with a detail for people. A code that is
// not in the table becomes ErrInternal: the wire carries no others.
func NewError(code Code, format string, args ...any) *Error {
	row, ok := table[code]
	if !ok {
		code, row = ErrInternal, table[ErrInternal]
	}
	return &Error{
		Type:         "urn:pawl:error:" + string(code),
		Title:        row.Title,
		Status:       row.Status,
		Detail:       fmt.Sprintf(format, args...),
		Code:         code,
		Applied:      row.Applied,
		RetryAfterMS: row.RetryAfterMS,
	}
}

// invalid makes an ErrInvalid that names its field.
func invalid(field, format string, args ...any) *Error {
	err := NewError(ErrInvalid, format, args...)
	if field != "" {
		err.Field = field
		err.Detail = field + " " + err.Detail
	}
	return err
}

// Error implements error.
func (e *Error) Error() string {
	if text := e.Explain(); text != "" {
		return e.Code.Error() + ": " + text
	}
	return e.Code.Error()
}

// Explain says what a refusal means, with who is in the way: the first few, on one line.
func (e *Error) Explain() string {
	const most = 3
	text := strings.Builder{}
	text.WriteString(e.Detail)
	for i, holder := range e.Holders {
		if i == most {
			fmt.Fprintf(&text, " and %d more", len(e.Holders)-most)
			break
		}
		before := ", "
		if i == 0 {
			before = "; held by "
		}
		fmt.Fprintf(&text, "%s%s (token %d, for %v)", before, holder.Owner, holder.Token, roughly(holder.HeldMS))
	}
	if e.Code == ErrDelayed {
		fmt.Fprintf(&text, ", for another %v", roughly(e.RetryAfterMS))
	}
	if e.Newest != 0 {
		fmt.Fprintf(&text, "; the newest is %d", e.Newest)
	}
	if e.Limit != 0 {
		fmt.Fprintf(&text, "; the limit in force is %d", e.Limit)
		if e.RequestedLimit != 0 {
			fmt.Fprintf(&text, ", and %d was asked for", e.RequestedLimit)
		}
	}
	for i, step := range e.Cycle {
		if i == most {
			fmt.Fprintf(&text, "; and %d more", len(e.Cycle)-most)
			break
		}
		who := step.Owner
		if step.Task != "" {
			who += " (task " + step.Task + ")"
		}
		fmt.Fprintf(&text, "; %s waits for %s, held by %s", who, step.WaitsFor, step.HeldBy)
	}
	return strings.TrimLeft(text.String(), ";, ") // what others answer may have no detail
}

// roughly says milliseconds for people.
func roughly(milliseconds int64) time.Duration {
	d := time.Duration(milliseconds) * time.Millisecond
	if d < time.Second {
		return d
	}
	return d.Truncate(100 * time.Millisecond)
}

// Unwrap makes errors.Is(e, e.Code) true.
func (e *Error) Unwrap() error { return e.Code }

// WriteError answers with err, which must be complete (made by NewError).
// Headers that only the caller knows, as Allow, are set before the call.
func WriteError(w http.ResponseWriter, err *Error) {
	header := w.Header()
	header.Set("Content-Type", TypeProblem)
	header.Set("Cache-Control", "no-store")
	if err.RetryAfterMS > 0 {
		// The header counts in whole seconds; rounding down would say "now".
		header.Set("Retry-After", strconv.FormatInt((err.RetryAfterMS+999)/1000, 10))
	}
	if err.Code == ErrUnauthenticated && header.Get("WWW-Authenticate") == "" {
		header.Set("WWW-Authenticate", "Bearer")
	}
	w.WriteHeader(err.Status)
	// A failed write means that the client is gone; there is nobody left to tell.
	_ = json.NewEncoder(w).Encode(err)
}

// maxProblem bounds what is read of an error's body, in bytes: it may list
// holders, but whoever answers need not be one of our nodes.
const maxProblem = 1 << 20

// ReadError turns an answer that is not 2xx into an *Error, and reads its body
// without closing it. What no Pawl node of this version can have meant (a body
// that is no problem, as a proxy sends, or an unknown code) says nothing about
// whether a POST was applied, so such a one is ErrUnknownOutcome or keeps its
// code, with AppliedUnknown.
func ReadError(response *http.Response) *Error {
	changes := response.Request == nil || response.Request.Method != http.MethodGet && response.Request.Method != http.MethodHead
	body, readErr := io.ReadAll(io.LimitReader(response.Body, maxProblem))
	mediaType, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	var health HealthResponse
	if mediaType == TypeJSON && response.StatusCode == http.StatusServiceUnavailable && json.Unmarshal(body, &health) == nil && health.Reason != "" {
		return NewError(ErrNoLeader, "%s", health.Reason) // GET /readyz of a node that is not ready
	}
	var problem Error
	if readErr != nil || mediaType != TypeProblem || json.Unmarshal(body, &problem) != nil || problem.Code == "" {
		code := ErrInternal
		if changes {
			code = ErrUnknownOutcome
		}
		err := NewError(code, "the answer with status %d is not one of a Pawl node", response.StatusCode)
		err.Status = response.StatusCode
		err.RetryAfterMS = retryAfter(response.Header)
		if !changes {
			err.Applied = AppliedNo
		}
		return err
	}
	row, known := table[problem.Code]
	problem.Status = response.StatusCode
	switch {
	case !changes:
		problem.Applied = AppliedNo
	case !known:
		problem.Applied = AppliedUnknown
	case problem.Applied != AppliedUnknown:
		problem.Applied = row.Applied
	}
	if problem.RetryAfterMS <= 0 {
		problem.RetryAfterMS = retryAfter(response.Header)
	}
	return &problem
}

// retryAfter reads Retry-After in seconds, as milliseconds; 0 when absent or a date.
func retryAfter(header http.Header) int64 {
	seconds, err := strconv.ParseInt(header.Get("Retry-After"), 10, 32)
	if err != nil || seconds < 0 {
		return 0
	}
	return seconds * 1000
}
