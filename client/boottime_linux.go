package client

import (
	"syscall"
	"time"
	"unsafe"
)

// bootTime reads CLOCK_BOOTTIME: monotonic, and it counts the time that the
// machine was suspended, which Go's own monotonic clock does not. A laptop that
// wakes up must know at once that its leases are over. (The call is the kernel's
// own, so that this package needs no module beside the standard library.)
func bootTime() time.Duration {
	const clockBoottime = 7
	var now syscall.Timespec
	if _, _, err := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&now)), 0); err != 0 {
		// Every kernel since 2.6.39 has it; a clock that stands still would be unsafe.
		panic("pawl: CLOCK_BOOTTIME cannot be read: " + err.Error())
	}
	return time.Duration(now.Nano())
}
