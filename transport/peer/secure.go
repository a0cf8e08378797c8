package peer

import (
	"context"
	"net"
)

// secure is the place where TLS goes: both ends call it on every fresh connection before the first byte of the
// handshake, within the handshake's deadline. A later issue wraps conn here (TLS 1.3, the cluster's own CA on both
// ends) and then also compares the certificate's name with the identity in the handshake.
func (p *Port) secure(_ context.Context, conn net.Conn) (net.Conn, error) { return conn, nil }
