package runner

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pawl-lock/pawl/jepsen/check"
	"github.com/pawl-lock/pawl/jepsen/workload"
)

func TestMatrix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	lines := []string{
		`{"spec":{"workload":"mutex","fault":"mixed","cluster":"virtual","nodes":3},"outcome":"valid","operations":700,"took":600000000000}`,
		`{"spec":{"workload":"mutex","fault":"mixed","cluster":"virtual","nodes":3},"outcome":"invalid","operations":11,"took":600000000000}`,
		`{"spec":{"workload":"rw","fault":"kill-one","cluster":"virtual","nodes":3},"outcome":"valid","operations":5,"took":600000000000}`,
		`{"spec":{"workload":"unfenced","fault":"kill-one+delay","cluster":"processes","nodes":5},"outcome":"valid","operations":9,"took":60000000000,"lost":4}`,
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := Matrix(&out, []string{path}); err != nil {
		t.Fatal(err)
	}
	want := `| processes, 5 nodes | unfenced | time |
|---|---|---|
| kill-one+delay | 9, 4 lost, as it must | 1m0s |

| virtual, 3 nodes | mutex | rw | time |
|---|---|---|---|
| kill-one | – | 5 | 10m0s |
| mixed | 2 × 711 **1 invalid** | – | 20m0s |

`
	if out.String() != want {
		t.Errorf("matrix\n%s\nwant\n%s", out.String(), want)
	}
	if err := Matrix(&out, []string{filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("a file that is not there makes a matrix")
	}
}

// A run that must fail is not called valid: neither when it did nor when it did not.
func TestRunsThatMustFailSayWhatTheyDid(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	w, err := workload.ByName("unfenced")
	if err != nil {
		t.Fatal(err)
	}
	for outcome, want := range map[check.Outcome]string{
		check.Invalid: "lost 13 updates, as it must",
		check.Valid:   "valid, but nothing was lost",
	} {
		r := Result{
			Spec:     Spec{Workload: w.Name(), Fault: "pause-client", Cluster: "processes", Nodes: 3, Store: "bolt"},
			Verdicts: []check.Verdict{{Checker: w.MustFail() + mustFail, Outcome: check.Valid, Why: "it is gone"}},
			Expected: check.Verdict{Checker: w.MustFail(), Outcome: outcome, Why: "it is gone", Figures: map[string]int64{}},
		}
		if outcome == check.Invalid {
			r.Expected.Figures[lostUpdates] = 13
		}
		if got := r.Headline(); !strings.HasPrefix(got, want) {
			t.Errorf("the run says %q, want %q", got, want)
		}
		dir := t.TempDir()
		if err := errors.Join(r.Report(dir), r.Append(path)); err != nil {
			t.Fatal(err)
		}
		page, err := os.ReadFile(filepath.Join(dir, "index.html"))
		if err != nil || !strings.Contains(string(page), "<b>"+want) || strings.Contains(string(page), ">failed, as it must<") != (outcome == check.Invalid) {
			t.Errorf("the page does not say %q: %v", want, err)
		}
		r.Verdicts = append(r.Verdicts, check.Verdict{Checker: "logs", Outcome: check.Invalid})
		if got := r.Headline(); got != string(check.Invalid) {
			t.Errorf("with another checker that is not content it says %q", got)
		}
	}
	var table strings.Builder
	if err := Table(&table, []string{path}); err != nil || !strings.Contains(table.String(), "| 1 had to lose updates and did: 13, 1 had to lose updates and did not, which may be chance |") {
		t.Errorf("%v\n%s", err, table.String())
	}
}
