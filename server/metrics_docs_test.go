package server_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/pawl-lock/pawl/server/pawltest"
)

var rewrite = flag.Bool("rewrite", false, "write the table of docs/metrics.md anew")

// The table of docs/metrics.md is that of the registry, where every family is from the start but the one that needs a
// request first.
func TestMetricsAreDocumented(t *testing.T) {
	const path, begins, ends = "../docs/metrics.md", "<!-- metrics -->\n", "<!-- end -->"
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(content), begins)
	old, after, ended := strings.Cut(rest, ends)
	if !found || !ended {
		t.Fatalf("%s has no place for the table", path)
	}
	var table string
	apiBubble(t, pawltest.Options{Nodes: 1}, func(a *api) {
		a.MustGet(0, "/livez") // the family of requests has no member before there was one
		if table, err = a.Node(0).MetricsTable(); err != nil {
			t.Fatal(err)
		}
	})
	if strings.Count(table, "\n") < 40 {
		t.Errorf("the table is too short:\n%s", table)
	}
	if old != table && !*rewrite {
		t.Errorf("the table in %s is not that of the code; go test ./server -run TestMetricsAreDocumented -rewrite", path)
	}
	if *rewrite {
		if err := os.WriteFile(path, []byte(before+begins+table+ends+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
