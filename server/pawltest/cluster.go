package pawltest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pawl-lock/pawl/server"
	"github.com/pawl-lock/pawl/transport"
	"github.com/pawl-lock/pawl/transport/peer"
)

// Options say what kind of cluster a test wants. The zero value is three nodes with the default timing.
type Options struct {
	Nodes     int                                // 1 to 9; 0 means 3
	Seed      uint64                             // of the network's jitter
	Configure func(i int, config *server.Config) // changes a node's configuration before each start
	Verbose   bool                               // logs of the nodes go to the test's log
	Dir       string                             // where the nodes keep their data; a directory of the test's by default
	TCP       bool                               // on real loopback ports instead; Network is nil then
}

// Cluster is a whole cluster in one process: real nodes with real Raft and real files on disk, on an in-memory network
// that a test can cut. Inside a testing/synctest bubble it runs in virtual time. Its methods are for the test's own
// goroutine unless they say otherwise; failures end the test.
type Cluster struct {
	Network *Network

	t       testing.TB
	options Options
	dir     string
	apis    []string // host:port of each node's API, and of its peer port
	peers   []string
	nodes   []*server.Node
	client  *http.Client

	mu      sync.Mutex // over clients
	clients []*http.Client
}

// Run runs a test in virtual time, with a cluster that is ready. All of its clients must be closed when the test returns.
func Run(t *testing.T, options Options, test func(*testing.T, *Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := New(t, options)
		defer c.Close()
		c.WaitReady()
		test(t, c)
	})
}

// New makes a cluster, starts its nodes and stops them when the test ends. In a bubble call Close before the bubble ends.
func New(t testing.TB, options Options) *Cluster {
	t.Helper()
	if options.Nodes == 0 {
		options.Nodes = 3
	}
	c := &Cluster{t: t, options: options, dir: options.Dir, nodes: make([]*server.Node, options.Nodes)}
	if c.dir == "" {
		c.dir = t.TempDir()
	}
	for i := range c.nodes {
		c.apis, c.peers = append(c.apis, c.Name(i)+":7700"), append(c.peers, c.Name(i)+":7800")
	}
	if options.TCP {
		ports := freePorts(t, 2*options.Nodes)
		c.apis, c.peers = ports[:options.Nodes], ports[options.Nodes:]
	} else {
		c.Network = NewNetwork(options.Seed)
	}
	c.client = c.ClientAt("client")
	for i := range c.nodes {
		c.Start(i)
	}
	return c
}

// Close stops every node that runs, and closes the connections that clients keep.
func (c *Cluster) Close() {
	for i := range c.nodes {
		c.Stop(i)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, client := range c.clients {
		client.CloseIdleConnections()
	}
}

// Name is the name of node i, and of its host on the network.
func (c *Cluster) Name(i int) string { return fmt.Sprintf("n%d", i+1) }

// URL is where the API of node i is reached by a client of ClientAt.
func (c *Cluster) URL(i int) string { return "http://" + c.apis[i] }

// URLs are those of all nodes.
func (c *Cluster) URLs() []string {
	var urls []string
	for i := range c.nodes {
		urls = append(urls, c.URL(i))
	}
	return urls
}

// Dir is the data directory of node i.
func (c *Cluster) Dir(i int) string { return filepath.Join(c.dir, c.Name(i)) }

// Node is node i, nil while it is stopped.
func (c *Cluster) Node(i int) *server.Node { return c.nodes[i] }

// Size is the number of nodes, stopped ones included.
func (c *Cluster) Size() int { return len(c.nodes) }

// ClientAt returns an HTTP client at a host of this name, which can be cut off like a node's. Safe for concurrent use.
func (c *Cluster) ClientAt(host string) *http.Client {
	network := peer.TCP()
	if c.Network != nil {
		network = c.Network.Host(host)
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext:         func(ctx context.Context, _, address string) (net.Conn, error) { return network.Dial(ctx, address) },
		MaxIdleConnsPerHost: 512,
		IdleConnTimeout:     time.Minute,
	}}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clients = append(c.clients, client)
	return client
}

// Clock is what a client in virtual time counts its leases on: the time since this call.
func (c *Cluster) Clock() func() time.Duration {
	began := time.Now()
	return func() time.Duration { return time.Since(began) }
}

// Lose takes the lock called name from all who hold it, as an operator does by force. They learn of it, and of the reason,
// with their next renewal, a third of their TTL later at most. It is for one that is held.
func (c *Cluster) Lose(name, reason string) {
	c.t.Helper()
	leader := c.Leader()
	var now transport.LockResponse
	c.MustGet(leader, "/v1/lock?"+url.Values{"name": {name}}.Encode()).Into(c.t, &now)
	if len(now.Holders) == 0 {
		c.t.Fatalf("%q cannot be lost: nobody holds it", name)
	}
	tokens := map[transport.Token]bool{} // those who share it have one together
	for _, h := range now.Holders {
		tokens[h.Token] = true
	}
	for token := range tokens {
		body, err := json.Marshal(transport.ForceReleaseRequest{Name: name, Token: token, Reason: reason})
		if err != nil {
			c.t.Fatal(err)
		}
		c.MustPost(leader, http.StatusOK, "/v1/force-release", string(body))
	}
}

// Start starts node i on its data.
func (c *Cluster) Start(i int) {
	c.t.Helper()
	if err := c.TryStart(i); err != nil {
		c.t.Fatalf("starting %s: %v", c.Name(i), err)
	}
}

// TryStart starts node i and returns why it does not start.
func (c *Cluster) TryStart(i int) error {
	config := server.Config{
		Name: c.Name(i), DataDir: c.Dir(i), APIListen: c.apis[i], Insecure: true,
		Logger: hclog.NewNullLogger(), Version: "test",
	}
	if c.Network != nil {
		config.Network = c.Network.Host(c.Name(i))
	}
	if c.options.Verbose {
		config.Logger = hclog.New(&hclog.LoggerOptions{Name: c.Name(i), Level: hclog.Debug, Output: logWriter{c.t}})
	}
	for j := range c.nodes {
		config.Peers = append(config.Peers, server.Peer{Name: c.Name(j), Address: c.peers[j]})
	}
	if c.options.Configure != nil {
		c.options.Configure(i, &config)
	}
	n, err := server.Start(config)
	if err != nil {
		return err
	}
	c.nodes[i] = n
	return nil
}

// Stop stops node i in good order.
func (c *Cluster) Stop(i int) {
	if n := c.nodes[i]; n != nil {
		c.nodes[i] = nil
		if err := n.Stop(context.Background()); err != nil {
			c.t.Errorf("stopping %s: %v", c.Name(i), err)
		}
	}
}

// Crash ends node i without good-byes; what it had written to its files is there when it is started again.
func (c *Cluster) Crash(i int) {
	if n := c.nodes[i]; n != nil {
		c.nodes[i] = nil
		if c.Network != nil {
			c.Network.Crash(c.Name(i))
		}
		n.Crash()
	}
}

// Wipe removes the data of a node that is stopped.
func (c *Cluster) Wipe(i int) {
	if err := os.RemoveAll(c.Dir(i)); err != nil {
		c.t.Fatal(err)
	}
}

// readyLimit is how long a cluster may take to be ready.
const readyLimit = 30 * time.Second

// WaitReady waits until every node that runs is ready.
func (c *Cluster) WaitReady() {
	c.t.Helper()
	for i, n := range c.nodes {
		if n != nil {
			c.WaitNodeReady(i)
		}
	}
}

// WaitNodeReady waits until node i is ready.
func (c *Cluster) WaitNodeReady(i int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readyLimit)
	defer cancel()
	if err := c.nodes[i].Ready(ctx); err != nil {
		c.t.Fatalf("%s is not ready after %v", c.Name(i), readyLimit)
	}
}

// Leader waits until a node is at work as leader and returns which.
func (c *Cluster) Leader() int {
	c.t.Helper()
	for end := time.Now().Add(readyLimit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		for i, n := range c.nodes {
			if n != nil && n.Leads() {
				return i
			}
		}
	}
	c.t.Fatalf("no leader after %v", readyLimit)
	return -1
}

// Answer is what a node answered to one call.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Field returns a field of the JSON body, nil when it is not there.
func (a Answer) Field(name string) any {
	var fields map[string]any
	if json.Unmarshal(a.Body, &fields) != nil {
		return nil
	}
	return fields[name]
}

// Into reads the JSON body.
func (a Answer) Into(t testing.TB, out any) {
	t.Helper()
	if err := json.Unmarshal(a.Body, out); err != nil {
		t.Fatalf("answer %d %s: %v", a.Status, a.Body, err)
	}
}

// Post sends a body to a path of node i, from the host "client". It is safe for concurrent use; a failure to get any
// answer is the error.
func (c *Cluster) Post(ctx context.Context, i int, path, body string, header ...string) (Answer, error) {
	return c.Do(ctx, c.client, http.MethodPost, c.URL(i)+path, body, header...)
}

// Get reads a path of node i likewise.
func (c *Cluster) Get(ctx context.Context, i int, path string) (Answer, error) {
	return c.Do(ctx, c.client, http.MethodGet, c.URL(i)+path, "")
}

// Do sends one request with a client of ClientAt; header lists names and values.
func (c *Cluster) Do(ctx context.Context, client *http.Client, method, url, body string, header ...string) (Answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return Answer{}, err
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := client.Do(r)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	return Answer{response.StatusCode, response.Header, b}, err
}

// MustPost is Post where an answer with this status is expected.
func (c *Cluster) MustPost(i int, status int, path, body string, header ...string) Answer {
	c.t.Helper()
	a, err := c.Post(context.Background(), i, path, body, header...)
	if err != nil {
		c.t.Fatalf("POST %s to %s: %v", path, c.Name(i), err)
	}
	if a.Status != status {
		c.t.Fatalf("POST %s %s to %s: %d, want %d: %s", path, body, c.Name(i), a.Status, status, a.Body)
	}
	return a
}

// MustGet is Get where 200 is expected.
func (c *Cluster) MustGet(i int, path string) Answer {
	c.t.Helper()
	a, err := c.Get(context.Background(), i, path)
	if err != nil {
		c.t.Fatalf("GET %s from %s: %v", path, c.Name(i), err)
	}
	if a.Status != http.StatusOK {
		c.t.Fatalf("GET %s from %s: %d: %s", path, c.Name(i), a.Status, a.Body)
	}
	return a
}

// logWriter passes a node's log to the test's.
type logWriter struct{ t testing.TB }

func (w logWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s", bytes.TrimSpace(b))
	return len(b), nil
}

// freePorts finds loopback addresses that nobody listens at; they were free a moment ago.
func freePorts(t testing.TB, n int) (addresses []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		addresses = append(addresses, l.Addr().String())
	}
	return addresses
}
