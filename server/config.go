package server

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pawl-lock/pawl/fsm"
	"github.com/pawl-lock/pawl/server/replica"
	"github.com/pawl-lock/pawl/transport/peer"
)

// Config is what a node is started with. The zero value of a field means its default; Name, DataDir and Peers have none.
type Config struct {
	Name    string // this node's name, one of Peers
	DataDir string // made when it is not there
	Peers   []Peer // the nodes that form the cluster, the same list on each, this node included

	APIListen  string // host:port of the API; default 127.0.0.1:7700
	APIURL     string // where clients reach this node; default http:// and APIListen
	PeerListen string // host:port of the peer port; default this node's own address in Peers
	Insecure   bool   // listen beyond loopback although there is no TLS

	Profile    string // timing: default, fast or slow
	TokenFloor uint64 // tokens of a new cluster stay above it; effective only when it is formed (R10)
	Limits     fsm.Limits
	Snapshots  replica.SnapshotPolicy
	MaxConns   int // connections to the API port at once; default 4096, some more are kept for peers

	Version string       // shown to people
	Logger  hclog.Logger // default: none
	Network peer.Network // default: TCP; tests put an in-memory one here
	// Disk is put around the writes of the log: tests put one that fails here. See replica.Config.
	Disk func(what string, write func() error) error

	// Fatal is called once, from any goroutine, when the node must not go on: its disk fails, or its log says something
	// that this version does not know. A process exits in it (fail-stop). Default: nothing but Failed().
	Fatal func(reason error)
}

// Peer is a node of the list that forms the cluster.
type Peer struct {
	Name    string
	Address string // host:port of its peer port, as the others dial it
}

// ParsePeers reads "n1=host:port,n2=host:port".
func ParsePeers(text string) ([]Peer, error) {
	var peers []Peer
	for _, item := range strings.Split(text, ",") {
		name, address, ok := strings.Cut(strings.TrimSpace(item), "=")
		if !ok {
			return nil, fmt.Errorf("peers: %q is not name=host:port", item)
		}
		peers = append(peers, Peer{name, address})
	}
	return peers, nil
}

const (
	defaultAPI      = "127.0.0.1:7700"
	defaultMaxConns = 4096
)

func (c Config) withDefaults() Config {
	c.Peers = slices.Clone(c.Peers)
	slices.SortFunc(c.Peers, func(a, b Peer) int { return cmp.Compare(a.Name, b.Name) })
	c.APIListen = cmp.Or(c.APIListen, defaultAPI)
	c.APIURL = cmp.Or(c.APIURL, "http://"+c.APIListen)
	c.PeerListen = cmp.Or(c.PeerListen, c.own().Address)
	c.MaxConns = cmp.Or(c.MaxConns, defaultMaxConns)
	c.Version = cmp.Or(c.Version, "unknown")
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Network == nil {
		c.Network = peer.TCP()
	}
	return c
}

func (c Config) own() Peer {
	for _, p := range c.Peers {
		if p.Name == c.Name {
			return p
		}
	}
	return Peer{}
}

// Validate says everything that is wrong, each with the setting's name. It looks at nothing outside the value and
// changes nothing.
func (c Config) Validate() error {
	c = c.withDefaults()
	var found []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			found = append(found, fmt.Errorf(format, args...))
		}
	}
	refuse(c.Name == "", "name: is required")
	refuse(c.DataDir == "", "data: a directory is required")
	refuse(len(c.Peers) == 0, "peers: at least this node itself is required")
	refuse(len(c.Peers) > 0 && c.own() == (Peer{}), "peers: this node's name %q is not in the list", c.Name)
	for i, p := range c.Peers {
		refuse(i > 0 && p.Name == c.Peers[i-1].Name, "peers: %q is in the list twice", p.Name)
		for _, other := range c.Peers[:i] {
			refuse(other.Address == p.Address && other.Name != p.Name, "peers: %q and %q have the same address %s", other.Name, p.Name, p.Address)
		}
		if err := (peer.Identity{Name: p.Name, Incarnation: "0000000000000000"}).Validate(); err != nil {
			found = append(found, fmt.Errorf("peers: %w", err))
		}
		if _, _, err := peer.SplitAddress(peer.Address(p.Address, "0000000000000000")); err != nil {
			found = append(found, fmt.Errorf("peers: address of %q: %q is no host:port that the others can dial", p.Name, p.Address))
		}
	}
	found = append(found, c.checkReach()...)
	for setting, address := range map[string]string{"api": c.APIListen, "peer-listen": c.PeerListen} {
		if address == "" { // that of this node in peers, which is not there
			continue
		}
		if _, _, err := net.SplitHostPort(address); err != nil {
			found = append(found, fmt.Errorf("%s: %w", setting, err))
			continue
		}
		refuse(!c.Insecure && !loopback(address), "%s: %s is reachable from other machines and there is no TLS: say insecure to listen there all the same", setting, address)
	}
	u, err := url.Parse(c.APIURL)
	refuse(err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"), "api-url: %q is not a URL that clients can use", c.APIURL)
	if _, err := replica.Profile(c.Profile); err != nil {
		found = append(found, fmt.Errorf("profile: %w", err))
	}
	refuse(c.TokenFloor > fsm.MaxFloor, "token-floor: %d is above 2^52", c.TokenFloor)
	refuse(c.MaxConns < 16, "max-conns: %d is below 16", c.MaxConns)
	return errors.Join(found...)
}

// checkReach refuses addresses in Peers that the other nodes cannot mean: a list where some nodes are at localhost and
// others are not, or where this node does not listen at the port that it is listed with (C13).
func (c Config) checkReach() (found []error) {
	own := c.own()
	if len(c.Peers) > 1 && own.Address != "" && loopback(own.Address) {
		for _, p := range c.Peers {
			if !loopback(p.Address) {
				return append(found, fmt.Errorf("peers: this node is listed at %s, where %q at %s cannot reach it", own.Address, p.Name, p.Address))
			}
		}
	}
	_, listed, err1 := net.SplitHostPort(own.Address)
	_, bound, err2 := net.SplitHostPort(c.PeerListen)
	if err1 == nil && err2 == nil && listed != bound {
		found = append(found, fmt.Errorf("peers: this node is listed at port %s but listens for peers at port %s (peer-listen)", listed, bound))
	}
	return found
}

// loopback reports whether an address is surely on this machine only.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// Times that are no settings: each bounds something that would otherwise wait for ever.
const (
	beginLimit    = 10 * time.Second        // a new leader that is not at work by then hands over
	roundLimit    = 1 * time.Second         // one read round
	requestLimit  = 15 * time.Second        // a request besides what it waits for by its own wish
	leaderWait    = 1500 * time.Millisecond // how long a request waits for a leader to be known
	stopLimit     = 9 * time.Second         // from stop to the end
	recentWrite   = 5 * time.Second         // a write this young shows that writes commit
	maxQueue      = 4096                    // proposals that wait for the proposer
	maxInFlight   = 4                       // entries on their way at once
	maxEntryBytes = 64 << 10                // of commands in one entry
)
