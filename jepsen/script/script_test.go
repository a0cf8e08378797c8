package script_test

import (
	"fmt"
	"testing"

	"github.com/pawl-lock/pawl/jepsen/check"
	"github.com/pawl-lock/pawl/jepsen/cluster/virtual"
	"github.com/pawl-lock/pawl/jepsen/runner"
	"github.com/pawl-lock/pawl/jepsen/script"
)

func play(t *testing.T, s runner.Script, seed uint64) runner.Result {
	t.Helper()
	result, err := runner.RunScript(virtual.In(t), s, seed)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// With all guards each schedule is valid.
func TestScriptsAreValid(t *testing.T) {
	for _, s := range script.All() {
		for seed := uint64(1); seed <= 3; seed++ {
			t.Run(fmt.Sprint(s.Name, " ", seed), func(t *testing.T) {
				result := play(t, s, seed)
				for _, v := range result.Verdicts {
					if v.Outcome != check.Valid {
						t.Errorf("%s: %s: %s %v", v.Outcome, v.Checker, v.Why, v.Figures)
					}
				}
				t.Log(result.Took, result.Real)
			})
		}
	}
}
