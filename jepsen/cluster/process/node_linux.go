package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// node is one pawl server.
type node struct {
	name    string
	host    *host
	disk    string   // where its file system is mounted
	log     *os.File // of the program in all its lives, and of what was done to it
	process *child   // the newest; nil before the first
	tracer  *child
}

func (n *node) data() string    { return filepath.Join(n.disk, "data") }
func (n *node) logPath() string { return n.log.Name() }

// stopLimit is how long a node may take to stop in order: its own limit, and what a busy machine adds.
const stopLimit = 20 * time.Second

// Kill implements cluster.Cluster.
func (c *Cluster) Kill(node int) error {
	n := c.nodes[node]
	err := n.process.kill()
	n.untrace()
	return err
}

// Stop implements cluster.Cluster.
func (c *Cluster) Stop(node int) error { return c.nodes[node].process.stop(stopLimit) }

// Runs implements cluster.Cluster.
func (c *Cluster) Runs(node int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[node].process.runs()
}

func (c *Cluster) nodeProcess(node int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if process := c.nodes[node].process; process.runs() {
		return process.pid()
	}
	return 0
}

// Pause implements cluster.Cluster.
func (c *Cluster) Pause(node int) error { return c.nodes[node].process.pause() }

// Resume implements cluster.Cluster.
func (c *Cluster) Resume(node int) error { return c.nodes[node].process.signal(syscall.SIGCONT) }

// Start implements cluster.Cluster. It returns when the program runs, which it may end soon when its data is damaged.
func (c *Cluster) Start(node int) error {
	n := c.nodes[node]
	if n.process.runs() {
		return nil
	}
	var peers []string
	for i := range c.nodes {
		peers = append(peers, name(i)+"="+c.peer(i))
	}
	command := exec.Command(c.options.Pawl, "server", "--name", n.name, "--data", n.data(), "--peers", strings.Join(peers, ","),
		"--api", n.host.address+":7700", "--insecure", "--log-format", "json")
	command.Stdout, command.Stderr = n.log, n.log
	fmt.Fprintf(n.log, "--- harness: starting at %v\n", c.Now().Round(time.Millisecond))
	process, err := spawn(n.host.start, command, n.log)
	if err != nil {
		return err
	}
	c.mu.Lock()
	n.process = process
	c.mu.Unlock()
	return c.showClock(node)
}
