package runner_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/jepsen/check"
	"github.com/pawl-lock/pawl/jepsen/cluster/virtual"
	"github.com/pawl-lock/pawl/jepsen/runner"
	"github.com/pawl-lock/pawl/jepsen/workload"
)

func spec(workload, fault string, seed uint64) runner.Spec {
	return runner.Spec{
		Workload: workload, Fault: fault, Cluster: "virtual", Time: time.Minute, Rate: 1, Seed: seed, Nodes: 3, Clients: 5, Store: "bolt",
	}
}

func play(t *testing.T, s runner.Spec) runner.Result {
	t.Helper()
	result, err := runner.RunVirtual(t.Context(), virtual.In(t), s)
	if err != nil {
		t.Fatalf("%s: %v", s.Command(), err)
	}
	return result
}

// Every workload passes under mixed faults and while clients are paused: a minute of each, which says little by itself. The long
// runs are pawl-jepsen's.
func TestWorkloadsPass(t *testing.T) {
	seed := uint64(1)
	for _, w := range workload.All() {
		for _, fault := range []string{"mixed", "pause-client"} {
			seed++
			if testing.Short() && fault == "mixed" {
				continue
			}
			t.Run(fmt.Sprint(w.Name(), " ", fault), func(t *testing.T) {
				result := play(t, spec(w.Name(), fault, seed))
				for _, v := range result.Verdicts {
					// Whether updates are lost in a minute is chance: see TestUnfencedLosesUpdates.
					if v.Outcome == check.Invalid || v.Outcome == check.Unknown && w.MustFail() == "" {
						t.Errorf("%s: %s: %s %v", v.Outcome, v.Checker, v.Why, v.Figures)
					}
				}
				if t.Failed() {
					t.Log("again:", result.Spec.Command())
				}
			})
		}
	}
}

// Storage that does not look at tokens loses updates when clients are paused; if the harness did not see that, its passes would
// be worth nothing.
func TestUnfencedLosesUpdates(t *testing.T) {
	for seed := uint64(1); seed <= 20; seed++ {
		result := play(t, spec("unfenced", "pause-client", seed))
		if result.Expected.Outcome == check.Invalid {
			t.Logf("seed %d: %s", seed, result.Expected.Why)
			return
		}
	}
	t.Error("20 runs have lost no update")
}

func TestSpecsThatCannotBe(t *testing.T) {
	for name, change := range map[string]func(*runner.Spec){
		"workload": func(s *runner.Spec) { s.Workload = "nothing" },
		"fault":    func(s *runner.Spec) { s.Fault = "nothing" },
		"nodes":    func(s *runner.Spec) { s.Nodes = 0 },
		"clients":  func(s *runner.Spec) { s.Clients = 1000 },
		"time":     func(s *runner.Spec) { s.Time = 0 },
		"rate":     func(s *runner.Spec) { s.Rate = 0 },
		"store":    func(s *runner.Spec) { s.Store = "paper" },
	} {
		s := spec("mutex", "none", 1)
		change(&s)
		if err := s.Validate(); err == nil {
			t.Errorf("a wrong %s is accepted", name)
		}
	}
	if err := spec("mutex", "none", 1).Validate(); err != nil {
		t.Error(err)
	}
}
