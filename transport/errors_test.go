package transport

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

// TestEveryCodeIsInTheTable reads the constants of type Code from the source, so
// that none can be added without its row.
func TestEveryCodeIsInTheTable(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := map[Code]bool{}
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if name, ok := spec.Type.(*ast.Ident); ok && name.Name == "Code" {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			declared[Code(value)] = true
		}
		return true
	})
	if len(declared) != len(table) {
		t.Errorf("%d codes are declared, the table has %d", len(declared), len(table))
	}
	for code := range declared {
		row, ok := code.Describe()
		if !ok || row.Title == "" || row.Status < 400 || row.Applied != AppliedNo && row.Applied != AppliedUnknown {
			t.Errorf("code %s has no whole row: %+v", code, row)
		}
	}
}

// TestTableIsThatOfTheAPI repeats api.md's table, which clients in other
// languages rely on.
func TestTableIsThatOfTheAPI(t *testing.T) {
	for line := range strings.Lines(`
		400 no invalid
		401 no unauthenticated
		403 no forbidden
		404 no not_found
		405 no method_not_allowed
		409 no held delayed deadlock mode_conflict finished request_mismatch membership
		410 no not_held session_gone
		412 no stale_token
		413 no too_large
		415 no unsupported_media
		507 no tokens_exhausted
		429 no quota rate_limited
		500 unknown internal
		503 no no_leader overloaded shutting_down
		504 unknown unknown_outcome`) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		for _, code := range words[2:] {
			row, ok := Code(code).Describe()
			if !ok || fmt.Sprint(row.Status) != words[0] || string(row.Applied) != words[1] {
				t.Errorf("%s: got %+v (%t), want %s %s", code, row, ok, words[0], words[1])
			}
			if row.Status == 503 || row.Status == 429 {
				if row.RetryAfterMS == 0 {
					t.Errorf("%s carries no Retry-After", code)
				}
			}
		}
	}
}

// TestErrorsMeanTheSameOnBothSides sends every code over the wire.
func TestErrorsMeanTheSameOnBothSides(t *testing.T) {
	for code, row := range table {
		recorder := httptest.NewRecorder()
		length := int64(0)
		sent := NewError(code, "100%% sure: %s", "x")
		sent.QueueLength = &length
		sent.Holders = []Holder{{Owner: "o", Token: 17}}
		WriteError(recorder, sent)
		response := recorder.Result()
		if response.StatusCode != row.Status || response.Header.Get("Content-Type") != TypeProblem {
			t.Errorf("%s: status %d, type %s", code, response.StatusCode, response.Header.Get("Content-Type"))
		}
		response.Request = httptest.NewRequest(http.MethodPost, "/v1/acquire", nil)
		var err error = fmt.Errorf("acquiring: %w", ReadError(response))
		var received *Error
		if !errors.Is(err, code) || !errors.As(err, &received) {
			t.Errorf("%s arrived as %v", code, err)
			continue
		}
		if received.Applied != row.Applied || received.Detail != "100% sure: x" || received.QueueLength == nil || len(received.Holders) != 1 || received.Title != row.Title {
			t.Errorf("%s arrived as %+v", code, received)
		}
		if errors.Is(err, Code("other")) {
			t.Errorf("%s matches another code", code)
		}
	}
}

func TestRetryAfterIsRoundedUp(t *testing.T) {
	for milliseconds, want := range map[int64]string{0: "", 1: "1", 1000: "1", 1001: "2", 59_999: "60"} {
		recorder := httptest.NewRecorder()
		err := NewError(ErrDelayed, "wait")
		err.RetryAfterMS = milliseconds
		WriteError(recorder, err)
		if got := recorder.Header().Get("Retry-After"); got != want {
			t.Errorf("%d ms: Retry-After %q, want %q", milliseconds, got, want)
		}
	}
}

func TestUnknownCodeBecomesInternal(t *testing.T) {
	if err := NewError("no_such_code", "x"); err.Code != ErrInternal || err.Applied != AppliedUnknown || err.Status != 500 {
		t.Errorf("got %+v", err)
	}
}

// TestReadErrorOfStrangers: what is not one of our answers must never be taken
// for "not applied" after a POST.
func TestReadErrorOfStrangers(t *testing.T) {
	cases := []struct {
		method, mediaType, body string
		status                  int
		retryAfter              string
		code                    Code
		applied                 Applied
		retryAfterMS            int64
	}{
		{"POST", "text/html", "<h1>Bad gateway</h1>", 502, "", ErrUnknownOutcome, AppliedUnknown, 0},
		{"POST", "", "", 503, "7", ErrUnknownOutcome, AppliedUnknown, 7000},
		{"POST", "application/json", `{"code":"held","applied":"no"}`, 409, "", ErrUnknownOutcome, AppliedUnknown, 0},
		{"POST", TypeProblem, `{"code":"held"`, 409, "", ErrUnknownOutcome, AppliedUnknown, 0},
		{"POST", TypeProblem, `{"title":"no code"}`, 409, "", ErrUnknownOutcome, AppliedUnknown, 0},
		{"POST", TypeProblem, `[]`, 409, "", ErrUnknownOutcome, AppliedUnknown, 0},
		{"POST", TypeProblem, `{"code":"of_a_later_version","applied":"no"}`, 409, "", "of_a_later_version", AppliedUnknown, 0},
		{"POST", TypeProblem, `{"code":"no_leader","applied":"unknown"}`, 503, "-1", ErrNoLeader, AppliedUnknown, 0},
		{"POST", TypeProblem + "; charset=utf-8", `{"code":"held"}`, 409, "Mon, 01 Jan 2029 00:00:00 GMT", ErrHeld, AppliedNo, 0},
		{"POST", TypeProblem, `{"code":"internal","applied":"no"}`, 500, "", ErrInternal, AppliedUnknown, 0},
		{"GET", "text/html", "<h1>Bad gateway</h1>", 502, "", ErrInternal, AppliedNo, 0},
		{"GET", TypeProblem, `{"code":"unknown_outcome"}`, 504, "", ErrUnknownOutcome, AppliedNo, 0},
	}
	for _, c := range cases {
		response := &http.Response{
			StatusCode: c.status,
			Header:     http.Header{"Content-Type": {c.mediaType}, "Retry-After": {c.retryAfter}},
			Body:       io.NopCloser(strings.NewReader(c.body)),
			Request:    httptest.NewRequest(c.method, "/", nil),
		}
		err := ReadError(response)
		if err.Code != c.code || err.Applied != c.applied || err.RetryAfterMS != c.retryAfterMS || err.Status != c.status {
			t.Errorf("%+v: got %+v", c, err)
		}
	}
}

func TestKeys(t *testing.T) {
	for _, key := range []string{"a", "!~", strings.Repeat("k", 256)} {
		if err := ValidateKey(key); err != nil {
			t.Errorf("%.20q: %v", key, err)
		}
	}
	for _, key := range []string{"", " ", "a b", "a\n", "\x00", "\x7f", "é", strings.Repeat("k", 257)} {
		wantInvalid(t, key, ValidateKey(key), HeaderIdempotencyKey)
	}
	acquire := AcquireRequest{Name: "a", Session: "s", Request: 1}
	wantInvalid(t, "session and key", acquire.ValidateKey("k"), HeaderIdempotencyKey)
	wantInvalid(t, "session and key", (&CancelRequest{Session: "s", Request: 1}).ValidateKey("k"), HeaderIdempotencyKey)
	wantInvalid(t, "nothing to cancel", (&CancelRequest{}).ValidateKey(""), "session")
	if err := (&CancelRequest{}).ValidateKey("k"); err != nil {
		t.Errorf("cancel by key: %v", err)
	}
}

// TestValidateOfGoCallers: Validate must not rely on the decoder having run.
func TestValidateOfGoCallers(t *testing.T) {
	cases := []struct {
		message request
		field   string
	}{
		{&AcquireRequest{Name: "a", Owner: "o", TTLMS: 499}, "ttl_ms"},
		{&AcquireRequest{Name: "a", Owner: "o", TTLMS: -1}, "ttl_ms"},
		{&AcquireRequest{Name: "a", Owner: "o", WaitMS: -1}, "wait_ms"},
		{&AcquireRequest{Name: "a", Session: "s", Request: 1 << 63}, "request"},
		{&AcquireRequest{Name: "a\x00", Owner: "o"}, "name"},
		{&AcquireRequest{Name: "\xff", Owner: "o"}, "name"},
		{&AcquireRequest{Owner: "o", Locks: make([]LockRequest, 65)}, "locks"},
		{&AcquireRequest{Name: "a", Owner: "o", Priority: -1001}, "priority"},
		{&AcquireRequest{Name: "a", Owner: "o", MaxHoldMS: 499}, "max_hold_ms"},
		{&AcquireRequest{Name: "a", Owner: "o", MaxHoldMS: -1}, "max_hold_ms"},
		{&AcquireRequest{Name: "a", Owner: "o", LockDelayMS: -1}, "lock_delay_ms"},
		{&AcquireRequest{Name: "a", Owner: "o", Value: "\x00"}, "value"},
		{&ConvertRequest{Session: "s", Request: 1, Of: 1, Token: 1, Name: "a", Mode: ModeShared}, "of"},
		{&ConvertRequest{Session: "s", Request: 1, Of: 2, Token: 1, Name: "a"}, "mode"},
		{&ConvertRequest{Session: "s", Request: 1, Of: 2, Token: 1, Name: "a", Mode: ModeExclusive, Limit: 1}, "limit"},
		{&ConvertRequest{Session: "s", Request: 1, Of: 2, Name: "a", Mode: ModeExclusive}, "token"},
		{&ConvertRequest{Session: "s", Of: 2, Token: 1, Name: "a", Mode: ModeExclusive}, "request"},
		{&ConvertRequest{Session: "s", Request: 1, Token: 1, Name: "a", Mode: ModeExclusive}, "of"},
		{&ConvertRequest{Request: 1, Of: 2, Token: 1, Name: "a", Mode: ModeExclusive}, "session"},
		{&ConvertRequest{Session: "s", Request: 1, Of: 2, Token: 1, Mode: ModeExclusive}, "name"},
		{&CheckRequest{Name: "a"}, "token"},
		{&CheckRequest{Token: 1}, "name"},
		{&ValueRequest{Session: "s", Token: 1, Name: "a"}, "value"},
		{&ValueRequest{Session: "s", Name: "a", Value: new("")}, "token"},
		{&ValueRequest{Session: "s", Token: 1, Name: "a", Value: new("\x00")}, "value"},
		{&ForceReleaseRequest{Name: "a", Token: 1}, "reason"},
		{&ForceReleaseRequest{Name: "a", Reason: "r"}, "token"},
		{&ForceReleaseRequest{Token: 1, Reason: "r"}, "name"},
		{&SessionRequest{Owner: "o", Labels: map[string]string{"": "v"}}, "labels."},
		{&RenewRequest{Session: "s", Done: 1 << 53}, "done"},
		{&ReleaseRequest{Session: "s"}, "token"},
		{&ReleaseRequest{Token: 1}, "session"},
		{&ReleaseRequest{Session: "s", Token: 1 << 53}, "token"},
		{&CancelRequest{Request: 1}, "session"},
		{&CancelRequest{Session: "s"}, "request"},
		{&SessionRequest{}, "owner"},
		{&SessionCloseRequest{}, "session"},
		{&AddRequest{Name: "n"}, "address"},
		{&RaiseRequest{Reason: "r"}, "above"},
		{&RaiseRequest{Above: 1}, "reason"},
		{&RaiseRequest{Above: 1<<52 + 1, Reason: "r"}, "above"},
	}
	for _, c := range cases {
		wantInvalid(t, fmt.Sprintf("%+v", c.message), c.message.Validate(), c.field)
	}
}

// TestFormsOfAnAcquireResponse: a request still queued shows no lease.
func TestFormsOfAnAcquireResponse(t *testing.T) {
	for _, c := range []struct {
		answer AcquireResponse
		want   string
	}{
		{AcquireResponse{Request: 7, Queue: []QueuePosition{{"a", 2}}}, `{"granted":false,"request":7,"queue":[{"name":"a","position":2}]}`},
		{AcquireResponse{Granted: true, Session: "s", Token: MaxToken, Locks: []GrantedLock{{Name: "a", Mode: ModeExclusive, Token: MaxToken}}, TTLMS: 15000, LeaseMS: 0, Owner: "o"},
			`{"granted":true,"session":"s","token":9007199254740991,"locks":[{"name":"a","mode":"exclusive","token":9007199254740991}],"ttl_ms":15000,"lease_ms":0,"owner":"o","replayed":false}`},
	} {
		if got, err := json.Marshal(c.answer); err != nil || string(got) != c.want {
			t.Errorf("got %s, %v, want %s", got, err, c.want)
		}
	}
	none := int64(0)
	if got, _ := json.Marshal(AcquireResponse{Granted: true, HoldMS: &none}); !strings.Contains(string(got), `"hold_ms":0`) {
		t.Errorf("a hold whose maximum is over is %s, as if it had none", got)
	}
	if got, _ := json.Marshal(LockResponse{Name: "a"}); string(got) != `{"name":"a","holders":[],"queue":[],"delay_remaining_ms":0,"history":[]}` {
		t.Errorf("a free lock is %s", got)
	}
}
