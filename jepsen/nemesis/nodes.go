package nemesis

import (
	"context"
	"errors"
	"time"
)

// some gives k different nodes; every other time the leader is among them.
func (n *nemesis) some(k int) []int {
	order := n.random.Perm(n.cluster.Size())
	leader := n.cluster.Leader()
	if n.random.IntN(2) == 0 && leader >= 0 {
		for i, node := range order {
			if node == leader {
				order[0], order[i] = order[i], order[0]
			}
		}
	}
	return order[:min(k, len(order))]
}

// minority is how many nodes a cluster can do without.
func (n *nemesis) minority() int { return (n.cluster.Size() - 1) / 2 }

// each does something to several hosts, all of them whatever happens with one.
func each(hosts []int, do func(host int) error) error {
	var errs []error
	for _, host := range hosts {
		errs = append(errs, do(host))
	}
	return errors.Join(errs...)
}

func killOne(n *nemesis) *act      { return n.kill(n.some(1)) }
func killMajority(n *nemesis) *act { return n.kill(n.some(n.cluster.Size()/2 + 1)) }
func killAll(n *nemesis) *act      { return n.kill(n.some(n.cluster.Size())) }

func (n *nemesis) kill(victims []int) *act {
	return &act{
		note:  n.nameAll(victims),
		begin: func() error { return each(victims, n.cluster.Kill) },
		end:   func() error { return nil }, // who does not run is started after every fault
	}
}

func pauseNode(n *nemesis) *act {
	victims := n.some(1)
	return &act{
		note:  n.nameAll(victims),
		begin: func() error { return each(victims, n.cluster.Pause) },
		end:   func() error { return each(victims, n.cluster.Resume) },
	}
}

// turnLimit is how long a restarted node is waited for before the next one is stopped.
const turnLimit = 10 * time.Second

// rollingRestart takes turns: stop one, start it, wait until it is ready, the next.
func rollingRestart(n *nemesis) *act {
	order := n.random.Perm(n.cluster.Size())
	turn, stopped := 0, false
	step := func() (time.Duration, error) {
		if turn == len(order) {
			return time.Hour, nil
		}
		node := order[turn]
		if !stopped {
			stopped = true
			return n.about(500 * time.Millisecond), n.cluster.Stop(node)
		}
		stopped = false
		turn++
		if err := n.cluster.Start(node); err != nil {
			return 0, err
		}
		ctx, cancel := context.WithTimeout(n.ctx, turnLimit)
		defer cancel()
		_ = n.cluster.Ready(ctx) // other faults may be in the way; whether it comes back is judged at the end
		return 0, nil
	}
	begin := func() error {
		_, err := step()
		return err
	}
	return &act{
		note: n.nameAll(order), begin: begin, step: step, end: func() error { return nil },
		lasts: max(n.options.Length, time.Duration(len(order))*3*time.Second),
	}
}
