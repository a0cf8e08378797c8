package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server/replica"
	"github.com/pawl-lock/pawl/transport/peer"
)

const (
	supportedLevel = fsm.FeatureLevel

	askLimit    = 2 * time.Second        // one question to a peer
	findPause   = 200 * time.Millisecond // between two looks for a cluster, at first
	findPauseUp = 3 * time.Second        // and at most
	maxLag      = 100                    // entries that a newcomer may be behind when it gets its vote
)

// errListChanged: this node began to form a cluster of another list of peers.
var errListChanged = errors.New("the list of peers has changed since this node began to form a cluster: start it with the old list, or run pawl forget-promise when that cluster was never formed")

// findCluster has a node without state become part of a cluster: it forms one, waits for the one it has promised to, or
// joins one that is there. It works until that is done, and says what it waits for.
func (n *Node) findCluster() {
	pause, said := findPause, ""
	for n.ctx.Err() == nil {
		done, err := n.findClusterOnce()
		if done {
			return
		}
		if err != nil && err.Error() != said {
			said = err.Error()
			pause = findPause // something has changed: the next step may be possible at once
			level := hclog.Info
			if errors.Is(err, errListChanged) {
				level = hclog.Error // nothing but an operator helps
			}
			n.log.Log(level, "not part of a cluster yet", "reason", said)
		}
		select {
		case <-time.After(pause):
		case <-n.ctx.Done():
		}
		pause = min(pause*5/4, findPauseUp)
	}
}

func (n *Node) findClusterOnce() (done bool, err error) {
	n.dirMu.Lock()
	joining, promise := n.dir.identity.Joining, n.dir.promise
	n.dirMu.Unlock()
	ctx, cancel := context.WithTimeout(n.ctx, 10*askLimit)
	defer cancel()
	switch {
	case joining:
		return n.joinOnce(ctx)
	case !n.replica.Empty():
		return true, n.settle()
	case promise == nil || promise.Promised != nil:
		if there, err := n.findMembers(ctx, ""); there || err != nil {
			return false, err
		}
		if n.config.Peers[0].Name == n.config.Name {
			return false, n.form(ctx)
		}
		return false, errors.New("waiting for " + n.config.Peers[0].Name + " to form the cluster")
	}
	// When somebody has the state of another cluster, the promised one can never be formed: it would need that node's promise
	// too, which only an empty node gives. So the promise binds nobody any more.
	if there, err := n.findMembers(ctx, promise.Cluster); there || err != nil {
		return false, err
	}
	return false, errors.New("waiting for cluster " + promise.Cluster + ", which this node has promised to form")
}

// settle writes down the cluster of a node that has state.
func (n *Node) settle() error {
	n.dirMu.Lock()
	defer n.dirMu.Unlock()
	if cluster := n.dir.cluster(); cluster != "" {
		return n.dir.setCluster(cluster)
	}
	return nil
}

// findMembers asks the others whether one of them has state already. Then there is a cluster, which this empty node must
// not form a second time: it is a newcomer. The members of the cluster promised come to this node by themselves.
func (n *Node) findMembers(ctx context.Context, promised string) (there bool, err error) {
	for _, p := range n.config.Peers {
		if p.Name == n.config.Name {
			continue
		}
		answer, err := n.askIdentity(ctx, p.Address)
		if err != nil || !answer.HasState || answer.Cluster == "" || answer.Cluster == promised {
			continue // who is down now decides nothing: without its promise no cluster is formed
		}
		n.log.Info("joining a cluster that is there", "cluster", answer.Cluster, "found", p.Name)
		n.dirMu.Lock()
		defer n.dirMu.Unlock()
		return true, n.dir.startJoining(answer.Cluster)
	}
	return false, nil
}

func (n *Node) askIdentity(ctx context.Context, address string) (identityAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	var out identityAnswer
	err := n.ask(ctx, address, http.MethodGet, "/peer/identity", nil, &out)
	return out, err
}

// promiseRequest asks a node to promise that it will be part of this cluster, with this list, and no other.
type promiseRequest struct {
	Cluster string `json:"cluster"`
	Floor   uint64 `json:"floor"`
	Peers   []Peer `json:"peers"`
}

type promiseAnswer struct {
	Incarnation string `json:"incarnation"`
}

// form gathers everybody's promise, and then bootstraps Raft with exactly the incarnations that have promised. The record
// is durable before anything is asked, so that after a crash at any point it goes on from there.
func (n *Node) form(ctx context.Context) error {
	record, err := n.formingRecord()
	if err != nil {
		return err
	}
	for _, p := range n.config.Peers {
		if record.Promised[p.Name] != "" {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, askLimit)
		var out promiseAnswer
		err := n.ask(limited, p.Address, http.MethodPost, "/peer/promise", promiseRequest{record.Cluster, record.Floor, record.Peers}, &out)
		cancel()
		if err != nil {
			return fmt.Errorf("waiting for the promise of %s: %w", p.Name, err)
		}
		record.Promised[p.Name] = out.Incarnation
		if err := n.keepPromise(record); err != nil {
			return err
		}
	}
	var servers []replica.Server
	for _, p := range n.config.Peers {
		id := peer.Identity{Name: p.Name, Incarnation: record.Promised[p.Name]}
		servers = append(servers, replica.Server{ID: id.String(), Address: peer.Address(p.Address, id.Incarnation), Voter: true})
	}
	if err := n.replica.Bootstrap(servers); err != nil && !errors.Is(err, replica.ErrNotEmpty) {
		return err
	}
	n.log.Info("formed a cluster", "cluster", record.Cluster, "nodes", len(servers))
	return nil
}

func (n *Node) formingRecord() (promiseFile, error) {
	n.dirMu.Lock()
	defer n.dirMu.Unlock()
	if p := n.dir.promise; p != nil {
		if !slices.Equal(p.Peers, n.config.Peers) {
			return promiseFile{}, errListChanged
		}
		return *p, nil
	}
	var id fsm.ID
	rand.Read(id[:])
	record := promiseFile{
		Cluster: hex.EncodeToString(id[:]), Floor: n.config.TokenFloor, Peers: n.config.Peers,
		Promised: map[string]string{n.config.Name: n.dir.identity.Incarnation},
	}
	return record, n.dir.setPromise(record)
}

func (n *Node) keepPromise(p promiseFile) error {
	n.dirMu.Lock()
	defer n.dirMu.Unlock()
	return n.dir.setPromise(p)
}

// promise answers a node that wants to form a cluster: yes, once, when this node is empty and has the same list.
func (n *Node) promise(_ *http.Request, r *promiseRequest) (*promiseAnswer, error) {
	if _, err := clusterID(r.Cluster); err != nil {
		return nil, err
	}
	n.dirMu.Lock()
	defer n.dirMu.Unlock()
	switch {
	case !n.replica.Empty() || n.dir.identity.Joining:
		return nil, fmt.Errorf("this node is part of cluster %s already", n.dir.cluster())
	case !slices.Equal(r.Peers, n.config.Peers):
		return nil, errors.New("this node was started with another list of peers")
	case n.dir.promise != nil && n.dir.promise.Cluster != r.Cluster:
		return nil, fmt.Errorf("this node has promised to form cluster %s: when that was lost before it was formed, run forget-promise here", n.dir.promise.Cluster)
	case n.dir.promise == nil:
		if err := n.dir.setPromise(promiseFile{Cluster: r.Cluster, Floor: r.Floor, Peers: r.Peers}); err != nil {
			return nil, err
		}
	}
	return &promiseAnswer{Incarnation: n.dir.identity.Incarnation}, nil
}

// joinOnce takes a newcomer one step further. It is done when this node has its vote.
func (n *Node) joinOnce(ctx context.Context) (done bool, err error) {
	self := n.port.Self()
	for _, s := range n.replica.Servers() {
		if s.ID == self.String() && s.Voter {
			n.dirMu.Lock()
			defer n.dirMu.Unlock()
			return true, n.dir.endJoining()
		}
	}
	leader, err := n.findLeader(ctx)
	if err != nil {
		return false, err
	}
	limited, cancel := context.WithTimeout(ctx, 5*askLimit)
	defer cancel()
	var out joinAnswer
	request := joinRequest{Name: self.Name, Incarnation: self.Incarnation, Address: n.config.own().Address, Applied: n.machine.Seen()}
	if err := n.ask(limited, leader, http.MethodPost, "/peer/join", request, &out); err != nil {
		return false, fmt.Errorf("joining: %w", err)
	}
	return false, errors.New("joining: " + out.State)
}

func (n *Node) findLeader(ctx context.Context) (address string, err error) {
	if name, address := n.leaderNode(); name != "" && name != n.config.Name {
		return address, nil
	}
	for _, p := range n.config.Peers {
		if p.Name == n.config.Name {
			continue
		}
		answer, err := n.askIdentity(ctx, p.Address)
		if err == nil && answer.Cluster == n.cluster() && answer.Leader != "" {
			return answer.Leader, nil
		}
	}
	return "", errors.New("looking for the leader of cluster " + n.cluster())
}
