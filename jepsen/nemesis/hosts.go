package nemesis

import (
	"errors"
	"time"

	"github.com/pawl-lock/pawl/jepsen/cluster"
)

// pauseClient keeps a client still until others may have its locks.
func pauseClient(n *nemesis) *act {
	if n.options.Clients == 0 {
		return nil
	}
	victim := n.random.IntN(n.options.Clients)
	a := &act{
		note:  n.name(n.cluster.Size() + victim),
		begin: func() error { return n.cluster.PauseClient(victim) },
		end:   func() error { return n.cluster.ResumeClient(victim) },
	}
	if lease := n.options.Lease; lease > 0 {
		a.lasts = lease + lease/5 + time.Duration(n.random.Int64N(int64(2*lease)))
	}
	return a
}

// clockStep sets a wall clock by a minute to a day, ahead or back, and after a while past the true time to the other side. Nothing
// in Pawl may depend on it.
func clockStep(n *nemesis) *act {
	host := n.random.IntN(n.cluster.Size() + n.options.Clients)
	by := time.Minute + time.Duration(n.random.Int64N(int64(24*time.Hour)))
	by = by.Round(time.Second)
	if n.random.IntN(2) == 0 {
		by = -by
	}
	off := time.Duration(0)
	set := func(to time.Duration) error {
		step := to - off
		off = to // also when it fails: the end takes back what was asked for
		return n.cluster.StepClock(host, step)
	}
	again := n.about(n.options.Length / 3)
	waited := false
	return &act{
		note:  n.name(host) + " by " + by.String() + ", then by " + (-by).String(),
		begin: func() error { return set(by) },
		step: func() (time.Duration, error) {
			if !waited {
				waited = true
				return again, nil
			}
			if off == -by {
				return time.Hour, nil
			}
			return time.Hour, set(-by)
		},
		end: func() error { return set(0) },
	}
}

func transferStorm(n *nemesis) *act {
	if n.cluster.Size() < 2 {
		return nil
	}
	// One that fails is no failure of the nemesis: there may be no leader, and the node may be it already.
	hand := func() error {
		if err := n.cluster.Transfer(n.random.IntN(n.cluster.Size())); errors.Is(err, cluster.ErrUnsupported) {
			return err
		}
		return nil
	}
	step := func() (time.Duration, error) { return n.about(time.Second), hand() }
	return &act{begin: hand, step: step, end: func() error { return nil }}
}
