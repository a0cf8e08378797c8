package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/pawl-lock/pawl/transport"
	"github.com/pawl-lock/pawl/transport/peer"
)

// What nodes ask each other, over the peer port. The messages are between nodes of one version or its neighbours, so
// fields are only ever added.

// identityAnswer says who a node is and where it stands.
type identityAnswer struct {
	Name        string `json:"name"`
	Incarnation string `json:"incarnation"`
	Cluster     string `json:"cluster,omitempty"`
	HasState    bool   `json:"has_state"`
	Leader      string `json:"leader,omitempty"` // Raft address
	Applied     uint64 `json:"applied"`
	Level       uint64 `json:"level"` // the highest feature level it supports
	Version     string `json:"version"`
	APIURL      string `json:"api_url"`
}

func (n *Node) identity(*http.Request, *struct{}) (*identityAnswer, error) {
	_, leader := n.leaderNode()
	self := n.port.Self()
	return &identityAnswer{
		Name: self.Name, Incarnation: self.Incarnation, Cluster: n.cluster(), HasState: !n.replica.Empty(), Leader: leader,
		Applied: n.machine.Seen(), Level: supportedLevel, Version: n.config.Version, APIURL: n.config.APIURL,
	}, nil
}

// maxAsked bounds what is read of an answer between nodes, in bytes.
const maxAsked = 64 << 10

// ask asks one node. The address is host:port, for whoever answers there, or host:port/incarnation. An error that the
// node itself gave is an askError.
func (n *Node) ask(ctx context.Context, address, method, path string, in, out any) error {
	hostport, incarnation := address, ""
	if h, i, err := peer.SplitAddress(address); err == nil {
		hostport, incarnation = h, i
	}
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+hostport+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", transport.TypeJSON)
	response, err := n.port.HTTPClient(hostport, incarnation).Do(r)
	if err != nil {
		n.metrics.peerFailed(peerAsk)
		return fmt.Errorf("asking %s: %w", hostport, err)
	}
	defer drain(response.Body)
	answer, err := io.ReadAll(io.LimitReader(response.Body, maxAsked))
	if err != nil {
		return fmt.Errorf("asking %s: %w", hostport, err)
	}
	if response.StatusCode/100 != 2 {
		return askError{hostport, string(bytes.TrimSpace(answer))}
	}
	return json.Unmarshal(answer, out)
}

// askError is a node's refusal.
type askError struct{ node, reason string }

func (e askError) Error() string { return e.node + " says: " + e.reason }

// peerJSON serves one question between nodes.
func peerJSON[Req, Resp any](answer func(*http.Request, *Req) (*Resp, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in Req
		if r.Method == http.MethodPost {
			if err := json.NewDecoder(io.LimitReader(r.Body, maxAsked)).Decode(&in); err != nil {
				http.Error(w, "the question is not well-formed", http.StatusBadRequest)
				return
			}
		}
		out, err := answer(r, &in)
		var wire *transport.Error
		switch {
		case errors.As(err, &wire):
			http.Error(w, wire.Error(), wire.Status)
			return
		case err != nil:
			http.Error(w, err.Error(), http.StatusConflict)
			return
		}
		w.Header().Set("Content-Type", transport.TypeJSON)
		_ = json.NewEncoder(w).Encode(out) // who has gone is not told
	}
}
