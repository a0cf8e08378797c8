package transport

// Roles of a member.
const (
	RoleVoter    = "voter"
	RoleNonvoter = "nonvoter"
)

// Member is one node of the cluster as the answering node knows it.
type Member struct {
	Name          string `json:"name"`
	Address       string `json:"address"`
	APIURL        string `json:"api_url,omitempty"`
	Role          string `json:"role"`
	Incarnation   string `json:"incarnation"`
	Version       string `json:"version,omitempty"`
	LastContactMS int64  `json:"last_contact_ms"` // since it last answered a question like this one, or since this node was started
	Lag           uint64 `json:"lag"`             // log entries behind the leader
	Alive         bool   `json:"alive"`
}

// ClusterResponse answers GET /v1/cluster.
type ClusterResponse struct {
	ID                string       `json:"id"`
	Leader            string       `json:"leader"` // name; empty when there is none
	Term              uint64       `json:"term"`
	Index             uint64       `json:"index"`
	FeatureLevel      uint64       `json:"feature_level"`
	Members           List[Member] `json:"members"`
	Quorum            int          `json:"quorum"`
	FailuresTolerated int          `json:"failures_tolerated"`
}

// TransferRequest hands leadership over, to the member To or to any.
type TransferRequest struct {
	To string `json:"to,omitempty"`
}

// TransferResponse names the new leader, which is ready.
type TransferResponse struct {
	Leader string `json:"leader"`
}

// AddRequest adds a member; Role is RoleVoter (the default) or RoleNonvoter.
type AddRequest struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Role    string `json:"role,omitempty"`
}

// RemoveRequest removes a member; Force also below the quorum.
type RemoveRequest struct {
	Name  string `json:"name"`
	Force bool   `json:"force,omitempty"`
}

// DemoteRequest takes a member's vote.
type DemoteRequest struct {
	Name string `json:"name"`
}

// MembershipResponse answers a change with the members after it.
type MembershipResponse struct {
	Members List[Member] `json:"members"`
}

// RaiseRequest makes every later token larger than Above and ends all holds and
// sessions (R10).
type RaiseRequest struct {
	Above  uint64 `json:"above"` // 1 to 2^52; it must be said, because a raise ends everything
	Reason string `json:"reason"`
}

// RaiseResponse gives the number above which the next token will be.
type RaiseResponse struct {
	NextTokenAbove Token `json:"next_token_above"`
}
