// Package client is the Go SDK of Pawl.
//
// A Client keeps one session, renewed by one goroutine, however many locks it
// holds. It sends to the leader that it knows of, tries the other nodes when
// that fails, and repeats only what is safe to repeat (R14): every request goes
// through one function, do. It sends to the endpoints that it was given and nowhere
// else, and nothing that is asked of a Lock waits for the network.
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
// # Tasks
//
// What is acquired under the context of a lock (Lock.Context, or what Do gives) is
// seen as nested by the server's search for deadlocks, which refuses a wait that
// could not end, with the cycle. Pass on the context of the innermost lock: acquires
// beside it, under an outer one, are taken for those of other goroutines, and a
// deadlock through them is ended only by the end of their own context.
//
// A lock is taken for one that is kept until what is acquired under its context has
// been granted. Where that is not so, because a goroutine waits under the context of
// a lock that is released without waiting for it, somebody else could be refused who
// would have been granted it a moment later. Give what that goroutine acquires a task
// of its own: Acquire(lock.Context(), name, client.Task("cleaning")). Such waits are
// not seen as nested, and their deadlocks are not found.
//
// A lock service alone cannot keep a process that was paused between asking
// Held and writing from writing too late. The storage can: pass it Lock.Token.
package client
