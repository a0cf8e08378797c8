// Package runner makes runs: it has the clients of a workload work on a cluster while the nemesis makes its faults, heals
// everything, looks at what is left, and has the checkers judge it.
//
//	play.go    a run on any kind of cluster
//	virtual.go a run in virtual time
//	apart.go   one whose clients are processes
//	store.go   what they write to
//	judge.go   what must be true of every run, and the outcome
package runner
