//go:build linux

// Package guard runs a command that must be gone before a lease ends, whatever
// happens to the process that keeps the lease.
//
// Two processes watch over the command. The keeper (Start) renews the lease and
// tells the guard how long it lasts. The guard (Serve) is the command's parent: it
// is another process, so that it goes on when the keeper is stopped or killed. Both
// count on the same clock of the machine, so that "until" means the same to both.
//
//	keeper ── orders ──► guard ── starts, signals, reaps ──► command, a process group of its own
//	       ◄─ reports ──
//
// The group gets TERM when TermBefore is left of the lease and KILL when KillBefore
// is left; also when the keeper is gone, and when it says so. Should the guard
// itself be stopped or killed, the keeper does the same to the group, at half of
// KillBefore. Only when both cannot run, the command can outlive the lease: then
// the storage must refuse its token. A process that leaves the group (setsid, a
// daemon) is out of reach.
//
// The group counts as gone when none of its processes is left: what the command
// leaves behind in its group is ended after it.
package guard
