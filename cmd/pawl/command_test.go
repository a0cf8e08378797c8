package main

import (
	"strings"
	"testing"
)

func TestCommandLinesThatCannotBeMeant(t *testing.T) {
	// Nobody listens there: a command that would call answers 5 instead of 2.
	const nowhere = "--endpoints=http://127.0.0.1:1"
	for _, test := range []struct{ line, want string }{
		{"nonsense", `unknown command "nonsense"`},
		{"acquire", "requires at least 1 arg"},
		{"acquire a --wait -1s", "--wait -1s is not a whole number of milliseconds"},
		{"acquire a --ttl 1500us", "--ttl 1.5ms is not a whole number of milliseconds"},
		{"acquire a --ttl 1ms", "ttl_ms must be from 500"},
		{"acquire a --wait 6m", "wait_ms must be from 0 to 300000"},
		{"acquire a --limit 3", "--limit goes with --shared"},
		{"acquire a --shared --limit -3", "--limit -3 is below 1"},
		{"acquire a a", "(invalid)"},
		{"acquire a --ttl 5", "missing unit"},
		{"release --token 5", "--session or PAWL_SESSION is required"},
		{"release --session s --token 05", "--token: a token is a plain decimal integer"},
		{"release --session s", "(invalid)"},
		{"renew", "--session or PAWL_SESSION is required"},
		{"lock", "accepts 1 arg"},
		{"why", "accepts 1 arg"},
		{"acquire a --priority 1001", "priority must be from -1000 to 1000"},
		{"acquire a --max-hold 1ms", "max_hold_ms must be 0 or from 500"},
		{"acquire a --lock-delay 25h", "lock_delay_ms must be from 0"},
		{"acquire a --lock-delay 1us", "--lock-delay 1µs is not a whole number"},
		{"convert a --token 5", "--session or PAWL_SESSION is required"},
		{"convert a --session s", `required flag(s) "token"`},
		{"convert a --session s --token 5 --of 1", "request is required"},
		{"convert a --session s --token 5 --of 1 --request 1", "of must be another number"},
		{"convert a --session s --token x --of 1 --request 2", "--token: a token is a plain decimal integer"},
		{"check a", "accepts 2 arg"},
		{"check a 0", "token"},
		{"check a 05", "TOKEN: a token is a plain decimal integer"},
		{"force-release a --token 5", `required flag(s) "reason"`},
		{"force-release a --reason x", `required flag(s) "token"`},
		{"force-release a --token 0 --reason x", "token is required"},
		{"locks --sort age --limit 1 --endpoints ftp://x", "http://host:port"},
		{"locks --endpoints ftp://x", "http://host:port"},
		{"raise --above 5", `required flag(s) "reason"`},
		{"raise --above 4503599627370497 --reason x", "above"},
		{"events x", "unknown command"},
		{"forget-promise --name n1", `required flag(s) "data"`},
	} {
		t.Run(test.line, func(t *testing.T) {
			arguments := strings.Fields(test.line)
			if !strings.Contains(test.line, "--endpoints") {
				arguments = append(arguments, nowhere)
			}
			r := pawl(t.Context(), arguments...)
			if r.code != exitUsage || !strings.Contains(r.stderr, test.want) || r.stdout != "" {
				t.Errorf("got %+v, want exit code 2 and %q", r, test.want)
			}
			if strings.Count(r.stderr, "\n") != 1 {
				t.Errorf("not one line: %q", r.stderr)
			}
		})
	}
}

func TestEndpoints(t *testing.T) {
	for _, test := range []struct {
		flag     []string
		variable string
		want     string
	}{
		{nil, "", defaultEndpoint},
		{nil, "http://a:1, http://b:2,", "http://a:1 http://b:2"},
		{[]string{"http://c:3"}, "http://a:1", "http://c:3"},
	} {
		p := &program{endpoints: test.flag, getenv: func(string) string { return test.variable }}
		if got := strings.Join(p.targets(), " "); got != test.want {
			t.Errorf("%v and %q: got %s, want %s", test.flag, test.variable, got, test.want)
		}
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if out := must(t, "completion", shell); !strings.Contains(out, "pawl") {
			t.Errorf("%s: no completion", shell)
		}
	}
}

func TestHelpListsTheExitCodes(t *testing.T) {
	out := must(t, "--help")
	for _, row := range exits() {
		if !strings.Contains(out, row.meaning) {
			t.Errorf("the help does not say %q", row.meaning)
		}
	}
}

func TestVersion(t *testing.T) {
	if out := must(t, "version"); !strings.HasPrefix(out, "pawl ") {
		t.Errorf("got %q", out)
	}
}
