package replica

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/raft"
)

// Server is one member of the cluster.
type Server struct {
	ID      string // name.incarnation
	Address string // host:port/incarnation
	Voter   bool
}

// Membership is a committed configuration and the index of the entry that made it: what a change is conditional on.
type Membership struct {
	Index   uint64
	Servers []Server
}

// changeWait bounds how long a change waits for the change before it when the context has no deadline.
const changeWait = 10 * time.Second

// Servers is the newest configuration this node knows, committed or not: the one that Raft itself counts votes by.
func (r *Replica) Servers() []Server {
	return fromConfiguration(r.raft.GetConfiguration().Configuration())
}

// Membership is the newest configuration that is committed and has passed this node's state machine.
func (r *Replica) Membership() Membership { return r.machine.committedMembers() }

// Bootstrap forms a cluster of these servers, all voters, on a node that is Empty; every other node learns it from
// Raft. On a node that has state it is ErrNotEmpty and changes nothing.
func (r *Replica) Bootstrap(servers []Server) error {
	var configuration raft.Configuration
	for _, server := range servers {
		configuration.Servers = append(configuration.Servers, raft.Server{
			Suffrage: raft.Voter, ID: raft.ServerID(server.ID), Address: raft.ServerAddress(server.Address),
		})
	}
	err := r.await(context.Background(), r.raft.BootstrapCluster(configuration)) // ends with the replica
	switch {
	case errors.Is(err, raft.ErrCantBootstrap):
		return ErrNotEmpty
	case err != nil:
		return fmt.Errorf("forming the cluster: %w", err)
	}
	return nil
}

// The changes below are made by the leader, one at a time, and only if the committed configuration is still that of
// the given Membership.Index (0: whatever it is); else they are ErrChanged. They block until the change is committed or
// the context ends; like an entry's (R14), their errors are ErrNotApplied, with the reason, or ErrUnknown.

// AddNonvoter adds a server that receives the log and has no vote. A server is never added as a voter at once: until it
// had caught up it could stop commits.
func (r *Replica) AddNonvoter(ctx context.Context, server Server, previous uint64) error {
	return r.change(ctx, "adding "+server.ID, func(limit time.Duration) raft.IndexFuture {
		return r.raft.AddNonvoter(raft.ServerID(server.ID), raft.ServerAddress(server.Address), previous, limit)
	})
}

// Promote gives a member its vote. The caller has seen that it has caught up.
func (r *Replica) Promote(ctx context.Context, id string, previous uint64) error {
	for _, server := range r.Servers() {
		if server.ID == id {
			return r.change(ctx, "promoting "+id, func(limit time.Duration) raft.IndexFuture {
				return r.raft.AddVoter(raft.ServerID(id), raft.ServerAddress(server.Address), previous, limit)
			})
		}
	}
	return fmt.Errorf("promoting %s: %w: %w", id, ErrNotApplied, ErrNotMember)
}

// Demote takes a member's vote.
func (r *Replica) Demote(ctx context.Context, id string, previous uint64) error {
	return r.change(ctx, "demoting "+id, func(limit time.Duration) raft.IndexFuture {
		return r.raft.DemoteVoter(raft.ServerID(id), previous, limit)
	})
}

// Remove takes a server out of the cluster. A leader that removes itself steps down; hand over first.
func (r *Replica) Remove(ctx context.Context, id string, previous uint64) error {
	return r.change(ctx, "removing "+id, func(limit time.Duration) raft.IndexFuture {
		return r.raft.RemoveServer(raft.ServerID(id), previous, limit)
	})
}

func (r *Replica) change(ctx context.Context, what string, request func(limit time.Duration) raft.IndexFuture) error {
	limit := changeWait
	if deadline, ok := ctx.Deadline(); ok {
		// At least a millisecond: to the library zero means for ever.
		limit = max(time.Millisecond, min(limit, time.Until(deadline)))
	}
	future := request(limit)
	err := r.await(ctx, future)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil || errors.Is(err, raft.ErrRaftShutdown):
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	case strings.HasPrefix(err.Error(), "configuration changed since"):
		err = fmt.Errorf("%w: %w", ErrNotApplied, ErrChanged)
	case future.Index() == 0 && !errors.Is(err, raft.ErrNotLeader) && !errors.Is(err, raft.ErrEnqueueTimeout) && !errors.Is(err, raft.ErrLeadershipTransferInProgress):
		// The library refused it before it had an index: the last voter, an address twice, …
		err = fmt.Errorf("%w: %w", ErrNotApplied, err)
	default:
		err = classify(err, future.Index() != 0)
	}
	return fmt.Errorf("%s: %w", what, err)
}
