package pawltest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/pawl-lock/pawl/transport/peer"
)

// The standard library's HTTP, in virtual time, with an hour between two requests.
func TestHTTPOverTheNetwork(t *testing.T) {
	inBubble(t, func(t *testing.T, n *Network) {
		listener, err := n.Host("n1").Listen("n1:7700")
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.Copy(w, r.Body) })}
		go server.Serve(listener)
		defer server.Close()
		from := n.Host("client")
		transport := &http.Transport{DialContext: func(ctx context.Context, _, to string) (net.Conn, error) { return from.Dial(ctx, to) }}
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport}
		body := randomBytes(7, 2*window)
		for range 3 {
			response, err := client.Post("http://n1:7700/", "application/octet-stream", bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(response.Body)
			response.Body.Close()
			if err != nil || !bytes.Equal(got, body) {
				t.Errorf("echo of %d bytes: %d bytes, %v", len(body), len(got), err)
			}
			<-time.After(time.Hour)
		}
	})
}

// openPeer opens a peer port with Raft's real network transport on it.
func openPeer(t *testing.T, n *Network, name string) (*peer.Port, *raft.NetworkTransport) {
	t.Helper()
	port, err := peer.Open(peer.Config{
		Network: n.Host(name), Listen: name + ":7800", Self: peer.Identity{Name: name, Incarnation: peer.NewIncarnation()},
		Cluster: func() string { return "test" },
	})
	if err != nil {
		t.Fatal(err)
	}
	transport := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: port.Raft(), MaxPool: 3, Timeout: 2 * time.Second, MaxRPCsInFlight: 1, Logger: hclog.NewNullLogger(),
	})
	t.Cleanup(func() { transport.Close(); transport.CloseStreams(); port.Close() })
	return port, transport
}

// Raft's own transport over the peer port over this network: the road that every virtual-time cluster takes. HTTP
// between the same two nodes goes beside it.
func TestRaftOverThePeerPort(t *testing.T) {
	inBubble(t, func(t *testing.T, n *Network) {
		_, leader := openPeer(t, n, "n1")
		port, follower := openPeer(t, n, "n2")
		stop := make(chan struct{})
		defer close(stop)
		go func() {
			for {
				select {
				case rpc := <-follower.Consumer():
					request := rpc.Command.(*raft.AppendEntriesRequest)
					rpc.Respond(&raft.AppendEntriesResponse{Term: request.Term, LastLog: request.Entries[0].Index, Success: true}, nil)
				case <-stop:
					return
				}
			}
		}()
		appendOne := func() error {
			request := &raft.AppendEntriesRequest{Term: 3, Entries: []*raft.Log{{Index: 8, Term: 3, Data: []byte("grant")}}}
			var response raft.AppendEntriesResponse
			err := leader.AppendEntries(raft.ServerID(port.Self().String()), follower.LocalAddr(), request, &response)
			if err == nil && (response.Term != 3 || response.LastLog != 8 || !response.Success) {
				return fmt.Errorf("answer %+v", response)
			}
			return err
		}
		for range 3 { // with hours between them: an idle pooled connection still works, or an election would lose a round
			if err := appendOne(); err != nil {
				t.Fatal(err)
			}
			<-time.After(3 * time.Hour)
		}
		n.Cut("n1", "n2")
		start := time.Now()
		if err := appendOne(); err == nil || time.Since(start) != 2*time.Second {
			t.Errorf("over a cut: %v after %v", err, time.Since(start))
		}
		n.HealAll()
		if err := appendOne(); err != nil {
			t.Errorf("after the heal: %v", err)
		}
	})
}

func TestPeerHTTPOverTheNetwork(t *testing.T) {
	inBubble(t, func(t *testing.T, n *Network) {
		n1, _ := openPeer(t, n, "n1")
		n2, _ := openPeer(t, n, "n2")
		server := n2.Server(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			who, _, _ := peer.PeerOf(r.Context())
			io.WriteString(w, who.Name)
		}))
		go server.Serve(n2.HTTP())
		defer server.Close()
		for range 3 {
			response, err := n1.HTTPClient("n2:7800", n2.Self().Incarnation).Get("http://n2/")
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(response.Body)
			response.Body.Close()
			if string(body) != "n1" {
				t.Errorf("answer %q", body)
			}
			<-time.After(10 * time.Minute)
		}
	})
}
