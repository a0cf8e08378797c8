//go:build linux

// Package guard runs a command that must be gone before a lease ends, whatever
// happens to the process that keeps the lease.
//
// Two processes watch over the command. The keeper (Start) renews the lease and
// tells the guard how long it lasts. The guard (Serve) is the command's parent: it
// is another process, so that it goes on when the keeper is stopped or killed. Both
// count on the same clock of the machine, so that "until" means the same to both.
//
//	keeper ── orders ──► guard ── starts, signals, reaps ──► command, with all that descends from it
//	       ◄─ reports ──
//
// The command, and every process that descends from it, gets TERM when TermBefore is
// left of the lease and KILL when KillBefore is left; also when the keeper is gone,
// and when it says so. Should the guard itself be stopped or killed, the keeper does
// it a little later. Only when both cannot run, the command can outlive the lease:
// then the storage must refuse its token. Out of reach is what runs as another user
// (sudo), which is said, and what others start at the command's wish (cron, a
// container engine).
//
// What a command that ends by itself leaves behind is ended after it, but for what has
// made a session of its own, as daemons do. The command counts as gone when none of
// these processes is left.
package guard
