//go:build unguarded

package script_test

import (
	"slices"
	"testing"

	"github.com/pawl-lock/pawl/jepsen/check"
	"github.com/pawl-lock/pawl/jepsen/script"
)

// Without its guard each schedule comes to the fault, and the checkers that are named here see it.
func TestScriptsFindWhatTheGuardsPrevent(t *testing.T) {
	for _, c := range []struct {
		guard, script string
		seed          uint64
		seen          []string // none: it is valid
	}{
		{"D1", "one-index", 1, []string{"digests"}},
		{"D2", "stale-read", 1, []string{"reads"}},
		{"D3", "refused-append", 1, nil}, // the node that could not write stops, and answers nothing
		{"fail-stop", "refused-append", 1, nil},
		{"D3,fail-stop", "refused-append", 1, []string{"digests"}},
		{"D4", "half-vote", 3, []string{"exclusion", "digests"}},
		{"D7", "stale-tail", 1, []string{"digests"}},
	} {
		t.Run(c.guard, func(t *testing.T) {
			t.Setenv("PAWL_UNGUARDED", c.guard)
			s, err := script.ByName(c.script)
			if err != nil {
				t.Fatal(err)
			}
			var saw []string
			result := play(t, s, c.seed)
			for _, v := range result.Verdicts {
				if v.Outcome != check.Valid {
					saw = append(saw, v.Checker)
				}
				t.Logf("%s: %s: %s %v", v.Outcome, v.Checker, v.Why, v.Figures)
			}
			if len(c.seen) == 0 && len(saw) > 0 {
				t.Errorf("%v have seen something", saw)
			}
			for _, checker := range c.seen {
				if !slices.Contains(saw, checker) {
					t.Errorf("%s has not seen it; %v have", checker, saw)
				}
			}
			t.Log(result.Took, result.Real)
		})
	}
}
