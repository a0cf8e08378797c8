package peer

import "golang.org/x/sys/unix"

// setUserTimeout is inherited by the connections that a listening socket accepts.
func setUserTimeout(descriptor uintptr) error {
	return unix.SetsockoptInt(int(descriptor), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
}
