// Package peer is the peer port: the one listener through which the nodes of a cluster reach each other, and the
// one way to dial another node.
//
// Both Raft and HTTP between nodes run over it. Neither sees a byte of a connection before its handshake is done:
// the dialler says which cluster it belongs to, who it is, and which incarnation it wants to talk to, and the
// listener refuses every other (design, Membership). So a wiped node at its old address is a stranger, and no vote
// or entry that was meant for its former self can reach it.
//
// Bytes are hostile until the handshake is done: it reads at most [MaxHandshakeBytes], in exact small reads, within
// one absolute deadline, in a goroutine of its own, and only a bounded number of connections may be in it at once.
// The Raft library behind it has no limits at all (a single unauthenticated message can end the process), which is
// why none of its code runs any earlier.
//
// The package knows nothing of Raft's messages, of HTTP's routes, of membership or of the state machine.
package peer
