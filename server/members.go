package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server/replica"
	"github.com/pawl-lock/pawl/transport"
	"github.com/pawl-lock/pawl/transport/peer"
)

// joinRequest is a newcomer's: it asks the leader to be taken in the place of the member of its name.
type joinRequest struct {
	Name        string `json:"name"`
	Incarnation string `json:"incarnation"`
	Address     string `json:"address"`
	Applied     uint64 `json:"applied"` // how far it has got
}

type joinAnswer struct {
	State string `json:"state"`
}

// join takes a newcomer one step further, at the leader: added without a vote, caught up, its former incarnation removed,
// given its vote. Each step is conditional on the members that were looked at, and the newcomer asks for the next one; so
// a lost leader or answer at any point does no harm.
func (n *Node) join(r *http.Request, in *joinRequest) (*joinAnswer, error) {
	if n.leader.Load() == nil {
		return nil, n.notLeading()
	}
	if !n.changing.TryLock() {
		return nil, errors.New("another change of members is under way")
	}
	defer n.changing.Unlock()
	newcomer := peer.Identity{Name: in.Name, Incarnation: in.Incarnation}
	if err := newcomer.Validate(); err != nil {
		return nil, err
	}
	address := peer.Address(in.Address, in.Incarnation)
	if _, _, err := peer.SplitAddress(address); err != nil {
		return nil, err
	}
	members := n.replica.Membership()
	var own, former *replica.Server
	for i, s := range members.Servers {
		if id, err := peer.ParseIdentity(s.ID); err == nil && id.Name == in.Name {
			if id == newcomer {
				own = &members.Servers[i]
			} else {
				former = &members.Servers[i]
			}
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), 4*askLimit)
	defer cancel()
	switch {
	case own == nil && former == nil:
		return nil, fmt.Errorf("there is no member named %q, and nobody has added one", in.Name)
	case own == nil:
		if err := n.isReplaced(ctx, *former, newcomer); err != nil {
			return nil, err
		}
		n.log.Info("taking in a node that lost its data", "node", newcomer, "former", former.ID)
		return &joinAnswer{"added, catching up"}, n.replica.AddNonvoter(ctx, replica.Server{ID: newcomer.String(), Address: address}, members.Index)
	case own.Voter:
		return &joinAnswer{"is a voter"}, nil
	case in.Applied+maxLag < n.replica.CommitIndex():
		return &joinAnswer{"catching up"}, nil
	case former != nil:
		if err := n.isReplaced(ctx, *former, newcomer); err != nil {
			return nil, err
		}
		return &joinAnswer{"caught up, removing its former incarnation"}, n.replica.Remove(ctx, former.ID, members.Index)
	}
	n.log.Info("giving a node its vote", "node", newcomer)
	return &joinAnswer{"given its vote"}, n.replica.Promote(ctx, newcomer.String(), members.Index)
}

// isReplaced checks that where the member is listed, the newcomer answers: else somebody else uses the name.
func (n *Node) isReplaced(ctx context.Context, member replica.Server, newcomer peer.Identity) error {
	hostport, _, err := peer.SplitAddress(member.Address)
	if err != nil {
		return err
	}
	answer, err := n.askIdentity(ctx, hostport)
	if err != nil {
		return fmt.Errorf("the name %q is in use by %s, which does not answer at %s: %w", newcomer.Name, member.ID, hostport, err)
	}
	if got := (peer.Identity{Name: answer.Name, Incarnation: answer.Incarnation}); got != newcomer {
		return fmt.Errorf("the name %q is in use: %s answers at %s", newcomer.Name, got, hostport)
	}
	return nil
}

// readCluster is GET /v1/cluster: how the leader sees the cluster or, when it may be stale, how this node does, which works
// without a leader too.
func (n *Node) readCluster(c *call) (reply, error) {
	if err := n.beforeRead(c); err != nil {
		return reply{}, err
	}
	out := transport.ClusterResponse{ID: n.cluster(), Term: n.replica.Term()}
	out.Leader, _ = n.leaderNode()
	n.machine.Read(func(s *fsm.State) { out.Index, out.FeatureLevel = s.Index(), s.Level() })
	c.index = out.Index
	out.Members = n.members(c)
	out.Quorum, out.FailuresTolerated = tolerance(out.Members)
	return reply{http.StatusOK, out}, nil
}

// tolerance returns how many voters decide, and how many more may fail.
func tolerance(members []transport.Member) (quorum, spare int) {
	voters, alive := 0, 0
	for _, m := range members {
		if m.Role == transport.RoleVoter {
			voters++
			if m.Alive {
				alive++
			}
		}
	}
	quorum = voters/2 + 1
	return quorum, max(0, alive-quorum)
}

// members asks every member who it is and where it stands, all at once.
func (n *Node) members(ctx context.Context) []transport.Member {
	servers := n.replica.Servers()
	out := make([]transport.Member, len(servers))
	commit := n.replica.CommitIndex()
	var asking sync.WaitGroup
	for i, s := range servers {
		asking.Go(func() { out[i] = n.member(ctx, s, commit) })
	}
	asking.Wait()
	return out
}

func (n *Node) member(ctx context.Context, s replica.Server, commit uint64) transport.Member {
	m := transport.Member{Role: transport.RoleNonvoter}
	if s.Voter {
		m.Role = transport.RoleVoter
	}
	m.Address, m.Incarnation, _ = peer.SplitAddress(s.Address)
	if id, err := peer.ParseIdentity(s.ID); err == nil {
		m.Name = id.Name
	}
	var answer *identityAnswer
	if s.ID == n.port.Self().String() {
		answer, _ = n.identity(nil, nil)
	} else {
		limited, cancel := context.WithTimeout(ctx, roundLimit)
		defer cancel()
		if got, err := n.askIdentity(limited, s.Address); err == nil {
			answer = &got
		}
	}
	if answer != nil {
		m.Alive, m.Version, m.APIURL = true, answer.Version, answer.APIURL
		m.Lag = commit - min(commit, answer.Applied)
		n.contacts.Store(s.ID, time.Now())
	}
	if last, ok := n.contacts.Load(s.ID); ok {
		m.LastContactMS = time.Since(last.(time.Time)).Milliseconds()
	} else {
		m.LastContactMS = time.Since(n.started).Milliseconds()
	}
	return m
}

// named finds the member of a name. That there is none is told from behind a read round: a deposed leader's memory is no
// evidence (R4).
func (n *Node) named(ctx context.Context, name string) (replica.Server, error) {
	find := func() (member replica.Server, found bool) {
		for _, s := range n.replica.Servers() {
			if id, err := peer.ParseIdentity(s.ID); err == nil && id.Name == name {
				return s, true
			}
		}
		return replica.Server{}, false
	}
	if s, found := find(); found {
		return s, nil
	}
	if err := n.linearizable(ctx); err != nil {
		return replica.Server{}, err
	}
	if s, found := find(); found {
		return s, nil
	}
	return replica.Server{}, transport.NewError(transport.ErrMembership, "there is no member named %s", quote(name))
}

// transfer is POST /v1/cluster/transfer; it answers when the new leader is at work.
func (n *Node) transfer(c *call, r *transport.TransferRequest) (reply, error) {
	to := ""
	if r.To != "" {
		s, err := n.named(c, r.To)
		if err != nil {
			return reply{}, err
		}
		if !s.Voter {
			return reply{}, transport.NewError(transport.ErrMembership, "%s has no vote and cannot lead", quote(r.To))
		}
		if to = s.ID; to == n.port.Self().String() {
			return reply{http.StatusOK, transport.TransferResponse{Leader: r.To}}, nil
		}
	}
	leader, err := n.handOver(c, to)
	if err != nil {
		return reply{}, err
	}
	return reply{http.StatusOK, transport.TransferResponse{Leader: leader}}, nil
}

// handOver gives leadership away and waits until the next leader has begun its term.
func (n *Node) handOver(ctx context.Context, to string) (leader string, err error) {
	var before uint64
	n.machine.Read(func(s *fsm.State) { before = s.Schedule().Begin })
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), beginLimit)
	defer cancel()
	if to == "" {
		to = n.successor(limited)
	}
	if err := n.replica.Transfer(limited, to); err != nil {
		return "", transport.NewError(transport.ErrMembership, "leadership was not handed over: %v", err)
	}
	if !n.poll(limited, func() bool {
		begin := before
		n.machine.Read(func(s *fsm.State) {
			begin = s.Schedule().Begin
			leader, _ = s.Leader()
		})
		return begin != before
	}) {
		return "", transport.NewError(transport.ErrUnknownOutcome, "leadership was handed over, and the new leader is not at work yet")
	}
	if leader == n.config.Name {
		// Its successor did not get the votes, as one that was cut off a moment ago and is behind, and this node was elected
		// again.
		return "", transport.NewError(transport.ErrMembership, "leadership was handed over and came back to this node: try again")
	}
	return leader, nil
}

// removeMember is POST /v1/cluster/remove.
func (n *Node) removeMember(c *call, r *transport.RemoveRequest) (reply, error) {
	if !n.changing.TryLock() {
		return reply{}, transport.NewError(transport.ErrMembership, "another change of members is under way")
	}
	defer n.changing.Unlock()
	members := n.replica.Membership()
	s, err := n.named(c, r.Name)
	if err != nil {
		return reply{}, err
	}
	left := n.members(c)
	for i, m := range left {
		if m.Name == r.Name {
			left = append(left[:i], left[i+1:]...)
			break
		}
	}
	voters, alive := 0, 0
	for _, m := range left {
		if m.Role == transport.RoleVoter {
			voters++
			if m.Alive {
				alive++
			}
		}
	}
	switch {
	case voters == 0:
		return reply{}, transport.NewError(transport.ErrMembership, "%s is the last voter", quote(r.Name))
	case alive < voters/2+1 && !r.Force:
		return reply{}, transport.NewError(transport.ErrMembership, "without %s only %d of %d voters answer, and nothing could be written: say force to do it all the same", quote(r.Name), alive, voters)
	case s.ID == n.port.Self().String():
		// The leader hands over first, and the next one removes it.
		if _, err := n.handOver(c, ""); err != nil {
			return reply{}, err
		}
		_, leader := n.leaderNode()
		limited, cancel := context.WithTimeout(c, requestLimit)
		defer cancel()
		var out transport.MembershipResponse
		if err := n.ask(limited, leader, http.MethodPost, "/v1/cluster/remove", r, &out); err != nil {
			return reply{}, transport.NewError(transport.ErrMembership, "leadership was handed over, but this node was not removed: %v", err)
		}
		return reply{http.StatusOK, out}, nil
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(c), requestLimit)
	defer cancel()
	if err := n.replica.Remove(limited, s.ID, members.Index); err != nil {
		return reply{}, n.membershipError(err)
	}
	// A leader that has itself removed may do so for a caller of this node's, whose answer is still to come back from it.
	asking, _, _ := peer.PeerOf(c)
	if hostport, incarnation, err := peer.SplitAddress(s.Address); err == nil && asking.Name != r.Name {
		n.port.Forget(hostport, incarnation)
	}
	return reply{http.StatusOK, transport.MembershipResponse{Members: left}}, nil
}

func (n *Node) membershipError(err error) error {
	if errors.Is(err, replica.ErrChanged) || errors.Is(err, replica.ErrBusy) || errors.Is(err, replica.ErrNotMember) {
		return transport.NewError(transport.ErrMembership, "%v", err)
	}
	return n.wireError(err)
}

// raise is POST /v1/raise.
func (n *Node) raise(c *call, r *transport.RaiseRequest) (reply, error) {
	command := &fsm.Raise{Above: r.Above, Reason: r.Reason}
	rand.Read(command.ID[:])
	n.log.Warn("raising the tokens, which ends all holds and sessions", "above", r.Above, "reason", r.Reason)
	a, err := n.change(c, command, 64+len(r.Reason))
	if err != nil {
		return reply{}, err
	}
	return reply{http.StatusOK, transport.RaiseResponse{NextTokenAbove: transport.Token(a.outcome.Base)}}, nil
}
