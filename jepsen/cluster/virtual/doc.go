// Package virtual is a whole cluster in one process and in virtual time: real nodes with real Raft and real files, on an
// in-memory network, in a testing/synctest bubble. Ten minutes of cluster time take seconds, since nobody waits for real.
//
// What it cannot do: stop a node's goroutines (Pause is ErrUnsupported; pausing clients is what fencing is about, and that
// it can), lose what was not yet synced, or change a wall clock, since all share the bubble's. Seeds decide the faults
// and what clients do, not the order in which goroutines run: the same seed meets the same faults, and may still take another course.
package virtual
