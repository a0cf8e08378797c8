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

// clockStep sets a wall clock by a minute to a day, ahead or back. Nothing in Pawl may depend on it.
func clockStep(n *nemesis) *act {
	host := n.random.IntN(n.cluster.Size() + n.options.Clients)
	by := time.Minute + time.Duration(n.random.Int64N(int64(24*time.Hour)))
	if n.random.IntN(2) == 0 {
		by = -by
	}
	return &act{
		note:  n.name(host) + " by " + by.Round(time.Second).String(),
		begin: func() error { return n.cluster.StepClock(host, by) },
		end:   func() error { return n.cluster.StepClock(host, -by) },
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
