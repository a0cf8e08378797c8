package main

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server"
)

// configured runs configure over a command line, an environment and a file.
func configured(t *testing.T, arguments []string, environment map[string]string, file string) (*configuration, []setting, map[string]string, error) {
	t.Helper()
	c := &configuration{}
	list := settings(c)
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	addFlags(flags, list)
	if err := flags.Parse(arguments); err != nil {
		t.Fatalf("parsing %q: %v", arguments, err)
	}
	origins, err := configure(list, flags, func(name string) string { return environment[name] }, "pawl.yaml", []byte(file))
	return c, list, origins, err
}

func TestConfigurePrecedence(t *testing.T) {
	for _, test := range []struct {
		name        string
		arguments   []string
		environment map[string]string
		file        string
		want        int
		origin      string
	}{
		{"default", nil, nil, "", 4096, "default"},
		{"file", nil, nil, "name: n1\nmax-conns: 100", 100, "pawl.yaml:2"},
		{"variable", nil, map[string]string{"PAWL_MAX_CONNS": "200"}, "max-conns: 100", 200, "PAWL_MAX_CONNS"},
		{"empty variable", nil, map[string]string{"PAWL_MAX_CONNS": ""}, "max-conns: 100", 100, "pawl.yaml:1"},
		{"flag", []string{"--max-conns=300"}, map[string]string{"PAWL_MAX_CONNS": "200"}, "max-conns: 100", 300, "--max-conns"},
		{"flag that says the default", []string{"--max-conns=4096"}, map[string]string{"PAWL_MAX_CONNS": "200"}, "", 4096, "--max-conns"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, _, origins, err := configured(t, test.arguments, test.environment, test.file)
			if err != nil || c.MaxConns != test.want || origins["max-conns"] != test.origin {
				t.Fatalf("got %d from %q and %v, want %d from %q", c.MaxConns, origins["max-conns"], err, test.want, test.origin)
			}
		})
	}
}

func TestConfigureAllKinds(t *testing.T) {
	c, _, _, err := configured(t, []string{"--insecure"}, map[string]string{"PAWL_API_URL": "https://locks.example"},
		"# the node\nname: n2\npeers:\n  - n1=a:7800\n  - n2=b:7800\nprofile: slow\ntoken-floor: 12\nlimit-waiters: 7\nlog-format: json\n")
	if err != nil {
		t.Fatal(err)
	}
	if !c.Insecure || c.APIURL != "https://locks.example" || c.Name != "n2" || len(c.Peers) != 2 || c.Peers[1] != (server.Peer{Name: "n2", Address: "b:7800"}) ||
		c.Profile != "slow" || c.TokenFloor != 12 || c.Limits.Waiters != 7 || c.logFormat != "json" {
		t.Fatalf("got %+v", c)
	}
}

func TestConfigureRefuses(t *testing.T) {
	for _, test := range []struct{ name, file, variable, text, want string }{
		{name: "unknown key", file: "name: n1\nnmae: n2", want: `pawl.yaml:2: there is no setting "nmae"`},
		{name: "key twice", file: "name: n1\nname: n2", want: "line 2: name stands in line 1 already"},
		{name: "mapping as value", file: "peers:\n  n1: a:7800", want: "peers has no plain value"},
		{name: "no value", file: "name:", want: "name has no plain value"},
		{name: "list where one is meant", file: "name: [n1, n2]", want: "name is one value, not a list"},
		{name: "not a mapping", file: "- name", want: "not a list of lines"},
		{name: "two documents", file: "name: n1\n---\nname: n2", want: "more than one document"},
		{name: "not YAML", file: "name: [", want: "pawl.yaml: "},
		{name: "number with a unit in the file", file: "max-conns: 5k", want: `pawl.yaml:1: "5k": must be a whole number`},
		{name: "fraction", file: "max-conns: 1.5", want: "must be a whole number"},
		{name: "bad variable", variable: "PAWL_INSECURE", text: "yes", want: `PAWL_INSECURE: "yes": must be true or false`},
		{name: "bad word", variable: "PAWL_PROFILE", text: "quick", want: "must be one of default, fast, slow"},
		{name: "bad peers", variable: "PAWL_PEERS", text: "n1", want: "PAWL_PEERS"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, _, _, err := configured(t, nil, map[string]string{test.variable: test.text}, test.file)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want something with %q", err, test.want)
			}
		})
	}
}

func TestConfigureAcceptsAnEmptyFile(t *testing.T) {
	for _, file := range []string{"", "\n", "# nothing\n", "---\n"} {
		if _, _, _, err := configured(t, nil, nil, file); err != nil {
			t.Errorf("%q: %v", file, err)
		}
	}
}

// What --print-config writes is a file that means the same.
func TestPrintedConfigurationRoundTrip(t *testing.T) {
	first, list, origins, err := configured(t, []string{"--name=true", "--peers=n1=a:1,n2=b:2", "--insecure", "--data=/a b#c", "--api-url=http://x:1"}, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	var printed bytes.Buffer
	if err := printConfiguration(&printed, list, origins); err != nil {
		t.Fatal(err)
	}
	second, list, origins, err := configured(t, nil, nil, printed.String())
	if err != nil {
		t.Fatalf("reading back:\n%s\n%v", printed.String(), err)
	}
	for _, s := range list {
		if !strings.HasPrefix(origins[s.name], "pawl.yaml:") {
			t.Errorf("%s comes from %s", s.name, origins[s.name])
		}
	}
	if !reflect.DeepEqual(first, second) {
		t.Fatalf("%+v became %+v through:\n%s", first, second, printed.String())
	}
}

// The table's defaults are passed on as they are, so they must be what the state machine itself would choose.
func TestDefaultLimitsAreTheStateMachines(t *testing.T) {
	c := &configuration{}
	settings(c)
	want := fsm.DefaultLimits
	if c.Limits.Sessions != want.Sessions || c.Limits.Requests != want.Requests || c.Limits.Waiters != want.Waiters || c.Limits.Holders != want.Holders {
		t.Fatalf("got %+v, want %+v", c.Limits, want)
	}
}
