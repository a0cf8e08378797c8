package server

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server/replica"
	"github.com/pawl-lock/pawl/transport"
)

// livez is GET /livez: the process works. It says nothing of the cluster, so that the loss of a quorum never has healthy
// nodes restarted (F04).
func (n *Node) livez(*call) (reply, error) {
	return reply{http.StatusOK, transport.HealthResponse{OK: true}}, nil
}

// readyz is GET /readyz: a client that is sent here can have a lock (I8).
func (n *Node) readyz(c *call) (reply, error) {
	if reason := n.notReady(c); reason != "" {
		return reply{http.StatusServiceUnavailable, transport.HealthResponse{Reason: reason}}, nil
	}
	return reply{http.StatusOK, transport.HealthResponse{OK: true}}, nil
}

func (n *Node) notReady(ctx context.Context) (reason string) {
	if n.stopping() {
		return "this node is stopping"
	}
	if !n.votes() {
		return "this node has no vote: it is not part of a cluster yet, or was removed"
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if n.leader.Load() != nil {
		if err := n.probeHere(ctx); err != nil {
			return "this node leads, but nothing was written: " + err.Error()
		}
		return ""
	}
	name, address := n.leaderNode()
	if name == "" || name == n.config.Name {
		return "there is no leader"
	}
	if err := n.ask(ctx, address, http.MethodPost, "/peer/probe", struct{}{}, &struct{}{}); err != nil {
		return "the leader " + name + " cannot be reached or cannot write"
	}
	return ""
}

// votes reports whether this node has a vote, as far as it knows.
func (n *Node) votes() bool {
	self := n.port.Self().String()
	return slices.ContainsFunc(n.replica.Servers(), func(s replica.Server) bool { return s.ID == self && s.Voter })
}

// Ready waits until the node is ready or ctx ends.
func (n *Node) Ready(ctx context.Context) error {
	if n.poll(ctx, func() bool { return n.notReady(ctx) == "" }) {
		return nil
	}
	return context.Cause(ctx)
}

// probes has room for one: it shares one probe entry among all that ask meanwhile, and keeps nobody longer than they wish.
type probes chan struct{}

func (n *Node) probe(r *http.Request, _ *struct{}) (*struct{}, error) {
	return &struct{}{}, n.probeHere(r.Context())
}

// probeHere shows that writes commit: one did in the last seconds, or an empty entry does now. So an idle cluster that is
// asked for its health writes one entry in 5 s, whoever asks.
func (n *Node) probeHere(ctx context.Context) error {
	fresh := func() bool {
		wrote := n.wrote.Load()
		return wrote != nil && time.Since(*wrote) < recentWrite
	}
	if n.leader.Load() == nil {
		return n.notLeading()
	}
	if fresh() {
		return nil
	}
	select {
	case n.probes <- struct{}{}:
		defer func() { <-n.probes }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if fresh() {
		return nil
	}
	_, err := n.propose(ctx, &fsm.Renew{}, 8)
	return err
}
