// Package fsm is Pawl's lock state machine: sessions, locks, queues and the lease clock, as a pure function of the
// Raft log.
//
// What it owns: the entries and their encoding (entry.go, command.go, coder.go), the state and its indexes (state.go,
// objects.go), what a command does (apply.go, acquire.go, convert.go, ending.go), who is granted what (grant.go), which waits
// would be deadlocks (deadlock.go, with its indexes in tasks.go; what it looks up and plays out is in board.go, game.go and
// cycle.go), what became of a command (outcome.go) and what happened (notices.go), what a reader may see (view.go), snapshots
// (snapshot.go, restore.go) and the one adapter to Raft (machine.go).
//
// What it must never do (R1): read a clock, draw a random number, start a goroutine, do I/O, or let the order of a Go
// map reach the state, an outcome or an event. Two nodes at the same index have byte-equal snapshots.
//
// One entry is applied in six steps (R2, R3, R5, R6, R9):
//
//  1. its stamp moves the lease clock, or shows that the entry counts for nothing;
//  2. its commands run in order; an acquire only joins the queues, a close only marks its session;
//  3. what is over is taken apart: closed and expired sessions, waits past their deadline;
//  4. holds are converted to shared, if they are still there;
//  5. one ordered pass grants what can be granted, each lock at most once exclusively, conversions to exclusive first;
//  6. tries that were not granted are refused, and those who wait are told so.
//
// So the index of the entry can be the fencing token of every grant it makes. Steps 3 and 5 do a bounded amount of work;
// what is left over is part of the state, and the leader proposes the next entry at once.
//
// State is kept in copy-on-write trees, so that taking a snapshot costs nothing: Snapshot clones the trees in O(1), and
// every object is copied the first time it is changed afterwards (edit… in state.go). Code that applies entries reaches
// objects through edit… only.
package fsm
