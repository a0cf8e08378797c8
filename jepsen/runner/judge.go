package runner

import (
	"github.com/pawl-lock/pawl/jepsen/workload"
)

// judge has all checkers look at the run.
func judge(w workload.Workload, r *Result) {
	for _, c := range w.Checkers() {
		r.Verdicts = append(r.Verdicts, c.Check(r.Ops))
	}
}
