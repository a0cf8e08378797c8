// Package replica is the Raft library, wrapped and not trusted (design rule R16).
//
// It is the only package of Pawl, beside the adapter of the state machine, that knows hashicorp/raft. What it owns: the
// files of the log, the votes and the snapshots; the transport that carries Raft's messages over a stream layer; and one
// guard, each in its own file with a test that fails without it, for every defect of the library that a lock server
// cannot live with:
//
//	D1 transport.go  heartbeats go through Raft's main loop: the fast path can make two nodes disagree on one index
//	D2 rounds.go     reads are confirmed by a quorum round of our own: VerifyLeader counts answers given before it asked
//	D3 transport.go  no pipelining: one refused append could cut a follower off for good
//	D4 vote.go       term and candidate of a vote are one value: a crash between two writes could give a vote away twice
//	D5 settings.go   committed entries are never replayed before the configuration is known (RestoreCommittedLogs)
//	D6               raft.Restore is called nowhere
//	D7 logs.go       the log store is monotonic: nothing older than an installed snapshot survives it
//
// To these come screen.go and install.go (no peer's bytes can panic a node, hold its main loop, or take it back to an
// older snapshot), watchdog.go (a store that fails or hangs ends the process), database.go and pages.go (damaged, empty
// and foreign files are refused with the repair in the message), snapshots.go (a bad newest snapshot is never replaced
// by an older one), leadership.go (Raft is never kept waiting for its listener) and submit.go (three kinds of answer,
// R14, and no wait without an end).
//
// A build with the tag unguarded can switch guards off by name (unguarded.go), for the harness to show that it sees what each
// prevents: jepsen/script.
//
// What it must never do: call Raft from the goroutine that reads Raft's leadership signal; return from a failed write as
// if the node could go on; report as failed what may have happened.
package replica
