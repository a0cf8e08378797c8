package runner

import (
	"fmt"
	"time"

	"github.com/pawl-lock/pawl/jepsen/check"
	"github.com/pawl-lock/pawl/jepsen/history"
	"github.com/pawl-lock/pawl/jepsen/nemesis"
	"github.com/pawl-lock/pawl/jepsen/workload"
)

// Spec says what a run is. The same Spec meets the same faults at the same times.
type Spec struct {
	Workload string        `json:"workload"`
	Fault    string        `json:"fault"`
	Cluster  string        `json:"cluster"` // what kind
	Time     time.Duration `json:"time"`    // with faults, on the cluster's clock
	Rate     float64       `json:"rate"`    // rounds of each client in a second
	Seed     uint64        `json:"seed"`
	Nodes    int           `json:"nodes"`
	Clients  int           `json:"clients"`
	Store    string        `json:"store"` // what the fenced workloads write to: memory, bolt or postgres
}

// Command repeats the run.
func (s Spec) Command() string {
	if s.Workload == scripted {
		return fmt.Sprintf("pawl-jepsen script --seed %d %s", s.Seed, s.Fault)
	}
	return fmt.Sprintf("pawl-jepsen run --cluster %s --workload %s --fault %s --time %v --rate %v --nodes %d --clients %d --store %s --seed %d",
		s.Cluster, s.Workload, s.Fault, s.Time, s.Rate, s.Nodes, s.Clients, s.Store, s.Seed)
}

// Validate says what is wrong with a Spec.
func (s Spec) Validate() error {
	if _, err := workload.ByName(s.Workload); err != nil {
		return err
	}
	switch {
	case nemesis.Validate(s.Fault) != nil:
		return nemesis.Validate(s.Fault)
	case s.Nodes < 1 || s.Nodes > 9:
		return fmt.Errorf("nodes: %d is not from 1 to 9", s.Nodes)
	case s.Clients < 1 || s.Clients > 100:
		return fmt.Errorf("clients: %d is not from 1 to 100", s.Clients)
	case s.Time < time.Second || s.Time > 24*time.Hour:
		return fmt.Errorf("time: %v is not from 1 s to 24 h", s.Time)
	case s.Rate <= 0 || s.Rate > 1000:
		return fmt.Errorf("rate: %v is not above 0 and at most 1000", s.Rate)
	case s.Store != memoryStore && s.Store != boltStore && s.Store != postgresStore:
		return fmt.Errorf("store: %q is not memory, bolt or postgres", s.Store)
	}
	return nil
}

// Result is what came of a run.
type Result struct {
	Spec     Spec
	Ops      []history.Op
	Logs     map[string]string
	Nemesis  nemesis.Report
	Verdicts []check.Verdict
	// Expected is the verdict that must be Invalid, in a workload that exists to fail, in one run or another: see
	// workload.MustFail. Among Verdicts it counts as valid then.
	Expected check.Verdict
	// Took is how long the run lasted on the cluster's clock, Real how long one had to wait for it.
	Took, Real time.Duration
}

// Headline says in a few words what came of the run. A run that must fail, and does, is not called valid and no more.
func (r Result) Headline() string {
	outcome := r.Outcome()
	lost := r.Expected.Figures[lostUpdates]
	switch {
	case outcome != check.Valid || r.Expected.Checker == "":
		return string(outcome)
	case r.Expected.Outcome != check.Invalid:
		return "valid, but nothing was lost, as it must be when clients are paused for long enough"
	case lost == 1:
		return "lost 1 update, as it must"
	case lost > 0:
		return fmt.Sprintf("lost %d updates, as it must", lost)
	}
	return "failed, as it must"
}

// lostUpdates is the figure of a verdict that counts them.
const lostUpdates = "lost updates"

// Outcome is that of all verdicts: valid only when each is.
func (r Result) Outcome() check.Outcome {
	outcome := check.Valid
	for _, v := range r.Verdicts {
		switch {
		case v.Outcome == check.Invalid:
			return check.Invalid
		case v.Outcome != check.Valid:
			outcome = check.Unknown
		}
	}
	if len(r.Verdicts) == 0 {
		return check.Unknown
	}
	return outcome
}
