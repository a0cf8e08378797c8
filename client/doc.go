// Package client is the Go SDK of Pawl.
//
// A Client keeps one session, renewed by one goroutine, however many locks it
// holds. It sends to the leader that it knows of, tries the other nodes when
// that fails, and repeats only what is safe to repeat (R14): every request goes
// through one function, do.
//
// # The clock rule
//
// The server frees a session's locks when its lease clock, which never runs
// ahead of real time, has passed the session's deadline (R3). The other half is
// here: a lease of lease_ms counts from before the call that was answered with
// it was sent, less 0.2 %, on a clock that also counts the time that the machine
// was suspended. So a client says "lost" before anybody else can be granted the
// lock, provided the clock rates of the two machines differ from true by at
// most 0.1 % each. Only an operator's force or raise can end a hold earlier. A hold
// with a maximum is bounded by hold_ms in the same way, and nothing extends that.
//
// A lock service alone cannot keep a process that was paused between asking
// Held and writing from writing too late. The storage can: pass it Lock.Token.
package client
