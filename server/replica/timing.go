package replica

import (
	"errors"
	"fmt"
	"time"
)

// Timing is how fast a dead leader is noticed and how long a disk may stall before a living one is taken for dead.
//
// A follower asks for votes between one and three Heartbeats after it last heard of its leader, so a cluster is without
// leader for about 2 × Heartbeat; Election bounds one round of voting; a leader that has not heard from a majority for
// Lease steps down.
type Timing struct {
	Heartbeat time.Duration
	Election  time.Duration
	Lease     time.Duration
}

// Profile gives the timing with this name: "default" (also ""), "fast" for local disks and quiet processors, "slow" for
// disks that stall for more than half a second.
func Profile(name string) (Timing, error) {
	const ms = time.Millisecond
	switch name {
	case "", "default":
		return Timing{500 * ms, 500 * ms, 400 * ms}, nil
	case "fast":
		return Timing{250 * ms, 250 * ms, 200 * ms}, nil
	case "slow":
		return Timing{1500 * ms, 1500 * ms, 1200 * ms}, nil
	}
	return Timing{}, fmt.Errorf("timing profile %q is none of default, fast, slow", name)
}

// Bounds of a heartbeat: below the first, scheduling noise alone makes elections; above the second no session outlives
// the loss of a leader.
const (
	shortestHeartbeat = 50 * time.Millisecond
	longestHeartbeat  = 10 * time.Second
)

// Validate says, each rule in its own message, why these times cannot work together.
func (t Timing) Validate() error {
	var found []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			found = append(found, fmt.Errorf(format, args...))
		}
	}
	refuse(t.Heartbeat < shortestHeartbeat, "heartbeat timeout %v is below %v: the scheduler alone would cause elections", t.Heartbeat, shortestHeartbeat)
	refuse(t.Heartbeat > longestHeartbeat, "heartbeat timeout %v is above %v: a dead leader would outlast every session", t.Heartbeat, longestHeartbeat)
	refuse(t.Election < t.Heartbeat, "election timeout %v is shorter than the heartbeat timeout %v: votes would be cut short", t.Election, t.Heartbeat)
	refuse(t.Election > 10*t.Heartbeat, "election timeout %v is more than ten heartbeat timeouts (%v): one split vote would stop the cluster", t.Election, t.Heartbeat)
	refuse(t.Lease > t.Heartbeat, "leader lease %v is longer than the heartbeat timeout %v: a cut-off leader would outlive the next election", t.Lease, t.Heartbeat)
	// A leader sends a heartbeat every tenth to fifth of the heartbeat timeout, so half of it leaves two in time.
	refuse(t.Lease < t.Heartbeat/2, "leader lease %v is less than half the heartbeat timeout %v: one late answer would depose a leader", t.Lease, t.Heartbeat)
	return errors.Join(found...)
}
