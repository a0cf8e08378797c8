package process

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/jepsen/cluster"
	"github.com/pawl-lock/pawl/transport"
	"github.com/pawl-lock/pawl/transport/peer"
)

// ground is what clusters of processes and of containers have in common: hosts of clients, and how the harness asks nodes.
type ground struct {
	size  int                 // nodes
	runs  func(node int) bool // whether it does
	dir   string              // where logs go
	walls walls               // of the hosts
	// nodePID is that of a node's process, as the harness sees it; 0 when none can be got at.
	nodePID func(node int) int
	began   time.Duration // on the clock of client.Now
	hosts   []*host       // of the nodes, then of the clients
	http    http.Client
	port    *peer.Port // to ask nodes what they tell each other

	mu      sync.Mutex // guards what follows, and the processes of nodes
	clients map[int]*child
}

// open begins to ask nodes, from an address of this machine that they can answer to.
func (c *ground) open(address string) error {
	c.began, c.clients = client.Now(), map[int]*child{}
	// Each cluster has connections of its own, which end with it.
	c.http.Transport = &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: 10 * time.Second}
	port, err := peer.Open(peer.Config{
		Listen: address, Self: peer.Identity{Name: "jepsen", Incarnation: peer.NewIncarnation()},
		Cluster: func() string { return "" },
	})
	c.port = port
	return err
}

// close ends the clients, and asks nobody any more.
func (c *ground) close() (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, child := range c.clients {
		_ = child.kill() // or it has ended
	}
	if c.port != nil {
		err = c.port.Close()
	}
	c.http.CloseIdleConnections()
	return err
}

// Size implements cluster.Cluster.
func (c *ground) Size() int { return c.size }

// Now implements cluster.Cluster. It counts on the clock that leases are counted on, which is the same in all processes.
func (c *ground) Now() time.Duration { return client.Now() - c.began }

// Sleep implements cluster.Cluster.
func (c *ground) Sleep(ctx context.Context, d time.Duration) error { return sleep(ctx, d) }

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

// name of a node.
func name(node int) string { return fmt.Sprintf("n%d", node+1) }

func (c *ground) api(node int) string  { return "http://" + c.hosts[node].address + ":7700" }
func (c *ground) peer(node int) string { return c.hosts[node].address + ":7800" }

func (c *ground) endpoints() (urls []string) {
	for i := range c.size {
		urls = append(urls, c.api(i))
	}
	return urls
}

// Client implements cluster.Cluster. It is a client in the harness's own process, at the host of client i: it can be cut
// off, and cannot be paused. See Work for one that can.
func (c *ground) Client(i int) cluster.Client {
	h := c.hosts[c.size+i]
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
func (c *ground) get(ctx context.Context, node int, path string, into any) error {
	return c.ask(ctx, &c.http, http.MethodGet, c.api(node)+path, nil, into)
}

func (c *ground) ask(ctx context.Context, through *http.Client, method, url string, body io.Reader, into any) error {
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
func (c *ground) Leader() int {
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	answers := make([]transport.ClusterResponse, c.size)
	var asking sync.WaitGroup
	for i := range c.size {
		asking.Go(func() { _ = c.get(ctx, i, "/v1/cluster?consistency=stale", &answers[i]) })
	}
	asking.Wait()
	leader, term := -1, uint64(0)
	for _, a := range answers {
		for i := range c.size {
			if name(i) == a.Leader && a.Term >= term {
				leader, term = i, a.Term
			}
		}
	}
	return leader
}

// Ready implements cluster.Cluster.
func (c *ground) Ready(ctx context.Context) error {
	for i := range c.size {
		for c.runs(i) {
			limited, cancel := context.WithTimeout(ctx, 2*askLimit)
			err := c.get(limited, i, "/readyz", &struct{}{})
			cancel()
			if err == nil {
				break
			}
			if sleep(ctx, 50*time.Millisecond) != nil {
				return fmt.Errorf("%s is not ready: %w", name(i), err)
			}
		}
	}
	return ctx.Err()
}

// Digest implements cluster.Cluster: the harness asks as another node would.
func (c *ground) Digest(ctx context.Context, node int) (uint64, string, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*askLimit)
	defer cancel()
	if !c.runs(node) {
		return 0, "", errNotRunning
	}
	var answer struct {
		Index  uint64
		Digest string
	}
	err := c.ask(ctx, c.port.HTTPClient(c.peer(node), ""), http.MethodGet, "http://"+c.peer(node)+"/peer/digest", nil, &answer)
	return answer.Index, answer.Digest, err
}

// Transfer implements cluster.Cluster.
func (c *ground) Transfer(to int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	body, err := json.Marshal(transport.TransferRequest{To: name(to)})
	if err != nil {
		return err
	}
	return c.ask(ctx, &c.http, http.MethodPost, c.api(to)+"/v1/cluster/transfer", bytes.NewReader(body), &struct{}{})
}

// StepClock implements cluster.Cluster: the host's processes see it, and those that start later.
func (c *ground) StepClock(host int, by time.Duration) error {
	return c.walls.step(host, by, func() int { return c.pid(host) })
}

// showClock has a process that was started at a host see its clock.
func (c *ground) showClock(host int) error {
	return c.walls.show(host, func() int { return c.pid(host) })
}

// pid is that of the process at a host; 0 when none can be got at.
func (c *ground) pid(host int) int {
	if host < c.size {
		return c.nodePID(host)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if child := c.clients[host-c.size]; child.runs() {
		return child.pid()
	}
	return 0
}

// clientLogs adds what clients have logged.
func (c *ground) clientLogs(logs map[string]string) map[string]string {
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
