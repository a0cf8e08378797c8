package peer

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"strings"
)

// Bounds of what the handshake carries, in bytes.
const (
	MaxNameBytes    = 64 // of a node's name
	MaxClusterBytes = 64 // of a cluster id

	incarnationBytes = 16 // of an incarnation, all of them hex digits
)

// Identity is one life of one node: its name, and the random incarnation that its data directory got when it was
// made. A node that lost its data comes back with another incarnation and is another server to Raft.
type Identity struct {
	Name        string // 1 to MaxNameBytes of letters, digits, '-', '_' and '.'
	Incarnation string // 16 lower-case hex digits
}

// String is "name.incarnation", the Raft server id. [ParseIdentity] is its inverse.
func (i Identity) String() string { return i.Name + "." + i.Incarnation }

// ParseIdentity reads what [Identity.String] wrote. The name itself may contain dots.
func ParseIdentity(text string) (Identity, error) {
	dot := strings.LastIndexByte(text, '.')
	if dot < 0 {
		return Identity{}, fmt.Errorf("identity %q is not name.incarnation", text)
	}
	identity := Identity{Name: text[:dot], Incarnation: text[dot+1:]}
	if err := identity.Validate(); err != nil {
		return Identity{}, err
	}
	return identity, nil
}

// Validate says what is wrong with the name or the incarnation.
func (i Identity) Validate() error {
	if !validName(i.Name) {
		return fmt.Errorf("node name %q is not 1 to %d letters, digits, '-', '_' or '.'", i.Name, MaxNameBytes)
	}
	if !validIncarnation(i.Incarnation) {
		return fmt.Errorf("incarnation %q is not %d lower-case hex digits", i.Incarnation, incarnationBytes)
	}
	return nil
}

// NewIncarnation makes a random incarnation: 16 lower-case hex digits, 64 bits of the system's randomness.
func NewIncarnation() string {
	var random [incarnationBytes / 2]byte
	rand.Read(random[:]) // never fails: the runtime ends the process if the system has no randomness
	return hex.EncodeToString(random[:])
}

// Address is "host:port/incarnation", the Raft server address: Raft keeps it for ever, so it holds a name that is
// resolved at each dial, and the incarnation that must answer there.
func Address(hostport, incarnation string) string { return hostport + "/" + incarnation }

// SplitAddress reads what [Address] wrote, and checks both parts.
func SplitAddress(address string) (hostport, incarnation string, err error) {
	hostport, incarnation, found := strings.Cut(address, "/")
	if !found || !validIncarnation(incarnation) {
		return "", "", fmt.Errorf("peer address %q is not host:port/incarnation", address)
	}
	if err := validHostport(hostport); err != nil {
		return "", "", fmt.Errorf("peer address %q: %w", address, err)
	}
	return hostport, incarnation, nil
}

func validHostport(hostport string) error {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return err
	}
	if host == "" || port == "" || port == "0" {
		return fmt.Errorf("%q names no host or no port", hostport)
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		return fmt.Errorf("%q is no address that others can dial", hostport)
	}
	return nil
}

func validName(name string) bool {
	if name == "" || len(name) > MaxNameBytes {
		return false
	}
	for _, c := range []byte(name) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}

func validIncarnation(incarnation string) bool {
	if len(incarnation) != incarnationBytes {
		return false
	}
	for _, c := range []byte(incarnation) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// validCluster also takes "", the cluster of a node that does not know its own yet.
func validCluster(cluster string) bool {
	if len(cluster) > MaxClusterBytes {
		return false
	}
	for _, c := range []byte(cluster) {
		if c <= ' ' || c > '~' {
			return false
		}
	}
	return true
}
