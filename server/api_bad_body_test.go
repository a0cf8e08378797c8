package server_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/transport"
)

// field is one field of a request as it is written when it is right, and what kind of value it takes.
type field struct{ name, value, kind string }

// goodBodies has for each route a body that would be accepted, so that one wrong field is all that is wrong with it.
var goodBodies = map[string][][]field{
	"/v1/acquire": {
		{{"name", `"n"`, "text 512"}, {"mode", `"shared"`, "mode"}, {"limit", `3`, "1 to 1000000"}, {"owner", `"o"`, "text 256"},
			{"ttl_ms", `5000`, "500 to 86400000"}, {"wait_ms", `0`, "0 to 300000"}, {"priority", `-3`, "-1000 to 1000"}, {"max_hold_ms", `5000`, "0 or 500 to 86400000"},
			{"lock_delay_ms", `5000`, "0 to 86400000"}, {"value", `"v"`, "value 4096"}},
		{{"name", `"n"`, "text 512"}, {"session", `"00112233445566778899aabbccddeeff"`, "text 128"}, {"request", `7`, "1 to 9007199254740991"},
			{"done", `6`, "0 to 7"}, {"task", `"t"`, "text 256"}},
		{{"locks", `[{"name":"n"}]`, "list"}, {"owner", `"o"`, "text 256"}},
	},
	"/v1/renew": {{{"session", `"00112233445566778899aabbccddeeff"`, "text 128"}, {"done", `6`, "0 to 9007199254740991"}, {"ttl_ms", `5000`, "500 to 86400000"}}},
	"/v1/release": {{{"session", `"00112233445566778899aabbccddeeff"`, "text 128"}, {"request", `7`, "1 to 9007199254740991"},
		{"token", `7`, "token"}, {"name", `"n"`, "text 512"}}},
	"/v1/cancel": {{{"session", `"00112233445566778899aabbccddeeff"`, "text 128"}, {"request", `7`, "1 to 9007199254740991"}}},
	"/v1/convert": {{{"session", `"00112233445566778899aabbccddeeff"`, "text 128"}, {"request", `7`, "1 to 9007199254740991"}, {"of", `6`, "1 to 9007199254740991"},
		{"token", `7`, "token"}, {"name", `"n"`, "text 512"}, {"mode", `"shared"`, "mode"}, {"limit", `3`, "1 to 1000000"}, {"wait_ms", `0`, "0 to 300000"}}},
	"/v1/check": {{{"name", `"n"`, "text 512"}, {"token", `7`, "token"}}},
	"/v1/value": {{{"session", `"00112233445566778899aabbccddeeff"`, "text 128"}, {"request", `7`, "1 to 9007199254740991"}, {"token", `7`, "token"},
		{"name", `"n"`, "text 512"}, {"value", `"v"`, "value 4096"}}},
	"/v1/force-release":    {{{"name", `"n"`, "text 512"}, {"token", `7`, "token"}, {"reason", `"r"`, "text 1024"}, {"lock_delay_ms", `5000`, "0 to 86400000"}}},
	"/v1/session":          {{{"owner", `"o"`, "text 256"}, {"ttl_ms", `5000`, "500 to 86400000"}, {"labels", `{"a":"b"}`, "labels"}}},
	"/v1/session/close":    {{{"session", `"00112233445566778899aabbccddeeff"`, "text 128"}}},
	"/v1/raise":            {{{"above", `1000`, "1 to 4503599627370496"}, {"reason", `"r"`, "text 1024"}}},
	"/v1/cluster/transfer": {{{"to", `"nobody"`, "text 512"}}},
	"/v1/cluster/remove":   {{{"name", `"nobody"`, "text 512"}, {"force", `true`, "bool"}}},
}

// object writes fields, with those of put in the place of the ones they name.
func object(fields []field, put ...field) string {
	var parts []string
	for _, f := range fields {
		for _, p := range put {
			if p.name == f.name {
				f = p
			}
		}
		parts = append(parts, fmt.Sprintf("%q:%s", f.name, f.value))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// Values of a wrong type or notation, by what is wanted. What is no integer in plain digits is refused and never rounded
// (D03, D07).
var (
	notIntegers = []string{
		`null`, `true`, `false`, `"5"`, `"5s"`, `""`, `[]`, `{}`, `[5000]`, `{"ms":5000}`, `5.0`, `5000.5`, `5e3`, `5E3`, `5e+3`, `50000e-1`, `+5000`, `05000`,
		`00`, `-0`, `0x1388`, `0b1`, `0o7`, `5_000`, `.5`, `5.`, `-`, `NaN`, `Infinity`, `-Infinity`, `5000ms`, `５０００`,
	}
	beyondIntegers = []string{`-1`, `-5000`, `-9223372036854775808`, `9223372036854775807`, `9223372036854775808`, `18446744073709551615`,
		`18446744073709551616`, `18446744073709556616`, `99999999999999999999999999999999999999`}
	notTexts = []string{
		`null`, `true`, `0`, `5`, `-1.5`, `[]`, `{}`, `["n"]`, `{"n":1}`, `""`, `n`, `'n'`, `"\u0000"`, `"a\u0000b"`, `"a\nb"`, `"\t"`, `"\r"`, `"\u001b[31m"`, `"\u007f"`, `"\u0085"`,
		"\"a\nb\"", "\"\x00\"", "\"\x7f\"", "\"\xc2\x85\"", `"\ud800"`, `"\udc00"`, `"\ud800x"`, `"\ud800\u0041"`, `"\udc00\ud800"`, `"\ud800\ud800\udc00"`,
		"\"\xff\"", "\"a\xc3\"", "\"\xc0\xaf\"", "\"\xed\xa0\x80\"", "\"\xf5\x80\x80\x80\"", `"\x41"`, `"\u12"`, `"\u12g4"`,
	}
	notTokens = []string{
		`null`, `true`, `""`, `0`, `"0"`, `-1`, `"-1"`, `1.0`, `"1.0"`, `1e3`, `"1e3"`, `01`, `"01"`, `"+1"`, `" 1"`, `"1 "`, `"0x1"`, `0x1`, `[1]`, `{}`,
		`9007199254740992`, `"9007199254740992"`, `9007199254740993`, `"9007199254740993"`, `18446744073709551616`, `18446744073709551617`, `"18446744073709551617"`,
	}
	notBools  = []string{`null`, `0`, `1`, `"true"`, `"yes"`, `True`, `TRUE`, `tru`, `truee`, `[]`, `{}`, `[true]`}
	notValues = []string{
		`null`, `true`, `0`, `5`, `[]`, `{}`, `["v"]`, `v`, `'v'`, `"\u0000"`, `"a\u0000b"`, "\"a\nb\"", "\"\x00\"", `"\ud800"`, `"\udc00"`, "\"\xff\"", "\"\xc0\xaf\"", `"\x41"`, `"\u12"`,
	}
	notLabels = []string{`null`, `true`, `1`, `"a"`, `[]`, `[{"a":"b"}]`, `["a"]`}
	notLists  = []string{`null`, `true`, `1`, `"n"`, `{}`, `[]`, `{"name":"n"}`}
)

// badValues gives everything that a field of a kind must not take.
func badValues(kind string) []string {
	var low, high, most int64
	switch {
	case kind == "token":
		return notTokens
	case kind == "bool":
		return notBools
	case kind == "list":
		return notLists
	case kind == "labels":
		return notLabels
	case scan(kind, "value %d", &most):
		return append([]string{quoted(strings.Repeat("v", int(most)+1)), quoted(strings.Repeat("ä", int(most)/2) + "v")}, notValues...)
	case scan(kind, "0 or %d to %d", &low, &high):
		return append(badValues(fmt.Sprintf("%d to %d", low, high)), "1")
	case kind == "mode":
		return append([]string{`"Exclusive"`, `"EXCLUSIVE"`, `"write"`, `" shared"`, `"shared "`}, notTexts...)
	case scan(kind, "text %d", &most):
		return append([]string{quoted(strings.Repeat("n", int(most)+1)), quoted(strings.Repeat("n", 60_000)), quoted(strings.Repeat("ä", int(most)/2) + "n")}, notTexts...)
	case scan(kind, "%d to %d", &low, &high):
		values := append(slices.Clone(notIntegers), beyondIntegers[:3]...)
		values = append(values, fmt.Sprint(high+1), fmt.Sprint(low-1))
		values = append(values, beyondIntegers[3:]...)
		return slices.DeleteFunc(values, func(text string) bool { // a number may be below zero
			n, err := strconv.ParseInt(text, 10, 64)
			return err == nil && n >= low && n <= high && fmt.Sprint(n) == text
		})
	}
	panic(kind)
}

func scan(text, format string, into ...any) bool {
	n, err := fmt.Sscanf(text, format, into...)
	return err == nil && n == len(into)
}

// untouched runs f and checks that it cost no log entry on any node and left every lock as it was.
func (a *api) untouched(what string, f func()) {
	a.t.Helper()
	before := a.locked()
	a.costs(0, what, f)
	if after := a.locked(); after != before {
		a.t.Errorf("%s: the locks were\n%s and are\n%s", what, before, after)
	}
}

// locked tells who holds what.
func (a *api) locked() string {
	a.t.Helper()
	var page transport.LocksResponse
	a.MustGet(0, "/v1/locks?limit=1000").Into(a.t, &page)
	var text strings.Builder
	for _, l := range page.Locks {
		fmt.Fprintf(&text, "%q %s %d:", l.Name, l.Mode, l.QueueLength)
		for _, h := range l.Holders {
			fmt.Fprintf(&text, " %s/%s/%d", h.Owner, h.Session, h.Token)
		}
		text.WriteString("\n")
	}
	return text.String()
}

// holdSome takes a lock for so long that no tick is due while a test runs.
func (a *api) holdSome() {
	a.t.Helper()
	a.MustPost(0, 200, "/v1/acquire", `{"name":"n","owner":"holder","ttl_ms":86400000}`)
	a.MustPost(0, 200, "/v1/acquire", `{"name":"m","mode":"shared","limit":5,"owner":"holder","ttl_ms":86400000}`)
}

func invalidField(name string) string {
	if name == "" {
		return `{"code":"invalid"}`
	}
	return fmt.Sprintf(`{"code":"invalid","field":%q}`, name)
}

func TestAPIBadFields(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.holdSome()
		for _, path := range slices.Sorted(maps.Keys(goodBodies)) {
			for _, fields := range goodBodies[path] {
				a.untouched(path, func() {
					nodes := a.Size()
					if testing.Short() {
						nodes = 1 // under the race detector; what is refused is refused before nodes differ
					}
					for node := range nodes {
						for _, f := range fields {
							for _, value := range badValues(f.kind) {
								a.step(node, step{"POST " + path, object(fields, field{f.name, value, ""}), nil, 400, invalidField(f.name)})
							}
							// In another case, under another name, twice.
							for _, name := range []string{strings.ToUpper(f.name), strings.ToUpper(f.name[:1]) + f.name[1:], f.name + "ec", "x_" + f.name, f.name + " "} {
								a.step(node, step{"POST " + path, object(append(slices.Clone(fields), field{name, f.value, ""})), nil, 400, invalidField(name)})
							}
							a.step(node, step{"POST " + path, object(append(slices.Clone(fields), f)), nil, 400, invalidField(f.name)})
						}
					}
				})
			}
		}
	})
}

// A field that says nothing must not be guessed.
func TestAPIMissingAndContradictingFields(t *testing.T) {
	const id = `"00112233445566778899aabbccddeeff"`
	locks65 := `{"name":"0"}`
	for i := range 64 {
		locks65 += fmt.Sprintf(`,{"name":"%d"}`, i+1)
	}
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.holdSome()
		a.untouched("missing and contradicting fields", func() {
			for node := range a.Size() {
				for _, c := range []struct{ path, body, field string }{
					{"/v1/acquire", `{}`, "name"},
					{"/v1/acquire", `{"name":"n"}`, "owner"},
					{"/v1/acquire", `{"owner":"o"}`, "name"},
					{"/v1/acquire", `{"name":"n","owner":"o","limit":2}`, "limit"},
					{"/v1/acquire", `{"name":"n","owner":"o","mode":"exclusive","limit":2}`, "limit"},
					{"/v1/acquire", `{"name":"n","owner":"o","request":1}`, "request"},
					{"/v1/acquire", `{"name":"n","owner":"o","done":1}`, "done"},
					{"/v1/acquire", `{"name":"n","owner":"o","task":"t"}`, "task"},
					{"/v1/acquire", `{"name":"n","session":` + id + `}`, "request"},
					{"/v1/acquire", `{"name":"n","session":` + id + `,"request":1,"owner":"o"}`, "owner"},
					{"/v1/acquire", `{"name":"n","session":` + id + `,"request":1,"ttl_ms":5000}`, "ttl_ms"},
					{"/v1/acquire", `{"name":"n","session":` + id + `,"request":1,"done":2}`, "done"},
					{"/v1/acquire", `{"name":"n","session":"zz","request":1}`, "session"},
					{"/v1/acquire", `{"name":"n","session":"00112233445566778899aabbccddeeff00","request":1}`, "session"},
					{"/v1/acquire", `{"name":"n","session":"00112233445566778899AABBCCDDEEFF","request":1}`, "session"},
					{"/v1/acquire", `{"name":"n","locks":[{"name":"n"}],"owner":"o"}`, "name"},
					{"/v1/acquire", `{"locks":[{"name":"n"}],"mode":"shared","owner":"o"}`, "mode"},
					{"/v1/acquire", `{"locks":[{"name":"n"}],"limit":1,"owner":"o"}`, "limit"},
					{"/v1/acquire", `{"locks":[{"name":"n"},{"name":"m"},{"name":"n"}],"owner":"o"}`, "locks[2].name"},
					{"/v1/acquire", `{"locks":[{"name":"n"},{}],"owner":"o"}`, "locks[1].name"},
					{"/v1/acquire", `{"locks":[{"name":"n","mode":"x"}],"owner":"o"}`, "locks[0].mode"},
					{"/v1/acquire", `{"locks":[{"name":"n","limit":2}],"owner":"o"}`, "locks[0].limit"},
					{"/v1/acquire", `{"locks":[{"name":"n","token":2}],"owner":"o"}`, "locks[0].token"},
					{"/v1/acquire", `{"locks":[{"name":"n","name":"m"}],"owner":"o"}`, "locks[0].name"},
					{"/v1/acquire", `{"locks":["n"],"owner":"o"}`, "locks[0]"},
					{"/v1/acquire", `{"locks":[null],"owner":"o"}`, "locks[0]"},
					{"/v1/acquire", `{"locks":[[{"name":"n"}]],"owner":"o"}`, "locks[0]"},
					{"/v1/acquire", `{"locks":[{"name":"n"},],"owner":"o"}`, "locks[1]"},
					{"/v1/acquire", `{"locks":[` + locks65 + `],"owner":"o"}`, "locks"},
					{"/v1/renew", `{}`, "session"},
					{"/v1/renew", `{"session":"zz"}`, "session"},
					{"/v1/release", `{}`, "session"},
					{"/v1/release", `{"token":1}`, "session"},
					{"/v1/release", `{"session":` + id + `}`, "token"},
					{"/v1/release", `{"session":` + id + `,"name":"n"}`, "token"},
					{"/v1/release", `{"session":"zz","token":1}`, "session"},
					{"/v1/cancel", `{}`, "session"},
					{"/v1/cancel", `{"session":` + id + `}`, "request"},
					{"/v1/cancel", `{"request":1}`, "session"},
					{"/v1/cancel", `{"session":"zz","request":1}`, "session"},
					{"/v1/convert", `{}`, "session"},
					{"/v1/convert", `{"session":` + id + `}`, "request"},
					{"/v1/convert", `{"session":` + id + `,"request":1}`, "of"},
					{"/v1/convert", `{"session":` + id + `,"request":1,"of":1,"token":1,"name":"n","mode":"shared"}`, "of"},
					{"/v1/convert", `{"session":` + id + `,"request":2,"of":1}`, "token"},
					{"/v1/convert", `{"session":` + id + `,"request":2,"of":1,"token":1}`, "name"},
					{"/v1/convert", `{"session":` + id + `,"request":2,"of":1,"token":1,"name":"n"}`, "mode"},
					{"/v1/convert", `{"session":` + id + `,"request":2,"of":1,"token":1,"name":"n","mode":"exclusive","limit":2}`, "limit"},
					{"/v1/convert", `{"session":"zz","request":2,"of":1,"token":1,"name":"n","mode":"exclusive"}`, "session"},
					{"/v1/convert", `{"session":` + id + `,"request":2,"of":1,"token":1,"name":"n","mode":"exclusive","done":1}`, "done"},
					{"/v1/check", `{}`, "name"},
					{"/v1/check", `{"name":"n"}`, "token"},
					{"/v1/check", `{"token":1}`, "name"},
					{"/v1/value", `{}`, "session"},
					{"/v1/value", `{"session":` + id + `,"name":"n","value":"v"}`, "token"},
					{"/v1/value", `{"session":` + id + `,"token":1,"value":"v"}`, "name"},
					{"/v1/value", `{"session":` + id + `,"token":1,"name":"n"}`, "value"},
					{"/v1/force-release", `{}`, "name"},
					{"/v1/force-release", `{"name":"n","reason":"r"}`, "token"},
					{"/v1/force-release", `{"name":"n","token":1}`, "reason"},
					{"/v1/session", `{"owner":"o","labels":{"a":1}}`, "labels.a"},
					{"/v1/session", `{"owner":"o","labels":{"a":"b","a":"b"}}`, "labels.a"},
					{"/v1/session", `{"owner":"o","labels":{"":"b"}}`, "labels."},
					{"/v1/session", `{}`, "owner"},
					{"/v1/session/close", `{}`, "session"},
					{"/v1/session/close", `{"session":"zz"}`, "session"},
					// It ends every hold: what it does must be said (R10).
					{"/v1/raise", `{}`, "above"},
					{"/v1/raise", `{"reason":"r"}`, "above"},
					{"/v1/raise", `{"above":1000}`, "reason"},
					{"/v1/cluster/remove", `{}`, "name"},
					{"/v1/cluster/remove", `{"force":true}`, "name"},
				} {
					a.step(node, step{"POST " + c.path, c.body, nil, 400, invalidField(c.field)})
				}
			}
		})
	})
}

func TestAPIBadBodies(t *testing.T) {
	apiBubble(t, pawltest.Options{}, func(a *api) {
		a.holdSome()
		for _, path := range slices.Sorted(maps.Keys(goodBodies)) {
			good := object(goodBodies[path][0])
			a.untouched(path, func() {
				for node := range a.Size() {
					for _, body := range []string{
						"", " ", "\n\n", "null", "true", "1", `"x"`, "[]", "[" + good + "]", "{", "}", "{,}", "{]", `{"`, `{"name"`, `{"name"}`, `{name:"n"}`, `{'name':'n'}`,
						"\ufeff" + good, "\ufeff", "\x00" + good, good + "\x00", good + good, good + "," + good, good + "x", good + "}", good + "]", good + " null", good + "\n{}\n",
						good[:len(good)-1], good[:len(good)-1] + ",}", "//\n" + good, "/* */" + good, good + "// end", "(" + good + ")", "name=n&owner=o", "<a/>",
						"{\x00}", "\xff\xfe" + good, utf16(good), strings.Repeat("[", 60_000), strings.Repeat(`{"locks":[`, 6_000), "\v" + good, "\u00a0" + good, `{"":1}`, `{"\ud800":1}`, `{"\u0000":1}`,
						"{\"\xff\":1}", "---\nname: n\n", "{\"name\"\v:\"n\"}", `{"owner":"\"}`, `{"ttl_ms":5,000}`,
					} {
						s := step{"POST " + path, body, nil, 400, `{"code":"invalid"}`}
						a.refusedBody(node, s)
					}
					for _, body := range []string{
						good + strings.Repeat(" ", transport.MaxBody+1-len(good)),
						strings.Repeat(" ", transport.MaxBody+1),
						strings.Repeat("x", 10<<20),
						`{"owner":"` + strings.Repeat("o", 10<<20) + `"}`,
					} {
						a.step(node, step{"POST " + path, body, nil, 413, `{"code":"too_large"}`})
						// Without a length, in chunks.
						answer, err := sendTo(context.Background(), a.client, a.URL(node), "POST", path, io.MultiReader(strings.NewReader(body)))
						if err != nil {
							a.t.Errorf("%s in chunks to %s: %v", path, a.Name(node), err)
							continue
						}
						a.check(node, step{"POST " + path, "chunks", nil, 413, `{"code":"too_large"}`}, answer)
					}
				}
			})
		}
	})
}

// refusedBody is a step whose error may or may not name a field: where it is found depends on what was read so far.
func (a *api) refusedBody(node int, s step) {
	a.t.Helper()
	method, path, _ := strings.Cut(s.call, " ")
	answer, err := a.send(context.Background(), node, method, path, s.body)
	if err != nil {
		a.t.Fatal(err)
	}
	if field, named := answer.Field("field").(string); named {
		s.want = fmt.Sprintf(`{"code":"invalid","field":%s}`, quoted(field))
	}
	a.check(node, s, answer)
}

func utf16(text string) string {
	var b strings.Builder
	for _, r := range text {
		b.WriteByte(byte(r))
		b.WriteByte(0)
	}
	return b.String()
}

// A body of exactly the most that is allowed, with every documented way to write the same, is taken.
func TestAPIBodiesAtTheBounds(t *testing.T) {
	name := strings.Repeat("n", transport.MaxName)
	apiBubble(t, pawltest.Options{}, func(a *api) {
		for node := range a.Size() {
			grant := func(name, owner, ttl string) string {
				return `{"granted":true,"session":"<session:s>","token":"<token:t>","locks":[{"name":` + quoted(name) + `,"mode":"exclusive","token":"<token>"}],"ttl_ms":` + ttl +
					`,"lease_ms":` + ttl + `,"owner":` + quoted(owner) + `,"replayed":false}`
			}
			full := `{"name":"n","owner":"o"}`
			for _, c := range []struct{ body, want string }{
				{full + strings.Repeat("\n", transport.MaxBody-len(full)), grant("n", "o", "15000")},
				{"\r\n\t {\r\n\t\"name\" :\t\"\\u006e\" ,\n\"owner\":\"\\u006f\"\n} \r\n", grant("n", "o", "15000")},
				{`{"name":"` + name + `","owner":"` + strings.Repeat("o", transport.MaxOwner) + `"}`, grant(name, strings.Repeat("o", transport.MaxOwner), "15000")},
				{`{"name":"\ud83d\ude00","owner":"\/\"\\"}`, grant("😀", `/"\`, "15000")},
				{`{"name":"n","owner":"o","ttl_ms":500}`, grant("n", "o", "500")},
				{`{"name":"n","owner":"o","ttl_ms":999}`, grant("n", "o", "999")},
				{`{"name":"n","owner":"o","ttl_ms":1000}`, grant("n", "o", "1000")},
				{`{"name":"n","owner":"o","ttl_ms":1001}`, grant("n", "o", "1001")},
				{`{"name":"n","owner":"o","ttl_ms":86400000,"wait_ms":300000}`, grant("n", "o", "86400000")},
			} {
				a.step(node, step{"POST /v1/acquire", c.body, nil, 200, c.want})
				a.step(node, step{"POST /v1/release", `{"session":"${s}","token":${t}}`, nil, 200, `{"released":["<text>"]}`})
			}
			var locks []string
			for i := range transport.MaxLocks {
				locks = append(locks, fmt.Sprintf(`{"name":"%02d"}`, i))
			}
			answer := a.MustPost(node, 200, "/v1/acquire", `{"locks":[`+strings.Join(locks, ",")+`],"owner":"o"}`)
			var grants transport.AcquireResponse
			if answer.Into(t, &grants); len(grants.Locks) != transport.MaxLocks {
				t.Errorf("%d locks granted", len(grants.Locks))
			}
			a.MustPost(node, 200, "/v1/release", fmt.Sprintf(`{"session":%q,"token":%d}`, grants.Session, grants.Locks[0].Token))
		}
	})
}
