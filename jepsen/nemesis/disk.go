package nemesis

import (
	"time"

	"github.com/pawl-lock/pawl/jepsen/cluster"
)

func slowFsync(n *nemesis) *act {
	victims := n.some(1)
	if n.random.IntN(2) == 0 {
		victims = n.allNodes()
	}
	by := time.Duration(20+n.random.IntN(400)) * time.Millisecond
	return n.disk(victims, cluster.DiskSlow, by, " by "+by.String())
}

func failingFsync(n *nemesis) *act { return n.disk(n.some(n.minority()), cluster.DiskFails, 0, "") }
func hangingFsync(n *nemesis) *act { return n.disk(n.some(n.minority()), cluster.DiskHangs, 0, "") }
func fullDisk(n *nemesis) *act     { return n.disk(n.some(n.minority()), cluster.DiskFull, 0, "") }

func (n *nemesis) disk(victims []int, state cluster.Disk, delay time.Duration, note string) *act {
	if len(victims) == 0 {
		return nil
	}
	return &act{
		note:  n.nameAll(victims) + note,
		begin: func() error { return each(victims, func(i int) error { return n.cluster.Disk(i, state, delay) }) },
		end: func() error {
			return each(victims, func(i int) error { return n.cluster.Disk(i, cluster.DiskFine, 0) })
		},
	}
}
