package check

import (
	"github.com/pawl-lock/pawl/jepsen/history"
)

// Outcome is what a checker found.
type Outcome string

// The outcomes. Only Valid is a pass.
const (
	Valid   Outcome = "valid"
	Invalid Outcome = "invalid"
	Unknown Outcome = "unknown" // it gave up, was skipped, or had nothing to judge
)

// Verdict is one checker's judgement of one history.
type Verdict struct {
	Checker string  `json:"checker"`
	Outcome Outcome `json:"outcome"`
	// Why says in one sentence what is wrong, or what was not judged.
	Why string `json:"why,omitempty"`
	// Shown are indexes of the Ops that show it, as few as possible, in order.
	Shown []int `json:"shown,omitempty"`
	// Figures count what was looked at, so that a pass over nothing is seen: "acquires" → 1200.
	Figures map[string]int64 `json:"figures,omitempty"`
}

// Checker judges a whole history. It must not change it, and ends by itself within a time and a memory that it bounds.
type Checker interface {
	Name() string
	Check(ops []history.Op) Verdict
}
