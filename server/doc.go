// Package server is one Pawl node: the API port, the peer port, the leader's work, and the way of a request through them.
//
// A request passes through few hands. serve (serve.go) is the one choke point: it guards, bounds, decodes and validates,
// passes the request on to the leader when this node does not lead (forward.go), runs the handler (locks.go, holds.go,
// sessions.go, reads.go, members.go) and maps the answer. A handler that changes something calls Node.propose; the leader's proposer
// (proposer.go) puts what arrives together into one entry, stamps it with the time that passed (R3) and hands it to Raft
// through package replica; the state machine applies it, and the outcome goes back the same way. A grant made inside
// somebody else's entry reaches its waiter (waiting.go) through the hub (hub.go); the node that was asked
// asks again in the stead of a caller that cannot (standin.go, turns.go); how holds ended is kept for people in history.go.
//
// What was applied is kept for a while as events (events.go), the same on every node, and told to whoever follows
// (events_stream.go). The API describes itself (openapi.go) from the table of routes and the messages of package transport.
//
// Only the leader proposes and only while its begin-term entry counts: leadership.go starts and ends that work. The node
// itself is assembled and taken apart, in an order that is written down, in node.go; what its data directory says about
// who it is, in datadir.go; how a cluster comes to be and changes, in forming.go and members.go.
package server
