package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/jepsen/cluster"
	"github.com/pawl-lock/pawl/transport"
	"github.com/pawl-lock/pawl/transport/peer"
)

// Options say what kind of cluster a run wants.
type Options struct {
	Nodes   int    // 1 to 9
	Clients int    // 0 to 100
	Pawl    string // path of the program that nodes run
	// Dir is where logs go, and what clients record; it must exist.
	Dir string
	// DiskSize of each node, in bytes; 192 MiB by default. What is not used costs no memory.
	DiskSize int64
}

// Cluster is a cluster.Cluster of real processes.
type Cluster struct {
	options Options
	began   time.Duration // on the clock of client.Now
	bridge  string
	nodes   []*node
	hosts   []*host // of the nodes, then of the clients
	http    http.Client
	port    *peer.Port // to ask nodes what they tell each other

	// Of the one goroutine that makes faults.
	touched map[int]bool // hosts with rules
	holders []*holder

	mu      sync.Mutex // guards what follows, and the processes of nodes
	clients map[int]*child
}

var _ cluster.Cluster = (*Cluster)(nil)

var (
	errNotRunning = errors.New("the process does not run")
	errRunning    = errors.New("the process runs")
)

// count keeps the names and addresses of several clusters of one harness apart.
var count atomic.Int32

// New makes the hosts and starts the nodes; it does not wait until they are ready. The program must be inside Isolate. Close
// it when it is not used any more.
func New(options Options) (*Cluster, error) {
	if err := furnish(); err != nil {
		return nil, fmt.Errorf("a cluster of processes: %w", err)
	}
	number := count.Add(1)
	if options.Nodes < 1 || options.Nodes > 9 || options.Clients < 0 || options.Clients > 100 || number > 250 {
		return nil, fmt.Errorf("%d nodes and %d clients in cluster %d: at most 9, 100 and 250", options.Nodes, options.Clients, number)
	}
	if options.DiskSize == 0 {
		options.DiskSize = 192 << 20
	}
	c := &Cluster{
		options: options, began: client.Now(), bridge: fmt.Sprintf("pawl%d", number),
		touched: map[int]bool{}, clients: map[int]*child{},
	}
	if err := c.build(number); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) build(number int32) error {
	subnet := fmt.Sprintf("198.18.%d.", number) // of the range for measurements between networks
	here := subnet + "254"
	if err := batch("", "link add "+c.bridge+" type bridge", "addr add "+here+"/24 dev "+c.bridge, "link set "+c.bridge+" up"); err != nil {
		return err
	}
	// Each cluster has connections of its own, which end with it.
	c.http.Transport = &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: 10 * time.Second}
	port, err := peer.Open(peer.Config{
		Listen: here + ":7800", Self: peer.Identity{Name: "jepsen", Incarnation: peer.NewIncarnation()},
		Cluster: func() string { return "" },
	})
	if err != nil {
		return err
	}
	c.port = port
	for i := range c.options.Nodes + c.options.Clients {
		name := fmt.Sprintf("c%dh%d", number, i)
		h, err := plug(c.bridge, name, fmt.Sprint(subnet, i+1))
		if err != nil {
			return err
		}
		c.hosts = append(c.hosts, h)
	}
	for i := range c.options.Nodes {
		n := &node{name: fmt.Sprintf("n%d", i+1), host: c.hosts[i]}
		n.disk = filepath.Join(disks, c.bridge, n.name)
		if n.log, err = os.OpenFile(filepath.Join(c.options.Dir, n.name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644); err != nil {
			return err
		}
		c.nodes = append(c.nodes, n)
		if err := n.mount(c.options.DiskSize); err != nil {
			return err
		}
	}
	for i := range c.nodes {
		if err := c.Start(i); err != nil {
			return err
		}
	}
	return nil
}

// Close ends all processes, and removes the hosts and the nodes' data. Logs stay.
func (c *Cluster) Close() error {
	c.mu.Lock()
	for _, child := range c.clients {
		_ = child.kill() // or has ended
	}
	c.mu.Unlock()
	_ = c.Heal()
	for _, n := range c.nodes {
		_ = n.process.kill()
		_ = n.untrace()
		n.unmount()
		_ = n.log.Close()
	}
	var err error
	if c.port != nil {
		err = c.port.Close()
	}
	c.http.CloseIdleConnections()
	for _, h := range c.hosts {
		h.unplug()
	}
	return errors.Join(err, run("ip", "link", "del", c.bridge))
}

// Kind implements cluster.Cluster.
func (c *Cluster) Kind() string { return "processes" }

// Size implements cluster.Cluster.
func (c *Cluster) Size() int { return len(c.nodes) }

// Now implements cluster.Cluster. It counts on the clock that leases are counted on, which is the same in all processes.
func (c *Cluster) Now() time.Duration { return client.Now() - c.began }

// Sleep implements cluster.Cluster.
func (c *Cluster) Sleep(ctx context.Context, d time.Duration) error { return sleep(ctx, d) }

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *Cluster) endpoints() (urls []string) {
	for _, n := range c.nodes {
		urls = append(urls, n.apiURL())
	}
	return urls
}

// Client implements cluster.Cluster. It is a client in the harness's own process, at the host of client i: it can be cut
// off, and cannot be paused. See Work for one that can.
func (c *Cluster) Client(i int) cluster.Client {
	h := c.hosts[len(c.nodes)+i]
	return cluster.Client{
		Endpoints: c.endpoints(),
		HTTP:      &http.Client{Transport: &http.Transport{DialContext: h.dial, MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute}},
		Clock:     c.Now,
		Point:     func(context.Context) {},
	}
}

// askLimit bounds one question of the harness to one node.
const askLimit = 2 * time.Second

// get asks a node's API.
func (c *Cluster) get(ctx context.Context, n *node, path string, into any) error {
	return c.ask(ctx, &c.http, http.MethodGet, n.apiURL()+path, nil, into)
}

func (c *Cluster) ask(ctx context.Context, through *http.Client, method, url string, body io.Reader, into any) error {
	request, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return err
	}
	response, err := through.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return err
	}
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("%d %.300s", response.StatusCode, answer)
	}
	return json.Unmarshal(answer, into)
}

// Leader implements cluster.Cluster: whom the node with the highest term takes for the leader.
func (c *Cluster) Leader() int {
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	answers := make([]transport.ClusterResponse, len(c.nodes))
	var asking sync.WaitGroup
	for i, n := range c.nodes {
		asking.Go(func() { _ = c.get(ctx, n, "/v1/cluster?consistency=stale", &answers[i]) })
	}
	asking.Wait()
	leader, term := -1, uint64(0)
	for _, a := range answers {
		for i, n := range c.nodes {
			if n.name == a.Leader && a.Term >= term {
				leader, term = i, a.Term
			}
		}
	}
	return leader
}

// Ready implements cluster.Cluster.
func (c *Cluster) Ready(ctx context.Context) error {
	for i, n := range c.nodes {
		for c.Runs(i) {
			limited, cancel := context.WithTimeout(ctx, 2*askLimit)
			err := c.get(limited, n, "/readyz", &struct{}{})
			cancel()
			if err == nil {
				break
			}
			if sleep(ctx, 50*time.Millisecond) != nil {
				return fmt.Errorf("%s is not ready: %w", n.name, err)
			}
		}
	}
	return ctx.Err()
}

// Digest implements cluster.Cluster: the harness asks as another node would.
func (c *Cluster) Digest(ctx context.Context, node int) (uint64, string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*askLimit)
	defer cancel()
	n := c.nodes[node]
	if !c.Runs(node) {
		return 0, "", errNotRunning
	}
	var answer struct {
		Index  uint64
		Digest string
	}
	err := c.ask(ctx, c.port.HTTPClient(n.peer(), ""), http.MethodGet, "http://"+n.peer()+"/peer/digest", nil, &answer)
	return answer.Index, answer.Digest, err
}

// Transfer implements cluster.Cluster.
func (c *Cluster) Transfer(to int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	body, err := json.Marshal(transport.TransferRequest{To: c.nodes[to].name})
	if err != nil {
		return err
	}
	return c.ask(ctx, &c.http, http.MethodPost, c.nodes[to].apiURL()+"/v1/cluster/transfer", bytes.NewReader(body), &struct{}{})
}

// StepClock implements cluster.Cluster.
func (c *Cluster) StepClock(int, time.Duration) error { return cluster.ErrUnsupported }

// mostLog is how much of one node's log Logs gives; all of it is in Dir.
const mostLog = 16 << 20

// Logs implements cluster.Cluster.
func (c *Cluster) Logs() map[string]string {
	logs := map[string]string{}
	for _, n := range c.nodes {
		logs[n.name] = tail(n.logPath(), mostLog)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.clients {
		logs[fmt.Sprint("client", i)] = tail(c.clientLog(i), mostLog)
	}
	return logs
}

// tail gives the end of a file, or why there is none.
func tail(path string, most int64) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	skipped := ""
	if info, err := f.Stat(); err == nil && info.Size() > most {
		if _, err := f.Seek(-most, io.SeekEnd); err != nil {
			return err.Error()
		}
		skipped = fmt.Sprintf("… the first %d bytes are left out …\n", info.Size()-most)
	}
	b, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return err.Error()
	}
	return skipped + string(b)
}
