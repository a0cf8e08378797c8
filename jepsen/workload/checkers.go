package workload

import "github.com/pawl-lock/pawl/jepsen/check"

// holds are the checkers of every workload whose holds are recorded.
func holds(more ...check.Checker) []check.Checker {
	return append([]check.Checker{check.Exclusion{}, check.Tokens{}}, more...)
}

func exclusive() []check.Checker               { return holds() }
func registers(unchecked bool) []check.Checker { return holds() }
func queues() []check.Checker                  { return holds() }
func (readWrite) Checkers() []check.Checker    { return holds() }
func (semaphore) Checkers() []check.Checker    { return holds() }
func (lockset) Checkers() []check.Checker      { return holds() }
func (several) Checkers() []check.Checker      { return holds() }
func (sessions) Checkers() []check.Checker     { return holds() }
func (requests) Checkers() []check.Checker     { return holds() }
func (reads) Checkers() []check.Checker        { return holds() }
func (election) Checkers() []check.Checker     { return holds() }
