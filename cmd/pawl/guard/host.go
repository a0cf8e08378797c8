//go:build linux

package guard

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes give the command a process group of its own, and its death with the guard's: should the guard be killed
// before it has told the keeper of the group, nobody else could end it.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// adopt makes this process the parent of what its children leave behind, so that it can tell when the last process of the
// group is gone, whoever is the system's first process.
func adopt() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// session is that of this process, which its descendants have unless they made another.
func session() int {
	id, err := unix.Getsid(0)
	if err != nil {
		return 0 // only another process's can be refused
	}
	return id
}
