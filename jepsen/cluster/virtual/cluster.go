package virtual

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/pawl-lock/pawl/jepsen/cluster"
	"github.com/pawl-lock/pawl/server"
	"github.com/pawl-lock/pawl/server/pawltest"
	"github.com/pawl-lock/pawl/server/replica"
)

// Options say what kind of cluster a run wants.
type Options struct {
	Nodes   int    // 1 to 9
	Clients int    // hosts of clients
	Seed    uint64 // of the network's jitter and the clients' clocks
	Dir     string // the nodes' data; it must exist
	// Snapshots are such that the log is cut all the time, when this is zero.
	Snapshots replica.SnapshotPolicy
}

// often is for followers that were away: they get a snapshot.
var often = replica.SnapshotPolicy{Interval: 5 * time.Second, Threshold: 300, Trailing: 200}

// Cluster is a cluster.Cluster in virtual time.
type Cluster struct {
	test  *pawltest.Cluster
	began time.Time
	nodes int
	dir   string
	hosts []*host
	logs  []*log
	disks []*disk

	endings sync.WaitGroup // of nodes that ended themselves

	mu    sync.Mutex // guards what follows, and is never held while virtual time passes
	alive []*server.Node
	cuts  map[way]int // by how many faults
	slow  map[way]bool
}

// lingering is how long a node that was killed may have goroutines left, which would end with a process: those that serve requests.
const lingering = time.Minute

type way struct{ from, to int }

// host is where a client is.
type host struct {
	client cluster.Client
	gate   gate
}

var _ cluster.Cluster = (*Cluster)(nil)

// New starts the nodes. It must be called in the bubble, as everything else.
func New(t testing.TB, options Options) *Cluster {
	c := &Cluster{
		began: time.Now(), nodes: options.Nodes, dir: options.Dir,
		alive: make([]*server.Node, options.Nodes), cuts: map[way]int{}, slow: map[way]bool{},
	}
	for range options.Nodes {
		c.logs = append(c.logs, &log{})
		c.disks = append(c.disks, newDisk(options.Seed+uint64(len(c.disks))))
	}
	c.test = pawltest.New(t, pawltest.Options{
		Nodes: options.Nodes, Seed: options.Seed, Dir: options.Dir,
		Configure: func(i int, config *server.Config) {
			config.Snapshots = cmp.Or(options.Snapshots, often)
			config.Logger = hclog.New(&hclog.LoggerOptions{Name: c.nodeName(i), Level: hclog.Info, Output: c.logs[i]})
			config.Disk = c.disks[i].born()
			config.Fatal = func(reason error) { c.failed(i, reason) }
		},
	})
	for i := range c.alive {
		c.alive[i] = c.test.Node(i)
	}
	random := rand.New(rand.NewPCG(options.Seed, 7))
	for i := range options.Clients {
		h := &host{}
		// The ends of what is allowed are met as often as the middle (R9).
		rate := []float64{0.999, 1, 1.001, 1 + (random.Float64()*2-1)/1000}[random.IntN(4)]
		h.client = cluster.Client{
			Endpoints: c.test.URLs(),
			HTTP:      c.test.ClientAt(fmt.Sprint("client", i)),
			Clock:     func() time.Duration { return time.Duration(float64(time.Since(c.began)) * rate) },
			Point:     h.gate.pass,
		}
		c.hosts = append(c.hosts, h)
	}
	return c
}

func (c *Cluster) nodeName(i int) string { return fmt.Sprintf("n%d", i+1) }

// Kind implements cluster.Cluster.
func (c *Cluster) Kind() string { return "virtual" }

// Size implements cluster.Cluster.
func (c *Cluster) Size() int { return c.nodes }

// Now implements cluster.Cluster.
func (c *Cluster) Now() time.Duration { return time.Since(c.began) }

// Sleep implements cluster.Cluster.
func (c *Cluster) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Client implements cluster.Cluster.
func (c *Cluster) Client(i int) cluster.Client { return c.hosts[i].client }

func (c *Cluster) node(i int) *server.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.alive[i]
}

// take has the node not count as running any more, and gives it if it did.
func (c *Cluster) take(i int) *server.Node {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.alive[i]
	c.alive[i] = nil
	return n
}

// failed is a node's Fatal: a process would exit in it. It may be called from within what a crash waits for.
func (c *Cluster) failed(i int, reason error) {
	_, _ = fmt.Fprintf(c.logs[i], "fatal: %v\n", reason)
	c.endings.Go(func() {
		if n := c.take(i); n != nil {
			c.test.Network.Crash(c.nodeName(i))
			c.disks[i].die()
			n.Crash()
		}
	})
}

// Leader implements cluster.Cluster.
func (c *Cluster) Leader() int {
	for i := range c.nodes {
		if n := c.node(i); n != nil && n.Leads() {
			return i
		}
	}
	return -1
}

// Ready implements cluster.Cluster.
func (c *Cluster) Ready(ctx context.Context) error {
	for i := range c.nodes {
		if n := c.node(i); n != nil {
			if err := n.Ready(ctx); err != nil {
				return fmt.Errorf("%s is not ready: %w", c.nodeName(i), err)
			}
		}
	}
	return nil
}

// Digest implements cluster.Cluster.
func (c *Cluster) Digest(_ context.Context, node int) (uint64, string, error) {
	n := c.node(node)
	if n == nil {
		return 0, "", errNotRunning
	}
	index, digest := n.Digest()
	return index, fmt.Sprintf("%x", digest[:8]), nil
}

// Logs implements cluster.Cluster.
func (c *Cluster) Logs() map[string]string {
	logs := map[string]string{}
	for i, l := range c.logs {
		logs[c.nodeName(i)] = l.String()
	}
	return logs
}

var (
	errNotRunning = errors.New("the node does not run")
	errRunning    = errors.New("the node runs")
)

// Kill implements cluster.Cluster. What the node has written is kept, synced or not.
func (c *Cluster) Kill(node int) error {
	if c.take(node) == nil {
		return errNotRunning
	}
	c.test.Network.Crash(c.nodeName(node))
	c.disks[node].die()
	c.test.Crash(node)
	return nil
}

// Stop implements cluster.Cluster.
func (c *Cluster) Stop(node int) error {
	n := c.take(node)
	if n == nil {
		return errNotRunning
	}
	return n.Stop(context.Background())
}

// Start implements cluster.Cluster.
func (c *Cluster) Start(node int) error {
	c.endings.Wait()
	if c.node(node) != nil {
		return nil
	}
	c.test.Crash(node) // what is left of a node that ended itself or was stopped: its network's life ends
	if err := c.test.TryStart(node); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alive[node] = c.test.Node(node)
	return nil
}

// Runs implements cluster.Cluster.
func (c *Cluster) Runs(node int) bool { return c.node(node) != nil }

// Pause implements cluster.Cluster.
func (c *Cluster) Pause(int) error { return cluster.ErrUnsupported }

// Resume implements cluster.Cluster.
func (c *Cluster) Resume(int) error { return cluster.ErrUnsupported }

// PauseClient implements cluster.Cluster: the client does nothing beyond its next Point, and hears and says nothing. What
// was on its way arrives when it is resumed.
func (c *Cluster) PauseClient(client int) error {
	if c.hosts[client].gate.close() {
		c.aroundClient(client, c.Cut)
	}
	return nil
}

// ResumeClient implements cluster.Cluster.
func (c *Cluster) ResumeClient(client int) error {
	if c.hosts[client].gate.open() {
		c.aroundClient(client, c.uncut)
	}
	return nil
}

func (c *Cluster) aroundClient(client int, change func(from, to int) error) {
	for i := range c.nodes {
		_ = change(i, c.nodes+client) // both only fail for hosts that there are not
		_ = change(c.nodes+client, i)
	}
}

func (c *Cluster) name(host int) string {
	if host < c.nodes {
		return c.nodeName(host)
	}
	return fmt.Sprint("client", host-c.nodes)
}

// Cut implements cluster.Cluster.
func (c *Cluster) Cut(from, to int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cuts[way{from, to}]++
	c.test.Network.CutOneWay(c.name(from), c.name(to))
	return nil
}

// uncut ends one of the cuts of a way.
func (c *Cluster) uncut(from, to int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := way{from, to}
	if c.cuts[w]--; c.cuts[w] <= 0 {
		delete(c.cuts, w)
		c.healLocked(w)
	}
	return nil
}

// healLocked opens one way. The network heals both ways of two hosts, so the other is cut again: what that held stays held.
func (c *Cluster) healLocked(w way) {
	c.test.Network.Heal(c.name(w.from), c.name(w.to))
	if c.cuts[way{w.to, w.from}] > 0 {
		c.test.Network.CutOneWay(c.name(w.to), c.name(w.from))
	}
}

// Delay implements cluster.Cluster. The network knows one delay for both ways, with a quarter of it as jitter.
func (c *Cluster) Delay(from, to int, delay, _ time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.test.Network.SetDelay(c.name(from), c.name(to), delay)
	c.slow[way{from, to}] = true
	return nil
}

// Heal implements cluster.Cluster. Clients that are paused stay so.
func (c *Cluster) Heal() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.slow {
		c.test.Network.SetDelay(c.name(w.from), c.name(w.to), 0)
	}
	clear(c.slow)
	for w := range c.cuts {
		if !c.pausedLocked(w.from) && !c.pausedLocked(w.to) {
			delete(c.cuts, w)
			c.healLocked(w)
			continue
		}
		c.cuts[w] = 1 // the pause's
	}
	return nil
}

func (c *Cluster) pausedLocked(host int) bool {
	return host >= c.nodes && c.hosts[host-c.nodes].gate.closed()
}

// Transfer implements cluster.Cluster.
func (c *Cluster) Transfer(to int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	answer, err := c.test.Post(ctx, to, "/v1/cluster/transfer", fmt.Sprintf(`{"to":%q}`, c.nodeName(to)))
	if err == nil && answer.Status/100 != 2 {
		err = fmt.Errorf("%d %.200s", answer.Status, answer.Body)
	}
	return err
}

// Disk implements cluster.Cluster, for the writes of the log and of votes.
func (c *Cluster) Disk(node int, how cluster.Disk, delay time.Duration) error {
	c.disks[node].set(how, delay)
	return nil
}

// Wipe implements cluster.Cluster.
func (c *Cluster) Wipe(node int) error {
	if c.node(node) != nil {
		return errRunning
	}
	return os.RemoveAll(c.test.Dir(node))
}

// Damage implements cluster.Cluster: it flips bits in, or cuts the end off, one of the node's files. No bits are flipped in the
// log's database: bbolt leaves a goroutine behind when it finds keys out of order, which no bubble allows; real processes
// get that.
func (c *Cluster) Damage(node int, seed uint64) error {
	if c.node(node) != nil {
		return errRunning
	}
	var files []string
	err := filepath.WalkDir(c.test.Dir(node), func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		return errors.Join(err, errors.New("the node has no files"))
	}
	random := rand.New(rand.NewPCG(seed, 3))
	path := files[random.IntN(len(files))]
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if len(data) == 0 {
		return nil
	}
	if random.IntN(2) == 0 || filepath.Ext(path) == ".db" {
		data = data[:random.IntN(len(data))]
	} else {
		for range 1 + random.IntN(8) {
			data[random.IntN(len(data))] ^= 1 << random.IntN(8)
		}
	}
	return os.WriteFile(path, data, 0o600)
}

// Lose implements cluster.Cluster: the network carries streams, on which a lost packet is nothing but a delay.
func (c *Cluster) Lose(int, int, float64, uint64) error { return cluster.ErrUnsupported }

// StepClock implements cluster.Cluster.
func (c *Cluster) StepClock(int, time.Duration) error { return cluster.ErrUnsupported }

// Close implements cluster.Cluster. Every node is stopped without good-byes.
func (c *Cluster) Close() error {
	for i := range c.hosts {
		_ = c.ResumeClient(i)
	}
	_ = c.Heal()
	c.endings.Wait()
	for i := range c.nodes {
		c.take(i)
		c.disks[i].die()
		c.test.Crash(i)
	}
	c.test.Close()
	time.Sleep(lingering)
	return nil
}
