package server_test

import "testing"

// The comparison that all tables of the API rest on refuses what it must.
func TestAPIMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, body string
		same          bool
	}{
		{`{"a":1,"b":"<text>"}`, `{"b":"x","a":1}`, true},
		{`{"a":1}`, `{"a":1,"b":2}`, false},
		{`{"a":1,"b":2}`, `{"a":1}`, false},
		{`{"a":1}`, `{"a":1.0}`, false},
		{`{"a":1}`, `{"a":"1"}`, false},
		{`{"a":"1"}`, `{"a":1}`, false},
		{`{"a":9007199254740991}`, `{"a":9007199254740991}`, true},
		{`{"a":[]}`, `{"a":null}`, false},
		{`{"a":[]}`, `{"a":[]}`, true},
		{`{"a":[1]}`, `{"a":[1,2]}`, false},
		{`{"a":"<list>"}`, `{"a":[1,2]}`, true},
		{`{"a":"<list>"}`, `{"a":[]}`, true},
		{`{"a":"<list>"}`, `{"a":null}`, false},
		{`{"a":"<list>"}`, `{"a":"x"}`, false},
		{`{"a":{"b":1}}`, `{"a":[]}`, false},
		{`{"a":true}`, `{"a":false}`, false},
		{`{"a":"<token>"}`, `{"a":0}`, false},
		{`{"a":"<token>"}`, `{"a":"7"}`, false},
		{`{"a":"<token>"}`, `{"a":7}`, true},
		{`{"a":"<number>"}`, `{"a":-1}`, false},
		{`{"a":"<number>"}`, `{"a":1.5}`, false},
		{`{"a":"<text>"}`, `{"a":""}`, false},
		{`{"a":"<text>"}`, `{"a":7}`, false},
		{`{"a":"<session>"}`, `{"a":"00112233445566778899AABBCCDDEEFF"}`, false},
		{`{"a":"<short>"}`, `{"a":"00112233"}`, true},
		{`{"a":"<nonsense>"}`, `{"a":"x"}`, false},
		{`{"a":1}`, `{"a":1}{}`, false},
		{`{"a":1}`, ``, false},
	} {
		if problem := matchJSON(c.pattern, []byte(c.body), map[string]string{}); (problem == "") != c.same {
			t.Errorf("%s and %s: %q", c.pattern, c.body, problem)
		}
	}
}
