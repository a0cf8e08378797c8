package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/pawl-lock/pawl/server"
)

const (
	devPort    = 7700 // of the first node's API; the others follow
	peerOffset = 100  // from a node's API port to its peer port
	// devReady bounds the wait for a cluster that cannot form; a healthy one takes a second or two.
	devReady = 30 * time.Second
)

// devCluster is what pawl dev is told.
type devCluster struct {
	configuration
	nodes int
	data  string
	port  int
}

func (p *program) devCommand() *cobra.Command {
	d := &devCluster{}
	list := slices.DeleteFunc(settings(&d.configuration), func(s setting) bool {
		return !slices.Contains([]string{"profile", "log-level", "log-format"}, s.name)
	})
	command := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole cluster in this process, to try it and to develop against",
		Long: `Run a real cluster of 1, 3 or 5 nodes in this one process: each with its own Raft log on disk, its own API port
and its own peer port, all on 127.0.0.1. Started again on the same data it finds its locks again.`,
		Args: cobra.NoArgs,
	}
	flags := command.Flags()
	flags.IntVar(&d.nodes, "nodes", 3, "how many nodes: 1, 3 or 5")
	flags.StringVar(&d.data, "data", "./pawl-data", "directory for the data of all nodes")
	flags.IntVar(&d.port, "port", devPort, fmt.Sprintf("API port of the first node, the others follow; peer ports are %d above", peerOffset))
	addFlags(flags, list)
	// What the nodes of one process say to each other while they form a cluster interests nobody.
	d.logLevel = "error"
	flags.Lookup("log-level").DefValue = d.logLevel
	command.RunE = action(func(ctx context.Context, _ []string) error {
		if _, err := configure(list, flags, p.getenv, "", nil); err != nil {
			return usageError{err}
		}
		if err := d.validate(); err != nil {
			return usageError{err}
		}
		return p.dev(ctx, d)
	})
	return command
}

func (d *devCluster) validate() error {
	switch {
	case d.nodes != 1 && d.nodes != 3 && d.nodes != 5:
		return fmt.Errorf("--nodes is 1, 3 or 5, not %d: an even number tolerates no more failures than the odd one below it", d.nodes)
	case d.port < 1 || d.port+peerOffset+d.nodes > 65535:
		return fmt.Errorf("--port %d leaves no room for the ports that follow it", d.port)
	}
	return nil
}

// configs gives the configuration of every node.
func (d *devCluster) configs() []server.Config {
	var list []server.Peer
	for i := range d.nodes {
		list = append(list, server.Peer{Name: fmt.Sprintf("n%d", i+1), Address: loopbackAddress(d.port + peerOffset + i)})
	}
	var configs []server.Config
	for i, peer := range list {
		config := d.Config
		config.Name, config.DataDir, config.Peers = peer.Name, nodeDirectory(d.data, peer.Name), list
		config.APIListen, config.APIURL, config.PeerListen = loopbackAddress(d.port+i), "", peer.Address
		configs = append(configs, config)
	}
	return configs
}

// checkPorts refuses ports that are in use before the data directory is made for them.
func checkPorts(configs []server.Config) error {
	for _, config := range configs {
		for _, address := range []string{config.APIListen, config.PeerListen} {
			listener, err := net.Listen("tcp", address)
			if err != nil {
				return fmt.Errorf("%w: is another pawl dev running? --port chooses other ports", err)
			}
			listener.Close()
		}
	}
	return nil
}

func loopbackAddress(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// dev runs the cluster until it is told to stop.
func (p *program) dev(ctx context.Context, d *devCluster) error {
	if err := checkPorts(d.configs()); err != nil {
		return err
	}
	if err := claimDevData(d.data, devRecord{Nodes: d.nodes, Port: d.port}); err != nil {
		return err
	}
	started := time.Now()
	log := p.logger(&d.configuration)
	stop := p.watchSignals(ctx)
	var nodes []*server.Node
	for _, config := range d.configs() {
		config.Version = versionText()
		config.Logger = log.Named(config.Name)
		config.Fatal = func(reason error) { p.failStop(fmt.Errorf("node %s: %w", config.Name, reason)) }
		node, err := server.Start(config)
		if err != nil {
			ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
			defer cancel()
			_ = stopAll(ctx, nodes) // the error that matters is why this one did not start
			return fmt.Errorf("starting node %s: %w", config.Name, err)
		}
		nodes = append(nodes, node)
	}
	ready, cancel := context.WithTimeout(stop, devReady)
	defer cancel()
	for i, node := range nodes {
		if err := node.Ready(ready); err != nil && stop.Err() == nil {
			ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
			defer cancel()
			_ = stopAll(ctx, nodes)
			return fmt.Errorf("node n%d was not ready within %v: %w", i+1, devReady, err)
		}
	}
	if stop.Err() == nil {
		p.welcome(d, nodes, time.Since(started))
	}
	// When all nodes of a cluster go at the same moment, each complains of the others.
	context.AfterFunc(stop, func() { log.SetLevel(hclog.Off) })
	return p.untilStopped(stop, log, nodes...)
}

func (p *program) welcome(d *devCluster, nodes []*server.Node, took time.Duration) {
	var urls []string
	for _, node := range nodes {
		urls = append(urls, "http://"+node.APIAddress())
	}
	count := "1 node is"
	if len(nodes) > 1 {
		count = fmt.Sprintf("%d nodes are", len(nodes))
	}
	fmt.Fprintf(p.stdout, `Pawl %s: %s ready after %v, data in %s
API   %s

Take a lock:
  curl -s %s/v1/acquire -d '{"name":"nightly-report","owner":"me","ttl_ms":30000}'
Look at it:
  pawl locks%s

Ctrl-C stops the cluster; the locks are found again when it is started again.
`, versionText(), count, took.Round(time.Millisecond), d.data, strings.Join(urls, "  "), urls[0], endpointsHint(urls))
}

// endpointsHint is what has to be added to a command when the cluster is not where it looks by default.
func endpointsHint(urls []string) string {
	if urls[0] == defaultEndpoint {
		return ""
	}
	return " --endpoints " + strings.Join(urls, ",")
}
