package peer

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// A host that vanishes must not hold a connection for longer than the timeout, at either end.
func TestSocketsHaveAUserTimeout(t *testing.T) {
	listener, err := TCP().Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dialled, err := TCP().Dial(t.Context(), listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer dialled.Close()
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	for name, c := range map[string]net.Conn{"dialled": dialled, "accepted": accepted} {
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		raw.Control(func(descriptor uintptr) {
			for option, want := range map[int]int{
				unix.TCP_USER_TIMEOUT: int(userTimeout.Milliseconds()), unix.TCP_KEEPIDLE: 5, unix.TCP_KEEPINTVL: 2, unix.TCP_KEEPCNT: 3,
			} {
				if got, err := unix.GetsockoptInt(int(descriptor), unix.IPPROTO_TCP, option); err != nil || got != want {
					t.Errorf("%s: option %d is %d (%v), want %d", name, option, got, err, want)
				}
			}
		})
	}
}
