package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server/replica"
	"github.com/pawl-lock/pawl/transport/peer"
)

// Node is one running node. Safe for concurrent use.
type Node struct {
	config  Config
	log     hclog.Logger
	port    *peer.Port
	machine *fsm.Machine
	replica *replica.Replica
	hub     *hub
	turns   *turns
	gone    farewells // of callers of this node
	history *history
	events  *eventLog
	readers readers // of events
	metrics *metrics
	openAPI json.RawMessage            // what is told of the API
	leader  atomic.Pointer[leadership] // set while this node is at work as leader
	wrote   atomic.Pointer[time.Time]  // when the last entry of this leader was applied, with the monotonic clock; or nil
	probes  probes
	api     *http.Server
	peers   *http.Server
	apiAddr string
	conns   atomic.Int64 // open connections to the API port

	dirMu sync.Mutex // held over the disk when the node forms or joins a cluster, and never over the network
	dir   *dataDir

	changing  sync.Mutex // one change of members at a time
	digesting sync.Mutex // one digest at a time
	contacts  sync.Map   // id of a member → when it last answered this node; as long as the list of members ever was
	started   time.Time

	ctx      context.Context // ends when the node's own work must
	cancel   context.CancelCauseFunc
	draining chan struct{}   // closed when the node begins to stop
	serving  context.Context // ends a moment after that: what is passed on to the leader is not waited for any longer
	letGo    context.CancelFunc
	stopOnce sync.Once
	stopped  chan struct{} // closed when Stop or Crash is through
	stopErr  error         // may be read after that
	failOnce sync.Once
	failed   chan error
	work     sync.WaitGroup
}

var errStopping = errors.New("the node is stopping")

// Start makes a node of a data directory and has it listen, and returns as soon as it does; Ready tells when it can be
// used. Nothing is written when the configuration is wrong. The caller stops the node with Stop.
func Start(config Config) (*Node, error) {
	tcp := config.Network == nil
	config = config.withDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if tcp {
		if err := checkOwnHost(config.own().Address); err != nil {
			return nil, err
		}
	}
	n := &Node{
		config: config, log: config.Logger, hub: newHub(), turns: newTurns(), history: newHistory(), events: newEventLog(), draining: make(chan struct{}), failed: make(chan error, 1),
		stopped: make(chan struct{}), probes: make(probes, 1),
		started: time.Now(),
	}
	n.metrics = newMetrics(n)
	var err error
	if n.openAPI, err = openAPI(config.Version); err != nil {
		return nil, fmt.Errorf("describing the API: %w", err)
	}
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
	n.serving, n.letGo = context.WithCancel(context.Background())
	if err := n.open(); err != nil {
		n.cancel(err)
		return nil, err
	}
	n.work.Go(n.followLeadership)
	n.work.Go(n.findCluster)
	n.work.Go(func() { n.events.run(n.ctx) })
	return n, nil
}

// applied is the state machine's sink: it is called under the machine's lock, in the order of the log, so what it calls
// never blocks, and never asks how many callers there are that want to know.
func (n *Node) applied(r *fsm.Result) {
	n.hub.applied(r)
	n.turns.applied(r)
	n.history.applied(r)
	n.events.applied(r)
	n.metrics.applied.count(r)
}

// ownHostPatience is how long this node's own name may be unknown: a container's name appears a moment after it.
const ownHostPatience = 5 * time.Second

// checkOwnHost refuses an address of this node in Peers whose host does not exist (C13).
func checkOwnHost(address string) error {
	host, _, _ := net.SplitHostPort(address)
	if net.ParseIP(host) != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), ownHostPatience)
	defer cancel()
	for {
		_, err := net.DefaultResolver.LookupHost(ctx, host)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(250 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("peers: this node is listed at %s, and there is no such host: %w", address, err)
		}
	}
}

// open brings up the parts from below: directory, peer port, Raft, API port. What was opened is closed again when a later
// part fails.
func (n *Node) open() (err error) {
	if n.dir, err = openDataDir(n.config.DataDir, n.config.Name); err != nil {
		return err
	}
	undo := []func(){}
	defer func() {
		if err != nil {
			for i := len(undo) - 1; i >= 0; i-- {
				undo[i]()
			}
		}
	}()
	advertise := n.config.own().Address
	n.port, err = peer.Open(peer.Config{
		Network: n.config.Network, Listen: n.config.PeerListen, Advertise: advertise, Self: n.dir.self(),
		Cluster: n.cluster, Logger: n.log.Named("peer"),
	})
	if err != nil {
		return err
	}
	undo = append(undo, func() { n.port.Close() })

	timing, err := replica.Profile(n.config.Profile)
	if err != nil {
		return err
	}
	n.machine = fsm.NewMachine(n.applied, n.fail)
	n.replica, err = replica.Open(replica.Config{
		ID: n.dir.self().String(), Address: peer.Address(advertise, n.dir.identity.Incarnation), Dir: n.dir.path,
		New: !n.dir.identity.Opened, FSM: n.machine, Stream: n.port.Raft(), Timing: timing,
		Snapshots: n.config.Snapshots, Logger: n.log.Named("raft"), Meter: n.metrics.meter(), Disk: n.config.Disk,
		Fatal: func(reason string) { n.fail(errors.New(reason)) },
	})
	if err != nil {
		return err
	}
	undo = append(undo, func() { n.replica.Shutdown(context.Background()) })
	n.metrics.applied.startedAt(n.replica.LastIndex())
	if err := n.noteOpened(); err != nil {
		return err
	}
	listener, err := n.config.Network.Listen(n.config.APIListen)
	if err != nil {
		return fmt.Errorf("opening the API port: %w", err)
	}
	n.apiAddr = listener.Addr().String()
	n.api = n.apiServer()
	n.peers = n.port.Server(n.peerHandler())
	n.work.Go(func() { n.serveHTTP(n.api, listener) })
	n.work.Go(func() { n.serveHTTP(n.peers, n.port.HTTP()) })
	return nil
}

// noteOpened writes down that the Raft store was made. Peers ask for the cluster meanwhile.
func (n *Node) noteOpened() error {
	n.dirMu.Lock()
	defer n.dirMu.Unlock()
	return n.dir.setOpened()
}

func (n *Node) serveHTTP(s *http.Server, l net.Listener) {
	if err := s.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		n.fail(fmt.Errorf("serving %s: %w", l.Addr(), err))
	}
}

// APIAddress returns the host:port where the API listens.
func (n *Node) APIAddress() string { return n.apiAddr }

// Failed gives the reason when the node must not go on; the process then exits without more ado (fail-stop).
func (n *Node) Failed() <-chan error { return n.failed }

func (n *Node) fail(reason error) {
	n.failOnce.Do(func() {
		n.log.Error("this node must stop at once", "reason", reason)
		n.failed <- reason
		if n.config.Fatal != nil {
			n.config.Fatal(reason)
		}
	})
}

func (n *Node) stopping() bool {
	select {
	case <-n.draining:
		return true
	default:
		return false
	}
}

// Stop ends the node in an order in which nothing acknowledged is lost and nobody is left hanging. Stopping is not
// leaving: membership is unchanged (F02). It takes under 10 s also without a quorum. It may be called again, also at the
// same time: then it waits for the first call, at most until ctx ends, and returns the same.
func (n *Node) Stop(ctx context.Context) error {
	n.end(func() error { return n.stop(ctx) })
	select {
	case <-n.stopped:
		return n.stopErr
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// end runs the one ending that a node has. Whoever comes second is not kept waiting here.
func (n *Node) end(how func() error) {
	first := false
	n.stopOnce.Do(func() { first = true })
	if first {
		defer close(n.stopped)
		n.stopErr = how()
	}
}

func (n *Node) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	// 1. Readiness fails and new requests are sent elsewhere; the long polls wake. Those that can be repeated are told to
	// repeat; the others cancel their wait, for which this node must still be able to write (R14).
	close(n.draining)
	defer n.letGo()
	defer time.AfterFunc(forwardGrace, n.letGo).Stop()
	n.within(ctx, 2*time.Second, func(ctx context.Context) {
		n.poll(ctx, func() bool { return n.hub.count() == 0 })
	})
	// 2. Another node leads before this one goes silent, so that nobody waits for an election (F03).
	if n.replica.IsLeader() {
		n.within(ctx, 2*time.Second, func(ctx context.Context) {
			if err := n.replica.Transfer(ctx, n.successor(ctx)); err != nil {
				n.log.Warn("leadership was not handed over", "error", err)
			}
		})
	}
	// 3. The leader's work ends, and everything else that this node does by itself.
	n.cancel(errStopping)
	// 4. What is being answered is answered.
	n.within(ctx, 2*time.Second, func(ctx context.Context) {
		if n.api.Shutdown(ctx) != nil {
			n.api.Close()
		}
		if n.peers.Shutdown(ctx) != nil {
			n.peers.Close()
		}
	})
	// 5. Raft, with its transport before and its stores after it.
	err := n.replica.Shutdown(ctx)
	// 6. The port, with what is left of connections.
	err = errors.Join(err, n.port.Close())
	n.work.Wait()
	return err
}

func (n *Node) within(ctx context.Context, limit time.Duration, f func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	f(ctx)
}

// Crash ends the node as a power cut would, as far as one process can: its connections break, nothing is handed over.
func (n *Node) Crash() {
	n.end(func() error {
		close(n.draining)
		n.cancel(errStopping)
		n.hub.fail(fmt.Errorf("%w: %w", replica.ErrUnknown, errStopping))
		err := errors.Join(n.api.Close(), n.peers.Close(), n.replica.Shutdown(context.Background()), n.port.Close())
		n.work.Wait()
		return err
	})
	<-n.stopped
}

// cluster is this node's cluster id, "" while it knows none.
func (n *Node) cluster() string {
	n.dirMu.Lock()
	defer n.dirMu.Unlock()
	return n.dir.cluster()
}

func (n *Node) clusterAndFloor() (cluster string, floor uint64) {
	n.dirMu.Lock()
	defer n.dirMu.Unlock()
	if p := n.dir.promise; p != nil {
		floor = p.Floor
	}
	return n.dir.cluster(), floor
}
