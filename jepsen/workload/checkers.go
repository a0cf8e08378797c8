package workload

import (
	"time"

	"github.com/pawl-lock/pawl/jepsen/check"
)

// holds are the checkers of every workload: each has holds.
func holds(more ...check.Checker) []check.Checker {
	return append([]check.Checker{
		check.Exclusion{}, check.Tokens{},
		check.Wakeups{TTL: longestTTL, Slack: 2 * time.Second, Settle: settle, Unknown: 30 * time.Second},
	}, more...)
}

// settle is how long after a fault a session may live on that its client has given up: the lease clock stood still meanwhile.
const settle = longestTTL + 2*time.Second

// searchLimit bounds the search for an order of a whole history.
const searchLimit = 20 * time.Second

func linearizable(model string) check.Checker {
	return check.Linearizable{Model: model, Tokens: true, Limit: searchLimit}
}

func (mutex) Checkers() []check.Checker     { return holds(linearizable("mutex")) }
func (election) Checkers() []check.Checker  { return holds(linearizable("mutex")) }
func (reads) Checkers() []check.Checker     { return holds(linearizable("mutex"), check.Reads{}) }
func (readWrite) Checkers() []check.Checker { return holds(linearizable("read-write lock")) }
func (semaphore) Checkers() []check.Checker { return holds(linearizable("semaphore")) }
func (fenced) Checkers() []check.Checker {
	return holds(linearizable("fenced lock"), check.LostUpdates{})
}
func (lockset) Checkers() []check.Checker { return holds(linearizable("fenced lock"), check.Set{}) }
func (several) Checkers() []check.Checker {
	return holds(check.Bank{Total: each * int64(len(several{}.Locks()))})
}
func (fair) Checkers() []check.Checker { return holds(check.Leases{}, check.Fairness{}) }
func (sessions) Checkers() []check.Checker {
	return holds(linearizable("mutex"), check.Leases{}, check.Strays{})
}
func (requests) Checkers() []check.Checker { return holds(check.Requests{}, check.Reads{}) }
