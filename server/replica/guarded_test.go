//go:build !unguarded

package replica

import "testing"

// What switches guards off must not be in a build that people run.
func TestGuardsCannotBeSwitchedOff(t *testing.T) {
	t.Setenv("PAWL_UNGUARDED", "D1,D2,D3,D4,D7,fail-stop")
	for _, guard := range []guard{guardD1, guardD2, guardD3, guardD4, guardD7, guardStop} {
		if off(guard) {
			t.Errorf("%s is off", guard)
		}
	}
	if !(&logs{}).IsMonotonic() {
		t.Error("the log store is not monotonic")
	}
}
