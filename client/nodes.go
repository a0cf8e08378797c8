package client

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"time"
)

const (
	// avoidance is how long a node that gave no answer is not tried again on the
	// strength of a hint: others may not have noticed yet that their leader hangs.
	avoidance = 2 * time.Second
	// hintedAvoidance is the same for a URL known only from a hint: it may be one
	// that only the nodes can reach.
	hintedAvoidance = 30 * time.Second
	// maxHinted bounds how many nodes are remembered beyond the endpoints.
	maxHinted = 16
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

// nodes knows where to send a call.
type nodes struct {
	mu        sync.Mutex
	endpoints []*node
	next      int // of endpoints, when no leader is known
	leader    *node
	hinted    map[string]*node
}

func newNodes(endpoints []string) (*nodes, error) {
	if len(endpoints) == 0 {
		return nil, errors.New("no endpoint is given")
	}
	all := &nodes{hinted: map[string]*node{}}
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
		parsed.RawQuery != "" || parsed.Fragment != "" {
		// The endpoint is not repeated whole: it might hold a credential (E02).
		return "", fmt.Errorf("an endpoint is not of the form http://host:port")
	}
	return strings.TrimSuffix(parsed.String(), "/"), nil
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

// leads notes the hint that address is the leader's URL. An answer without a
// usable hint takes back an earlier one.
func (a *nodes) leads(address string) {
	address, err := apiURL(address)
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.leader = nil
		return
	}
	if a.leader != nil && a.leader.url == address {
		return
	}
	if n := a.findLocked(address); n != nil && !time.Now().Before(n.avoided) {
		a.leader = n
	}
}

// findLocked gives the node with the URL, a new one if there is room.
func (a *nodes) findLocked(address string) *node {
	for _, n := range a.endpoints {
		if n.url == address {
			return n
		}
	}
	if n := a.hinted[address]; n != nil {
		return n
	}
	if len(a.hinted) == maxHinted {
		clear(a.hinted)
	}
	n := newNode(address)
	a.hinted[address] = n
	return n
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
		if a.hinted[n.url] == n {
			n.avoided = time.Now().Add(hintedAvoidance)
		}
		n.down()
		n.up, n.down = context.WithCancel(context.Background())
	}
}
