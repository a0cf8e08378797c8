package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/pawl-lock/pawl/jepsen/cluster"
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
	ground
	options Options
	bridge  string
	nodes   []*node

	// Of the one goroutine that makes faults.
	touched map[int]bool // hosts with rules
	holders []*holder
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
		ground:  ground{size: options.Nodes, dir: options.Dir},
		options: options, bridge: fmt.Sprintf("pawl%d", number), touched: map[int]bool{},
	}
	c.runs, c.nodePID = c.Runs, c.nodeProcess
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
	if err := c.open(here + ":7800"); err != nil {
		return err
	}
	for i := range c.options.Nodes + c.options.Clients {
		name := fmt.Sprintf("c%dh%d", number, i)
		h, err := plug(c.bridge, name, fmt.Sprint(subnet, i+1))
		if err != nil {
			return err
		}
		c.hosts = append(c.hosts, h)
	}
	for i := range c.options.Nodes {
		n := &node{name: name(i), host: c.hosts[i]}
		n.disk = filepath.Join(disks, c.bridge, n.name)
		log, err := os.OpenFile(filepath.Join(c.dir, n.name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		if err != nil {
			return err
		}
		n.log = log
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
	err := c.ground.close()
	_ = c.Heal()
	for _, n := range c.nodes {
		_ = n.process.kill()
		n.untrace()
		n.unmount()
		_ = n.log.Close()
	}
	for _, h := range c.hosts {
		h.unplug()
	}
	return errors.Join(err, run("ip", "link", "del", c.bridge))
}

// Kind implements cluster.Cluster.
func (c *Cluster) Kind() string { return "processes" }

// mostLog is how much of one node's log Logs gives; all of it is in Dir.
const mostLog = 16 << 20

// Logs implements cluster.Cluster.
func (c *Cluster) Logs() map[string]string {
	logs := map[string]string{}
	for _, n := range c.nodes {
		logs[n.name] = tail(n.logPath(), mostLog)
	}
	return c.clientLogs(logs)
}
