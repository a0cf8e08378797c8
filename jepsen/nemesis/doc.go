// Package nemesis makes the faults of a run: each alone, or mixed. Which, where, when and for how long comes from the
// run's seed; every fault is announced in the history when it begins and when it has ended, and all of them are healed
// at the end.
//
// What it must never do: destroy more than a cluster can survive. The data of nodes is wiped or damaged only where
// every node is in step, only of a minority, and with no other fault beside it; then the lost nodes must be back with
// a vote before anything else is done. All other faults leave the disks as they are, so any number of nodes may be hit.
//
//	nemesis.go  the schedule
//	fault.go    the table of faults
//	nodes.go    kill, pause, restart
//	network.go  partitions, delays, losses
//	disk.go     slow, failing, hanging, full disks
//	data.go     damaged and wiped data
//	hosts.go    clients that pause, clocks that are set, leaders that change
package nemesis
