package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// serve serves a handler on a port until the test ends.
func serve(t *testing.T, p *Port, handler http.HandlerFunc) *http.Server {
	server := p.Server(handler)
	var group sync.WaitGroup
	group.Go(func() { server.Serve(p.HTTP()) })
	t.Cleanup(func() { server.Close(); group.Wait() })
	return server
}

func TestHTTPTellsWhoCalls(t *testing.T) {
	port := openPort(t, identity("n1", 1), testCluster)
	serve(t, port, func(w http.ResponseWriter, r *http.Request) {
		who, cluster, ok := PeerOf(r.Context())
		fmt.Fprintf(w, "%s %s %s %v", r.Proto, who, cluster, ok)
	})
	for _, test := range []struct {
		cluster, incarnation, want string
	}{
		{testCluster, port.Self().Incarnation, "HTTP/2.0 n2.00000000000000a2 " + testCluster + " true"},
		{"other", "", "HTTP/2.0 n2.00000000000000a2 other true"},
		{"", "", "HTTP/2.0 n2.00000000000000a2  true"},
	} {
		dialler := openPort(t, identity("n2", 2), test.cluster)
		if got := get(t, dialler, port.Advertise(), test.incarnation); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
	if _, _, ok := PeerOf(t.Context()); ok {
		t.Error("a request from elsewhere has a peer")
	}
}

func get(t *testing.T, from *Port, hostport, incarnation string) string {
	t.Helper()
	response, err := from.HTTPClient(hostport, incarnation).Get("http://" + hostport + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// Long polls forwarded by a follower must not cost a connection each: a thousand of them share one.
func TestHTTPSharesConnections(t *testing.T) {
	const polls = 1000
	port := openPort(t, identity("n1", 1), testCluster)
	dialler := openPort(t, identity("n2", 2), testCluster)
	var arrived sync.WaitGroup
	arrived.Add(polls)
	release := make(chan struct{})
	serve(t, port, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			arrived.Done()
			<-release
		}
	})
	client := dialler.HTTPClient(port.Advertise(), port.Self().Incarnation)
	if again := dialler.HTTPClient(port.Advertise(), port.Self().Incarnation); again != client {
		t.Error("the client is not cached")
	}
	var done sync.WaitGroup
	for range polls {
		done.Go(func() {
			response, err := client.Post("http://n1/wait", "application/json", strings.NewReader("{}"))
			if err != nil {
				t.Error(err)
				return
			}
			response.Body.Close()
		})
	}
	arrived.Wait()
	if open := acceptedConns(port); open != 1 {
		t.Errorf("%d connections for %d waiting requests", open, polls)
	}
	close(release)
	done.Wait()
	for range 20 {
		get(t, dialler, port.Advertise(), port.Self().Incarnation)
	}
	if open := acceptedConns(port); open != 1 {
		t.Errorf("%d connections after %d requests", open, polls)
	}
}

// A caller who gives up cancels at the other end; a peer that is gone is an error that says nothing was sent.
func TestHTTPEnds(t *testing.T) {
	port := openPort(t, identity("n1", 1), testCluster)
	dialler := openPort(t, identity("n2", 2), testCluster)
	arrived, cancelled := make(chan struct{}), make(chan struct{})
	server := serve(t, port, func(w http.ResponseWriter, r *http.Request) {
		close(arrived)
		<-r.Context().Done()
		close(cancelled)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-arrived; cancel() }()
	request, _ := http.NewRequestWithContext(ctx, "GET", "http://n1/", nil)
	if _, err := dialler.HTTPClient(port.Advertise(), "").Do(request); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled request: %v", err)
	}
	<-cancelled

	limit, stop := context.WithTimeout(t.Context(), timeLimit)
	defer stop()
	if err := server.Shutdown(limit); err != nil {
		t.Errorf("shutting down with an idle peer connection: %v", err)
	}
	_, err := dialler.HTTPClient(port.Advertise(), "").Get("http://n1/")
	if failed, ok := errors.AsType[*DialError](err); !ok || !errors.Is(failed, ErrClosing) {
		t.Errorf("request to a server that has shut down: %v", err)
	}
	dialler.Close()
	if _, err := dialler.HTTPClient(port.Advertise(), "").Get("http://n1/"); !errors.Is(err, ErrClosing) {
		t.Errorf("request from a closed port: %v", err)
	}
}

// Forget closes what was open for a peer, and the cache of clients stays bounded.
func TestHTTPClientsAreForgotten(t *testing.T) {
	port := openPort(t, identity("n1", 1), testCluster)
	dialler := openPort(t, identity("n2", 2), testCluster)
	arrived := make(chan struct{})
	serve(t, port, func(w http.ResponseWriter, r *http.Request) { close(arrived); <-r.Context().Done() })
	failed := make(chan error)
	go func() {
		_, err := dialler.HTTPClient(port.Advertise(), "").Get("http://n1/")
		failed <- err
	}()
	<-arrived
	dialler.Forget(port.Advertise(), "")
	if err := <-failed; err == nil {
		t.Error("a request to a forgotten peer was answered")
	}
	for i := range 3 * maxClients {
		dialler.HTTPClient(fmt.Sprintf("n%d:7800", i), "")
	}
	dialler.mu.Lock()
	defer dialler.mu.Unlock()
	if len(dialler.clients) > maxClients {
		t.Errorf("%d clients are cached", len(dialler.clients))
	}
	if dialler.clients[target{hostport: fmt.Sprintf("n%d:7800", 3*maxClients-1)}] == nil {
		t.Error("the client used last was dropped")
	}
}

// A peer that no longer answers fails what waits for it within the pings' time, although no connection was closed.
func TestHTTPNoticesASilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newPipeNetwork()
		silent, _ := network.Listen("n1:7800")
		go func() {
			c, err := silent.Accept()
			if err != nil {
				return
			}
			frame, _ := readFrame(c, helloMagic)
			h, _ := parseHello(frame)
			c.Write(answer{nonce: h.nonce, cluster: testCluster, from: identity("n1", 1)}.frame())
			io.Copy(io.Discard, c)
		}()
		dialler := openPort(t, identity("n2", 2), testCluster, func(c *Config) { c.Network, c.Listen, c.Advertise = network, "n2:7800", "n2:7800" })
		start := time.Now()
		_, err := dialler.HTTPClient("n1:7800", "").Get("http://n1/")
		if took := time.Since(start); err == nil || took > pingAfter+pingTimeout+time.Second {
			t.Errorf("ended after %v with %v", took, err)
		}
	})
}
