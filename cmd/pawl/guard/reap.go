//go:build linux

package guard

import (
	"errors"
	"syscall"
)

// reap waits for all children of this process, also those that it was given when their parents ended: without that they
// would stay for ever when the system's first process does not wait. It tells each change; it returns when there are no
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
