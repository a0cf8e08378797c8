package transport

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// request is what every request message is.
type request interface{ Validate() error }

// decodeRequest does what a server does with a body.
func decodeRequest(into request, body string) error {
	if err := Decode([]byte(body), into); err != nil {
		return err
	}
	return into.Validate()
}

// wantInvalid fails unless err is ErrInvalid for the field.
func wantInvalid(t *testing.T, body string, err error, field string) {
	t.Helper()
	var problem *Error
	if !errors.As(err, &problem) {
		t.Errorf("%.80q was accepted, want field %q refused", body, field)
		return
	}
	if problem.Code != ErrInvalid || problem.Field != field || problem.Applied != AppliedNo || problem.Status != 400 {
		t.Errorf("%.80q: got code %s, field %q (%.200s), want invalid, field %q", body, problem.Code, problem.Field, problem.Detail, field)
	}
	if field != "" && !strings.Contains(problem.Detail, field) {
		t.Errorf("%.80q: the detail %q does not name the field %q", body, problem.Detail, field)
	}
}

// integersRefused are notations that no integer field takes.
var integersRefused = []string{
	"1.0", "1e3", "5e0", "1E3", "1000.5", "01", "00", "+1", "-1", "-0", "- 1", "0x10", "1_000", "1000ms", "NaN", "Infinity", "-",
	"18446744073709551616", "9223372036854775808", "9007199254740992", "-9223372036854775809", "1" + strings.Repeat("0", 1000),
	`"5"`, `"5s"`, `""`, "true", "false", "[]", "[1]", "{}", "null", "nil", "x", "٣",
}

func TestDecodeRefusesWrongNumbers(t *testing.T) {
	fields := []struct {
		name    string
		message func() request
		rest    string
		extra   []string
	}{
		{"ttl_ms", func() request { return new(AcquireRequest) }, `"name":"a","owner":"o"`, []string{"0", "499", "86400001"}},
		{"wait_ms", func() request { return new(AcquireRequest) }, `"name":"a","owner":"o"`, []string{"300001"}},
		{"limit", func() request { return new(AcquireRequest) }, `"name":"a","owner":"o","mode":"shared"`, []string{"0", "1000001"}},
		{"request", func() request { return new(AcquireRequest) }, `"name":"a","session":"s"`, []string{"0"}},
		{"done", func() request { return new(AcquireRequest) }, `"name":"a","session":"s","request":7`, []string{"8"}},
		{"ttl_ms", func() request { return new(SessionRequest) }, `"owner":"o"`, []string{"0", "499"}},
		{"ttl_ms", func() request { return new(RenewRequest) }, `"session":"s"`, []string{"0", "499"}},
		{"done", func() request { return new(RenewRequest) }, `"session":"s"`, nil},
		{"request", func() request { return new(ReleaseRequest) }, `"session":"s"`, []string{"0"}},
		{"request", func() request { return new(CancelRequest) }, `"session":"s"`, []string{"0"}},
		{"above", func() request { return new(RaiseRequest) }, `"reason":"r"`, []string{"0", "4503599627370497"}},
		{"max_hold_ms", func() request { return new(AcquireRequest) }, `"name":"a","owner":"o"`, []string{"499", "86400001"}},
		{"lock_delay_ms", func() request { return new(AcquireRequest) }, `"name":"a","owner":"o"`, []string{"86400001"}},
		{"of", func() request { return new(ConvertRequest) }, `"session":"s","request":1,"token":1,"name":"a","mode":"shared"`, []string{"0"}},
		{"wait_ms", func() request { return new(ConvertRequest) }, `"session":"s","request":1,"of":2,"token":1,"name":"a","mode":"shared"`, []string{"300001"}},
		{"lock_delay_ms", func() request { return new(ForceReleaseRequest) }, `"name":"a","token":1,"reason":"r"`, []string{"86400001"}},
	}
	for _, field := range fields {
		for _, number := range append(integersRefused, field.extra...) {
			body := fmt.Sprintf(`{%s,"%s":%s}`, field.rest, field.name, number)
			wantInvalid(t, body, decodeRequest(field.message(), body), field.name)
		}
	}
}

// TestPriorityIsANumberOnBothSidesOfZero: the one number that may be negative.
func TestPriorityIsANumberOnBothSidesOfZero(t *testing.T) {
	for number, want := range map[string]int64{"-1000": -1000, "-1": -1, "0": 0, "1": 1, "1000": 1000} {
		var acquire AcquireRequest
		if err := decodeRequest(&acquire, `{"name":"a","owner":"o","priority":`+number+`}`); err != nil || acquire.Priority != want {
			t.Errorf("priority %s: got %d, %v", number, acquire.Priority, err)
		}
	}
	for _, number := range append(slices.DeleteFunc(slices.Clone(integersRefused), func(n string) bool { return n == "-1" }),
		"-1001", "1001", "-01", "--1", "-1.0", "-1e3", "- 1") {
		body := `{"name":"a","owner":"o","priority":` + number + `}`
		wantInvalid(t, body, decodeRequest(new(AcquireRequest), body), "priority")
	}
}

// TestValues: what is kept with a hold may be anything of UTF-8 but NUL, and empty.
func TestValues(t *testing.T) {
	for text, want := range map[string]string{
		`""`: "", `"v"`: "v", `"a\nb\t\u001b[0m"`: "a\nb\t\x1b[0m", `"\u0085"`: "\u0085", `"` + strings.Repeat("v", MaxValue) + `"`: strings.Repeat("v", MaxValue),
	} {
		var value ValueRequest
		body := `{"session":"s","token":1,"name":"a","value":` + text + `}`
		if err := decodeRequest(&value, body); err != nil || value.Value == nil || *value.Value != want {
			t.Errorf("%.80s: got %v, %v", body, value.Value, err)
		}
		var acquire AcquireRequest
		if err := decodeRequest(&acquire, `{"name":"a","owner":"o","value":`+text+`}`); err != nil || acquire.Value != want {
			t.Errorf("%.80s: got %.80q, %v", text, acquire.Value, err)
		}
	}
	for _, text := range []string{
		"1", "true", "null", "[]", "{}", `"\u0000"`, `"a\u0000b"`, "\"a\nb\"", "\"\xff\"", `"\ud800"`, `"` + strings.Repeat("v", MaxValue+1) + `"`, `"` + strings.Repeat("é", MaxValue/2) + `x"`,
	} {
		body := `{"session":"s","token":1,"name":"a","value":` + text + `}`
		wantInvalid(t, body, decodeRequest(new(ValueRequest), body), "value")
		body = `{"name":"a","owner":"o","value":` + text + `}`
		wantInvalid(t, body, decodeRequest(new(AcquireRequest), body), "value")
	}
}

// TestLabels: a map is as strict as a message.
func TestLabels(t *testing.T) {
	many := func(n int) string {
		var keys []string
		for i := range n {
			keys = append(keys, fmt.Sprintf(`"k%d":"v"`, i))
		}
		return "{" + strings.Join(keys, ",") + "}"
	}
	for labels, want := range map[string]map[string]string{
		`{}`: {}, `{"a":""}`: {"a": ""}, ` { "a" : "b" , "c":"d" } `: {"a": "b", "c": "d"}, `{"\u0061":"\u00e9"}`: {"a": "é"},
		`{"` + strings.Repeat("k", MaxLabel) + `":"` + strings.Repeat("v", MaxLabelValue) + `"}`: {strings.Repeat("k", MaxLabel): strings.Repeat("v", MaxLabelValue)},
		many(MaxLabels): nil,
	} {
		var session SessionRequest
		if err := decodeRequest(&session, `{"owner":"o","labels":`+labels+`}`); err != nil || want != nil && !maps.Equal(session.Labels, want) {
			t.Errorf("%.80s: got %v, %v", labels, session.Labels, err)
		}
	}
	for _, c := range []struct{ labels, field string }{
		{`null`, "labels"}, {`[]`, "labels"}, {`"a"`, "labels"}, {`1`, "labels"}, {`{"a"}`, "labels.a"}, {`{"a":}`, "labels.a"}, {`{a:"b"}`, "labels"}, {`{"a":"b",}`, "labels"},
		{`{"a":"b" "c":"d"}`, "labels"}, {`{"a":1}`, "labels.a"}, {`{"a":null}`, "labels.a"}, {`{"a":{"b":"c"}}`, "labels.a"}, {`{"a":["b"]}`, "labels.a"}, {`{"a":"b","a":"b"}`, "labels.a"},
		{`{"a":"b","\u0061":"c"}`, "labels.a"}, {`{"":"b"}`, "labels."}, {`{"a":"\u0000"}`, "labels.a"}, {`{"a":"x\ny"}`, "labels.a"}, {`{"a":"\ud800"}`, "labels.a"}, {"{\"a\":\"\xff\"}", "labels.a"},
		{`{"a\tb":"c"}`, "labels.a\tb"}, {`{"` + strings.Repeat("k", MaxLabel+1) + `":""}`, "labels." + strings.Repeat("k", 64) + "…"}, {`{"a":"` + strings.Repeat("v", MaxLabelValue+1) + `"}`, "labels.a"},
		{many(MaxLabels + 1), "labels"}, {strings.Repeat(`{"a":`, 10000), "labels.a"},
	} {
		body := `{"owner":"o","labels":` + c.labels + `}`
		err := decodeRequest(new(SessionRequest), body)
		var problem *Error
		if !errors.As(err, &problem) || problem.Code != ErrInvalid || problem.Field != c.field {
			t.Errorf("%.80s: got %v, want field %q refused", body, err, c.field)
		}
	}
}

func TestDecodeRefusesWrongTokens(t *testing.T) {
	for _, token := range []string{
		"0", `"0"`, "1e3", "1.0", "01", "+1", "-1", `"01"`, `"+1"`, `" 1"`, `"1 "`, `"0x1"`, "0x1", `"1e3"`, `"1.0"`, `""`, `"-1"`,
		"9007199254740992", `"9007199254740992"`, "9007199254740993", "18446744073709551616", `"18446744073709551616"`, `"१"`,
		"null", "true", "[]", "{}", `"abc"`, `"\ud800"`,
	} {
		body := `{"session":"s","token":` + token + `}`
		wantInvalid(t, body, decodeRequest(new(ReleaseRequest), body), "token")
	}
	for _, token := range []string{"9007199254740991", `"9007199254740991"`, `"\u0039007199254740991"`} {
		var release ReleaseRequest
		if err := decodeRequest(&release, `{"session":"s","token":`+token+`}`); err != nil || release.Token != MaxToken {
			t.Errorf("token %s: got %v, %v, want it exact", token, release.Token, err)
		}
	}
}

// textsRefused are JSON values that no text field takes.
var textsRefused = []string{
	`""`, "123", "true", "null", "[]", "{}", `["a"]`, "'a'", `"a`, `"\u0000"`, `"a\nb"`, `"a\tb"`, "\"a\nb\"", "\"a\x00b\"",
	`"\u001f"`, `"\u007f"`, `"\u0080"`, `"\u009f"`, "\"\u0085\"", "\"\x7f\"", `"\ud800"`, `"\udc00"`, `"\ud800\ud800"`, `"\ud83d x"`, `"\ude00\ud83d"`,
	"\"\xff\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"a\xe2\x82\"", `"\x41"`, `"\u00g0"`, `"\u12"`, `"\`, `"\"`,
	`"` + strings.Repeat("n", 513) + `"`, `"` + strings.Repeat("é", 257) + `"`, `"` + strings.Repeat("n", 60000) + `"`,
}

func TestDecodeRefusesWrongTexts(t *testing.T) {
	fields := []struct {
		path    string
		message func() request
		format  string
	}{
		{"name", func() request { return new(AcquireRequest) }, `{"owner":"o","name":%s}`},
		{"locks[1].name", func() request { return new(AcquireRequest) }, `{"owner":"o","locks":[{"name":"a"},{"name":%s}]}`},
		{"locks[0].mode", func() request { return new(AcquireRequest) }, `{"owner":"o","locks":[{"name":"a","mode":%s}]}`},
		{"mode", func() request { return new(AcquireRequest) }, `{"owner":"o","name":"a","mode":%s}`},
		{"owner", func() request { return new(AcquireRequest) }, `{"name":"a","owner":%s}`},
		{"session", func() request { return new(AcquireRequest) }, `{"name":"a","request":1,"session":%s}`},
		{"task", func() request { return new(AcquireRequest) }, `{"name":"a","session":"s","request":1,"task":%s}`},
		{"owner", func() request { return new(SessionRequest) }, `{"owner":%s}`},
		{"session", func() request { return new(RenewRequest) }, `{"session":%s}`},
		{"session", func() request { return new(ReleaseRequest) }, `{"token":1,"session":%s}`},
		{"name", func() request { return new(ReleaseRequest) }, `{"token":1,"session":"s","name":%s}`},
		{"session", func() request { return new(CancelRequest) }, `{"request":1,"session":%s}`},
		{"session", func() request { return new(SessionCloseRequest) }, `{"session":%s}`},
		{"to", func() request { return new(TransferRequest) }, `{"to":%s}`},
		{"address", func() request { return new(AddRequest) }, `{"name":"n","address":%s}`},
		{"role", func() request { return new(AddRequest) }, `{"name":"n","address":"h:1","role":%s}`},
		{"name", func() request { return new(RemoveRequest) }, `{"name":%s}`},
		{"name", func() request { return new(DemoteRequest) }, `{"name":%s}`},
		{"session", func() request { return new(ConvertRequest) }, `{"request":1,"of":2,"token":1,"name":"a","mode":"shared","session":%s}`},
		{"name", func() request { return new(ConvertRequest) }, `{"request":1,"of":2,"token":1,"session":"s","mode":"shared","name":%s}`},
		{"mode", func() request { return new(ConvertRequest) }, `{"request":1,"of":2,"token":1,"session":"s","name":"a","mode":%s}`},
		{"name", func() request { return new(CheckRequest) }, `{"token":1,"name":%s}`},
		{"session", func() request { return new(ValueRequest) }, `{"token":1,"name":"a","value":"","session":%s}`},
		{"name", func() request { return new(ValueRequest) }, `{"token":1,"session":"s","value":"","name":%s}`},
		{"name", func() request { return new(ForceReleaseRequest) }, `{"token":1,"reason":"r","name":%s}`},
	}
	for _, field := range fields {
		for _, text := range textsRefused {
			body := fmt.Sprintf(field.format, text)
			wantInvalid(t, body, decodeRequest(field.message(), body), field.path)
		}
	}
}

func TestAcquireRefused(t *testing.T) {
	many := `{"name":"n"},`
	cases := []struct{ body, field string }{
		// not one JSON object
		{``, ""}, {` `, ""}, {`null`, ""}, {`[]`, ""}, {`""`, ""}, {`1`, ""}, {`true`, ""}, {`{`, ""}, {`}`, ""}, {`{,}`, ""}, {`{"name"}`, "name"},
		{`{"name":"a","owner":"o"}{}`, ""}, {`{"name":"a","owner":"o"} x`, ""}, {`{"name":"a","owner":"o"}]`, ""}, {"{\"name\":\"a\",\"owner\":\"o\"}\x00", ""},
		{"\ufeff" + `{"name":"a","owner":"o"}`, ""}, {"\xfe\xff\x00{", ""}, {`{"name":"a","owner":"o"},`, ""}, {`{"name":"a","owner":"o",}`, ""},
		{`{"name":"a" "owner":"o"}`, ""}, {`{"name":"a","owner":"o"`, ""}, {`{name:"a"}`, ""}, {`{'name':"a"}`, ""}, {`{"name";"a"}`, "name"}, {`// x` + "\n{}", ""},
		{"{\"na\xffme\":1}", ""}, {`{"\ud800":1}`, ""}, {`{"name":"a"/**/,"owner":"o"}`, ""},
		// D06: fields unknown, misspelt, wrongly cased, repeated, or of a later version
		{`{"name":"a","owner":"o","ttl_msec":5000}`, "ttl_msec"}, {`{"name":"a","owner":"o","TTL_MS":5000}`, "TTL_MS"}, {`{"Name":"a","owner":"o"}`, "Name"},
		{`{"NAME":"a"}`, "NAME"}, {`{"":1}`, ""}, {`{"name":"a","owner":"o","ttl":5000}`, "ttl"}, {`{"name":"a","owner":"o","wait":true}`, "wait"},
		{`{"name":"a","owner":"o","ttl_ms":5000,"ttl_ms":5000}`, "ttl_ms"}, {`{"name":"a","name":"a","owner":"o"}`, "name"},
		{`{"name":"a","n\u0061me":"b","owner":"o"}`, "name"}, {`{"owner":"o","locks":[{"name":"a","name":"b"}]}`, "locks[0].name"},
		{`{"owner":"o","locks":[{"name":"a"},{"name":"b","x":1}]}`, "locks[1].x"}, {`{"owner":"o","locks":[{"name":"a","owner":"o"}]}`, "locks[0].owner"},
		{`{"owner":"o","locks":[{"name":"a","priority":1}]}`, "locks[0].priority"}, {`{"name":"a","owner":"o","max_hold_ms":1}`, "max_hold_ms"},
		{`{"` + strings.Repeat("k", 100) + `":1}`, strings.Repeat("k", 64) + "…"},
		{`{"x":` + strings.Repeat("[", 30000) + `}`, "x"}, {`{"name":` + strings.Repeat("[", 30000) + `}`, "name"}, {`{"locks":` + strings.Repeat("[", 30000) + `}`, "locks[0]"},
		// which locks
		{`{"owner":"o"}`, "name"}, {`{}`, "name"}, {`{"owner":"o","name":"a","locks":[{"name":"b"}]}`, "name"}, {`{"owner":"o","locks":[]}`, "locks"},
		{`{"owner":"o","locks":{}}`, "locks"}, {`{"owner":"o","locks":"a"}`, "locks"}, {`{"owner":"o","locks":["a"]}`, "locks[0]"}, {`{"owner":"o","locks":null}`, "locks"},
		{`{"owner":"o","locks":[null]}`, "locks[0]"}, {`{"owner":"o","locks":[{}]}`, "locks[0].name"}, {`{"owner":"o","locks":[{"name":"a"},{"name":"b"},{"name":"a"}]}`, "locks[2].name"},
		{`{"owner":"o","locks":[{"name":"a"},]}`, "locks[1]"}, {`{"owner":"o","locks":[{"name":"a"}`, "locks"}, {`{"owner":"o","locks":[{"name":"a"} {"name":"b"}]}`, "locks"},
		{`{"owner":"o","locks":[` + strings.TrimSuffix(strings.Repeat(many, 65), ",") + `]}`, "locks"},
		{`{"owner":"o","locks":[{"name":"a"}],"mode":"shared"}`, "mode"}, {`{"owner":"o","locks":[{"name":"a"}],"limit":2}`, "limit"},
		// mode and limit
		{`{"owner":"o","name":"a","mode":"write"}`, "mode"}, {`{"owner":"o","name":"a","mode":"Shared"}`, "mode"}, {`{"owner":"o","name":"a","limit":2}`, "limit"},
		{`{"owner":"o","name":"a","mode":"exclusive","limit":1}`, "limit"}, {`{"owner":"o","locks":[{"name":"a","limit":1}]}`, "locks[0].limit"},
		{`{"owner":"o","locks":[{"name":"a","mode":"shared","limit":0}]}`, "locks[0].limit"}, {`{"owner":"o","locks":[{"name":"a","mode":"x"}]}`, "locks[0].mode"},
		// who asks
		{`{"name":"a"}`, "owner"}, {`{"name":"a","session":"s"}`, "request"}, {`{"name":"a","session":"s","request":1,"owner":"o"}`, "owner"},
		{`{"name":"a","session":"s","request":1,"ttl_ms":5000}`, "ttl_ms"}, {`{"name":"a","owner":"o","request":1}`, "request"}, {`{"name":"a","owner":"o","done":1}`, "done"},
		{`{"name":"a","owner":"o","task":"t"}`, "task"}, {`{"name":"a","session":"s","request":3,"done":4}`, "done"},
		{`{"name":"a","owner":"` + strings.Repeat("o", 257) + `"}`, "owner"}, {`{"name":"a","request":1,"session":"` + strings.Repeat("s", 129) + `"}`, "session"},
	}
	for _, c := range cases {
		wantInvalid(t, c.body, decodeRequest(new(AcquireRequest), c.body), c.field)
	}
}

func TestDecodeRefusesLargeBodies(t *testing.T) {
	exact := `{"name":"a","owner":"o"}`
	exact += strings.Repeat(" ", MaxBody-len(exact))
	if err := decodeRequest(new(AcquireRequest), exact); err != nil {
		t.Errorf("a body of exactly the greatest size: %v", err)
	}
	if err := decodeRequest(new(AcquireRequest), exact+" "); !errors.Is(err, ErrTooLarge) {
		t.Errorf("one byte more: got %v, want ErrTooLarge", err)
	}
	if data, err := ReadBody(strings.NewReader(exact)); err != nil || len(data) != MaxBody {
		t.Errorf("reading exactly the greatest size: %d bytes, %v", len(data), err)
	}
	endless := &counter{}
	if _, err := ReadBody(endless); !errors.Is(err, ErrTooLarge) {
		t.Errorf("an endless body: got %v, want ErrTooLarge", err)
	}
	if endless.read > 4*MaxBody {
		t.Errorf("%d bytes were taken of an endless body", endless.read)
	}
}

// counter is an endless body that counts what was taken of it.
type counter struct{ read int }

func (c *counter) Read(p []byte) (int, error) { c.read += len(p); return len(p), nil }

// TestAccepted shows the other direction: every documented field, and the names
// that others broke on (A26).
func TestAccepted(t *testing.T) {
	cases := []struct {
		message request
		body    string
		want    request
	}{
		{new(AcquireRequest), ` {"name" : "a" , "owner":"o"} ` + "\r\n\t", &AcquireRequest{Name: "a", Owner: "o"}},
		{new(AcquireRequest), `{"name":"a","owner":"o","mode":"shared","limit":1000000,"ttl_ms":500,"wait_ms":300000}`, &AcquireRequest{Name: "a", Owner: "o", Mode: ModeShared, Limit: MaxLimit, TTLMS: 500, WaitMS: 300000}},
		{new(AcquireRequest), `{"name":"a","owner":"o","ttl_ms":86400000,"wait_ms":0}`, &AcquireRequest{Name: "a", Owner: "o", TTLMS: 86400000}},
		{new(AcquireRequest), `{"name":"a","session":"s","request":9007199254740991,"done":9007199254740991,"task":"t"}`, &AcquireRequest{Name: "a", Session: "s", Request: MaxRequest, Done: MaxRequest, Task: "t"}},
		{new(AcquireRequest), `{"owner":"o","locks":[{"name":"a"},{"name":"b","mode":"shared","limit":3},{"name":"c","mode":"exclusive"}]}`, &AcquireRequest{Owner: "o", Locks: []LockRequest{{Name: "a"}, {Name: "b", Mode: ModeShared, Limit: 3}, {Name: "c", Mode: ModeExclusive}}}},
		{new(AcquireRequest), `{"name":"a","owner":"o","priority":-1000,"max_hold_ms":500,"lock_delay_ms":1,"value":"v"}`, &AcquireRequest{Name: "a", Owner: "o", Priority: -1000, MaxHoldMS: 500, LockDelayMS: 1, Value: "v"}},
		{new(AcquireRequest), `{"name":"a","owner":"o","wait_ms":0,"priority":0,"max_hold_ms":0,"lock_delay_ms":0,"value":""}`, &AcquireRequest{Name: "a", Owner: "o"}},
		{new(AcquireRequest), `{"name":"a","owner":"o","priority":1000,"max_hold_ms":86400000,"lock_delay_ms":86400000}`, &AcquireRequest{Name: "a", Owner: "o", Priority: 1000, MaxHoldMS: 86400000, LockDelayMS: 86400000}},
		{new(ConvertRequest), `{"session":"s","request":2,"of":1,"token":"7","name":"a","mode":"shared","limit":3,"wait_ms":9}`, &ConvertRequest{Session: "s", Request: 2, Of: 1, Token: 7, Name: "a", Mode: ModeShared, Limit: 3, WaitMS: 9}},
		{new(ConvertRequest), `{"session":"s","request":1,"of":2,"token":7,"name":"a","mode":"exclusive"}`, &ConvertRequest{Session: "s", Request: 1, Of: 2, Token: 7, Name: "a", Mode: ModeExclusive}},
		{new(CheckRequest), `{"name":"a","token":7}`, &CheckRequest{Name: "a", Token: 7}},
		{new(ForceReleaseRequest), `{"name":"a","token":7,"reason":"r","lock_delay_ms":0}`, &ForceReleaseRequest{Name: "a", Token: 7, Reason: "r"}},
		{new(RenewRequest), `{"session":"s","done":0,"ttl_ms":1001}`, &RenewRequest{Session: "s", TTLMS: 1001}},
		{new(ReleaseRequest), `{"session":"s","request":1,"token":"17","name":"a"}`, &ReleaseRequest{Session: "s", Request: 1, Token: 17, Name: "a"}},
		{new(CancelRequest), `{}`, &CancelRequest{}},
		{new(CancelRequest), `{"session":"s","request":1}`, &CancelRequest{Session: "s", Request: 1}},
		{new(SessionRequest), `{"owner":"o","ttl_ms":999}`, &SessionRequest{Owner: "o", TTLMS: 999}},
		{new(SessionCloseRequest), `{"session":"s"}`, &SessionCloseRequest{Session: "s"}},
		{new(TransferRequest), `{}`, &TransferRequest{}},
		{new(AddRequest), `{"name":"n4","address":"h:1","role":"nonvoter"}`, &AddRequest{Name: "n4", Address: "h:1", Role: RoleNonvoter}},
		{new(RemoveRequest), `{"name":"n4","force":true}`, &RemoveRequest{Name: "n4", Force: true}},
		{new(DemoteRequest), `{"name":"n4"}`, &DemoteRequest{Name: "n4"}},
		{new(RaiseRequest), `{"above":4503599627370496,"reason":"r"}`, &RaiseRequest{Above: MaxAbove, Reason: "r"}},
		{new(RaiseRequest), `{"above":1,"reason":"r"}`, &RaiseRequest{Above: 1, Reason: "r"}},
	}
	for _, name := range []string{
		"a", "ab", "a/", "a/b", "A", "/a", "//", ".", "..", "a/../b", "%", "%2F", "%00", "a b", " a ", "🔒", "é", "e\u0301", "\u2028", "\ufffd", "\\", "'", "null",
		strings.Repeat("n", 512), strings.Repeat("🔒", 128),
	} {
		body, err := json.Marshal(map[string]string{"name": name, "owner": "o"})
		if err != nil {
			t.Fatal(err)
		}
		cases = append(cases, struct {
			message request
			body    string
			want    request
		}{new(AcquireRequest), string(body), &AcquireRequest{Name: name, Owner: "o"}})
	}
	cases = append(cases, struct {
		message request
		body    string
		want    request
	}{new(AcquireRequest), `{"name":"\ud83d\udd12\/\u0041","owner":"\"o\\"}`, &AcquireRequest{Name: "🔒/A", Owner: `"o\`}})
	for _, c := range cases {
		if err := decodeRequest(c.message, c.body); err != nil {
			t.Errorf("%.80q: %v", c.body, err)
		} else if !reflect.DeepEqual(c.message, c.want) {
			t.Errorf("%.80q: got %+v, want %+v", c.body, c.message, c.want)
		}
	}
}

// TestEveryNumberAndTextIsBounded finds a request field that somebody added
// without giving its bounds.
func TestEveryNumberAndTextIsBounded(t *testing.T) {
	var walk func(message reflect.Type)
	walk = func(message reflect.Type) {
		if message.NumField() > 64 {
			t.Errorf("%s has more fields than the decoder can tell apart", message)
		}
		for i := range message.NumField() {
			field := message.Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			_, number := numberBounds[name]
			_, text := textBounds[name]
			kind := field.Type
			if kind.Kind() == reflect.Pointer {
				kind = kind.Elem()
			}
			switch kind.Kind() {
			case reflect.Map:
				if field.Type != reflect.TypeFor[map[string]string]() {
					t.Errorf("%s.%s is a map that Decode does not know", message, field.Name)
				}
			case reflect.Int64, reflect.Uint64:
				if !number {
					t.Errorf("%s.%s has no bounds", message, field.Name)
				}
			case reflect.String:
				if !text {
					t.Errorf("%s.%s has no greatest length", message, field.Name)
				}
			case reflect.Slice:
				walk(field.Type.Elem())
			case reflect.Bool:
			default:
				t.Errorf("%s.%s has a kind that Decode does not know", message, field.Name)
			}
		}
	}
	for _, message := range []request{
		new(AcquireRequest), new(RenewRequest), new(ReleaseRequest), new(CancelRequest), new(SessionRequest), new(SessionCloseRequest),
		new(TransferRequest), new(AddRequest), new(RemoveRequest), new(DemoteRequest), new(RaiseRequest), new(ConvertRequest), new(CheckRequest),
		new(ValueRequest), new(ForceReleaseRequest),
	} {
		walk(reflect.TypeOf(message).Elem())
	}
}

// FuzzDecode: whatever comes, Decode does not panic; what it refuses it refuses
// with an *Error of the table; what it accepts encoding/json reads alike.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"name":"a","owner":"o"}`, `{"locks":[{"name":"a","mode":"shared","limit":3}],"session":"s","request":7,"done":6}`,
		`{"name":"\ud83d\udd12","ttl_ms":15000,"wait_ms":0}`, `{"owner":"o","labels":{"a":"b"}}`, `{"name":"a","owner":"o","priority":-5,"value":"\n"}`, `{"name":"\ud800"}`, `{"ttl_ms":1e3}`, `{`, "\ufeff{}", `{"name":"a","name":"b"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var strict, lax AcquireRequest
		err := Decode(data, &strict)
		if err != nil {
			var problem *Error
			if !errors.As(err, &problem) || !utf8.ValidString(problem.Field) {
				t.Fatalf("%q: refused with %#v", data, err)
			}
			return
		}
		decoder := json.NewDecoder(bytes.NewReader(data))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&lax); err != nil {
			t.Fatalf("%q: accepted, but encoding/json says %v", data, err)
		}
		if !reflect.DeepEqual(strict, lax) {
			t.Fatalf("%q: got %+v, encoding/json %+v", data, strict, lax)
		}
		_ = strict.Validate()
		var release ReleaseRequest
		_ = Decode(data, &release)
		var session SessionRequest
		if Decode(data, &session) == nil && session.Owner != "" && session.Validate() != nil {
			t.Fatalf("%q: decoded, but %v", data, session.Validate())
		}
	})
}

func BenchmarkDecodeAcquire(b *testing.B) {
	body := []byte(`{"name":"orders/42","session":"0123456789abcdef","request":7,"done":6,"wait_ms":20000}`)
	b.ReportAllocs()
	for b.Loop() {
		var acquire AcquireRequest
		if err := Decode(body, &acquire); err != nil {
			b.Fatal(err)
		}
	}
}
