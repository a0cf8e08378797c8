package transport

// Names of the HTTP headers of the API.
const (
	// HeaderCluster carries the cluster id on every answer.
	HeaderCluster = "Pawl-Cluster"
	// HeaderNode carries the name of the node that answered.
	HeaderNode = "Pawl-Node"
	// HeaderIndex carries the log index that the answer reflects.
	HeaderIndex = "Pawl-Index"
	// HeaderLeader carries the API URL of the leader, when it is known.
	HeaderLeader = "Pawl-Leader"
	// HeaderIdempotencyKey makes an acquire without a session, and its cancel,
	// repeatable (R8).
	HeaderIdempotencyKey = "Idempotency-Key"
	// HeaderForwarded marks a request that a follower passed on over the peer
	// port; it is never passed on again (D01). Meaningless on the API port.
	HeaderForwarded = "Pawl-Forwarded"
	// HeaderClient says, on such a request, from which IP address it came to that
	// follower. Meaningless on the API port.
	HeaderClient = "Pawl-Client"
	// HeaderWait names, on such a request, a wait without number or key that the
	// follower repeats in its caller's stead: the id of the session that it opens,
	// a space, and for how many ms it has waited. Meaningless on the API port.
	HeaderWait = "Pawl-Wait"
)

// Media types of bodies and problems.
const (
	TypeJSON    = "application/json"
	TypeProblem = "application/problem+json"
)
