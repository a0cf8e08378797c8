package peer

import (
	"context"
	"net"
	"syscall"
	"time"
)

// Network is where a node listens and dials: [TCP] in production, an in-memory one in virtual-time tests.
type Network interface {
	// Listen listens at "host:port"; port 0 takes a free one.
	Listen(address string) (net.Listener, error)
	// Dial connects to "host:port". It blocks until it is connected, refused, or ctx ends.
	Dial(ctx context.Context, address string) (net.Conn, error)
}

// userTimeout is how long sent bytes may stay without acknowledgement before the kernel gives the connection up.
const userTimeout = 10 * time.Second

// TCP is the network of the operating system. Names are resolved at every dial, since a container that comes back
// may have another address. A connection to a host that vanished ends after about 11 s, also while it is idle.
func TCP() Network { return tcp{} }

type tcp struct{}

func (tcp) Listen(address string) (net.Listener, error) {
	config := net.ListenConfig{Control: controlSocket, KeepAliveConfig: keepAlive()}
	// Multipath TCP, Go's default for listeners, does not take TCP_USER_TIMEOUT on every kernel.
	config.SetMultipathTCP(false)
	return config.Listen(context.Background(), "tcp", address)
}

func (tcp) Dial(ctx context.Context, address string) (net.Conn, error) {
	dialer := net.Dialer{Control: controlSocket, KeepAliveConfig: keepAlive()}
	dialer.SetMultipathTCP(false)
	return dialer.DialContext(ctx, "tcp", address)
}

func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}
}

func controlSocket(_, _ string, raw syscall.RawConn) error {
	var failed error
	if err := raw.Control(func(descriptor uintptr) { failed = setUserTimeout(descriptor) }); err != nil {
		return err
	}
	return failed
}
