package client

import (
	"time"

	"golang.org/x/sys/unix"
)

// bootTime reads CLOCK_BOOTTIME: monotonic, and it counts the time that the
// machine was suspended, which Go's own monotonic clock does not. A laptop that
// wakes up must know at once that its leases are over.
func bootTime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		// Every kernel since 2.6.39 has it; a clock that stands still would be unsafe.
		panic("pawl: CLOCK_BOOTTIME cannot be read: " + err.Error())
	}
	return time.Duration(now.Nano())
}
