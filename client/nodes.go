package client

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	// avoidance is how long a node that gave no answer is not tried again on the
	// strength of a hint: others may not have noticed yet that their leader hangs.
	avoidance = 2 * time.Second
	// maxHints is how often one call goes where a hint points, before it tries the
	// endpoints in turn: two nodes may each take the other for the leader (D01).
	maxHints = 5
)

// node is one API URL.
type node struct {
	url string
	// up ends when an attempt at the node fails, so that calls that wait there for
	// long are repeated elsewhere although they themselves have time left (A10).
	up      context.Context
	down    context.CancelFunc
	avoided time.Time // until when hints to it are ignored
}

func newNode(address string) *node {
	n := &node{url: address}
	n.up, n.down = context.WithCancel(context.Background())
	return n
}

// nodes knows where to send a call: to the endpoints that the Client was given and
// nowhere else, whatever an answer says. A node that lies about the leader gets no
// request, and no credential, sent elsewhere.
type nodes struct {
	mu        sync.Mutex
	endpoints []*node
	next      int   // of endpoints, when no leader is known
	leader    *node // one of endpoints
}

func newNodes(endpoints []string) (*nodes, error) {
	if len(endpoints) == 0 {
		return nil, errors.New("no endpoint is given")
	}
	all := &nodes{}
	for _, endpoint := range endpoints {
		address, err := apiURL(endpoint)
		if err != nil {
			return nil, err
		}
		all.endpoints = append(all.endpoints, newNode(address))
	}
	return all, nil
}

// apiURL checks the URL of a node and brings it into one form.
func apiURL(endpoint string) (string, error) {
	parsed, err := url.Parse(endpoint)
	if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "" || parsed.User != nil ||
		parsed.RawQuery != "" || parsed.ForceQuery || parsed.Fragment != "" || parsed.Path != "" && parsed.Path != "/" || !dialable(parsed) {
		// The endpoint is not repeated whole: it might hold a credential (E02).
		return "", fmt.Errorf("an endpoint is not of the form http://host:port, without a path")
	}
	return strings.TrimSuffix(parsed.String(), "/"), nil
}

// dialable says whether the URL names a host, and no port that none can have.
func dialable(address *url.URL) bool {
	port := address.Port()
	_, err := strconv.ParseUint(port, 10, 16)
	return address.Hostname() != "" && (port == "" || err == nil)
}

// pick gives the node for the next attempt, the leader if one is known and
// wanted, and the context that ends when the node is found to be failing.
func (a *nodes) pick(wantLeader bool) (*node, context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.endpoints[a.next]
	if wantLeader && a.leader != nil {
		n = a.leader
	}
	return n, n.up
}

// leads notes the hint that address is the leader's URL, when that is an endpoint. An
// answer without a usable hint takes back an earlier one.
func (a *nodes) leads(address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leader != nil && a.leader.url == address {
		return // as nearly always
	}
	a.leader = nil
	if address == "" {
		return
	}
	address, err := apiURL(address)
	for _, n := range a.endpoints {
		if err == nil && n.url == address && !time.Now().Before(n.avoided) {
			a.leader = n
			return
		}
	}
}

// turn makes the next attempt go elsewhere. unreachable says that the node gave
// no answer at all, which calls that wait there should know.
func (a *nodes) turn(n *node, unreachable bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leader == n {
		a.leader = nil
	}
	if a.endpoints[a.next] == n {
		a.next = (a.next + 1) % len(a.endpoints)
	}
	if unreachable {
		n.avoided = time.Now().Add(avoidance)
		n.down()
		n.up, n.down = context.WithCancel(context.Background())
	}
}
