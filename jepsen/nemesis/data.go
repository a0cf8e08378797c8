package nemesis

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pawl-lock/pawl/jepsen/cluster"
)

// refusal is how long a node may take to find out that its data is damaged.
const refusal = 10 * time.Second

// damageFiles changes some of one node's data. The node may refuse to start, and is then wiped, as its message says; or
// it may have lost nothing that it needs.
func damageFiles(n *nemesis) *act {
	if n.minority() == 0 {
		return nil
	}
	victim := n.some(1)[0]
	seed := n.random.Uint64()
	return &act{
		note: fmt.Sprintf("%s seed %d", n.name(victim), seed),
		begin: func() error {
			if err := n.cluster.Kill(victim); err != nil {
				return err
			}
			if err := n.cluster.Damage(victim, seed); err != nil {
				return errors.Join(err, n.cluster.Start(victim))
			}
			_ = n.cluster.Start(victim) // it may well refuse
			return nil
		},
		end: func() error {
			ctx, cancel := context.WithTimeout(n.ctx, refusal)
			defer cancel()
			if !n.cluster.Runs(victim) || n.cluster.Ready(ctx) != nil {
				return n.replace([]int{victim})
			}
			return nil
		},
	}
}

func wipeNode(n *nemesis) *act {
	if n.minority() == 0 {
		return nil
	}
	victims := n.some(1 + n.random.IntN(n.minority()))
	return &act{
		note:  n.nameAll(victims),
		begin: func() error { return n.wipe(victims) },
		end:   n.backWithVote,
	}
}

func (n *nemesis) wipe(victims []int) error {
	return each(victims, func(i int) error {
		if n.cluster.Runs(i) {
			if err := n.cluster.Kill(i); err != nil {
				return err
			}
		}
		if err := n.cluster.Wipe(i); err != nil {
			return err
		}
		return n.cluster.Start(i)
	})
}

func (n *nemesis) replace(victims []int) error {
	return errors.Join(n.wipe(victims), n.backWithVote())
}

// backWithVote waits until every node is ready, which a newcomer is not before it votes.
func (n *nemesis) backWithVote() error {
	ctx, cancel := n.patiently()
	defer cancel()
	if err := n.cluster.Ready(ctx); err != nil && !cluster.BrokenOff(n.run) {
		return fmt.Errorf("not back within %v: %w", n.options.Patience, err)
	}
	return nil
}
