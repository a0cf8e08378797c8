//go:build linux

package guard

import (
	"errors"
	"syscall"
)

// reap waits for all children of this process, also those that it was given when their parents ended: without that they
// would stay in their group, and the group would never be gone. It tells each change; it returns when there are no
// children left.
func reap(changed func(pid int, status syscall.WaitStatus)) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return
		default:
			changed(pid, status)
		}
	}
}

// groupGone says whether no process of the group is left; one that has ended and was not waited for still is.
func groupGone(group int) bool { return errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) }
