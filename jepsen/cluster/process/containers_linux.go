package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/pawl-lock/pawl/jepsen/cluster"
)

// ContainerOptions say what kind of cluster of containers a run wants.
type ContainerOptions struct {
	Nodes   int    // 3 or 5: those that there are compose files for
	Clients int    // 0 to 50
	Root    string // folder of docker-compose.yml
	Dist    string // folder that make dist has made
	Dir     string // where logs go, and what clients record; it must exist
}

// Containers is the compose cluster, as users deploy it, with fixed addresses. Clients are processes at hosts of their own on
// the same bridge, so links to them are cut where those between containers are. It needs Docker, root, ip and iptables,
// and does not run inside Isolate: Close must be called, or containers, rules and hosts stay.
type Containers struct {
	ground
	options ContainerOptions
	compose []string // the command
	project string
	ids     []string // of the containers
	log     *os.File // of what was done

	// Of the one goroutine that makes faults.
	rules   [][]string // in DOCKER-USER
	holders []*holder
	tracers map[int]*child
}

var _ cluster.Apart = (*Containers)(nil)

// output runs a program and gives what it prints.
func output(program string, arguments ...string) (string, error) {
	out, err := exec.Command(program, arguments...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("%s %s: %w", program, strings.Join(arguments, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// NewContainers builds the image and starts the containers; it does not wait until they are ready.
func NewContainers(options ContainerOptions) (*Containers, error) {
	if err := missing(); err != nil {
		return nil, err
	}
	if (options.Nodes != 3 && options.Nodes != 5) || options.Clients < 0 || options.Clients > 50 {
		return nil, fmt.Errorf("%d nodes and %d clients: containers come in 3 or 5, clients up to 50", options.Nodes, options.Clients)
	}
	c := &Containers{
		ground:  ground{size: options.Nodes, dir: options.Dir},
		options: options, project: fmt.Sprintf("pawljepsen%d", os.Getpid()), tracers: map[int]*child{},
	}
	c.runs, c.nodePID = c.Runs, c.nodeProcess
	if err := c.up(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Containers) up() error {
	var err error
	if c.log, err = os.OpenFile(filepath.Join(c.dir, "containers.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644); err != nil {
		return err
	}
	if err := c.open("127.0.0.1:0"); err != nil {
		return err
	}
	c.compose = []string{"docker-compose"}
	if run("docker", "compose", "version") == nil {
		c.compose = []string{"docker", "compose"}
	}
	subnet := fmt.Sprintf("10.230.%d.", rand.IntN(256)) // whatever the seed: other networks may be there
	override := filepath.Join(c.dir, "addresses.yml")
	if err := os.WriteFile(override, []byte(c.override(subnet)), 0o600); err != nil {
		return err
	}
	files := []string{"-p", c.project, "-f", filepath.Join(c.options.Root, "docker-compose.yml")}
	if c.options.Nodes == 5 {
		files = append(files, "-f", filepath.Join(c.options.Root, "docker-compose.five.yml"))
	}
	c.compose = append(append(c.compose, files...), "-f", override)
	if err := c.run("up", "-d", "--build"); err != nil {
		return err
	}
	network, err := output("docker", "network", "inspect", "-f", "{{.Id}}", c.project+"_default")
	if err != nil {
		return err
	}
	for i := range c.options.Nodes {
		id, err := output("docker", "ps", "-aq", "--filter", "label=com.docker.compose.project="+c.project,
			"--filter", "label=com.docker.compose.service="+name(i))
		if err != nil || id == "" || strings.Contains(id, "\n") {
			return errors.Join(err, fmt.Errorf("looking for the container of %s: %q", name(i), id))
		}
		c.ids = append(c.ids, id)
		c.hosts = append(c.hosts, &host{name: name(i), address: fmt.Sprint(subnet, 11+i)})
	}
	for i := range c.options.Clients {
		h, err := plug("br-"+network[:12], fmt.Sprintf("pj%dc%d", os.Getpid(), i), fmt.Sprint(subnet, 101+i))
		if err != nil {
			return err
		}
		c.hosts = append(c.hosts, h)
	}
	return nil
}

// override gives the nodes fixed addresses, and says that clients reach them there.
func (c *Containers) override(subnet string) string {
	var b strings.Builder
	b.WriteString("services:\n")
	for i := range c.options.Nodes {
		address := fmt.Sprint(subnet, 11+i)
		fmt.Fprintf(&b, "  %s:\n    networks: {default: {ipv4_address: %s}}\n    environment: {PAWL_API_URL: \"http://%s:7700\"}\n", name(i), address, address)
	}
	fmt.Fprintf(&b, "networks:\n  default:\n    ipam:\n      config: [{subnet: %s0/24}]\n", subnet)
	return b.String()
}

// run runs compose.
func (c *Containers) run(arguments ...string) error {
	command := exec.Command(c.compose[0], append(append([]string(nil), c.compose[1:]...), arguments...)...)
	command.Env = append(os.Environ(), "PAWL_BUILD="+c.options.Dist)
	for i := range c.options.Nodes {
		command.Env = append(command.Env, fmt.Sprintf("PAWL_PORT%d=0", i+1)) // any: nobody uses them
	}
	return finish(command, (*exec.Cmd).Start)
}

// Close removes the containers with their data, and all else that was made.
func (c *Containers) Close() error {
	err := c.ground.close()
	err = errors.Join(err, c.Heal())
	for _, tracer := range c.tracers {
		release(tracer)
	}
	for _, h := range c.hosts {
		if h.file != nil {
			h.unplug()
		}
	}
	if len(c.compose) > 2 {
		err = errors.Join(err, c.run("down", "--volumes", "--rmi", "local", "--remove-orphans", "--timeout", "1"))
	}
	if c.log != nil {
		err = errors.Join(err, c.log.Close())
	}
	return err
}

// Kind implements cluster.Cluster.
func (c *Containers) Kind() string { return "containers" }

// Logs implements cluster.Cluster.
func (c *Containers) Logs() map[string]string {
	logs := map[string]string{}
	for i, id := range c.ids {
		path := filepath.Join(c.dir, name(i)+".log")
		file, err := os.Create(path)
		if err == nil {
			command := exec.Command("docker", "logs", id)
			command.Stdout, command.Stderr = file, file
			err = errors.Join(command.Run(), file.Close())
		}
		logs[name(i)] = tail(path, mostLog)
		if err != nil {
			logs[name(i)] += "\nnot all of the log could be read: " + err.Error()
		}
	}
	return c.clientLogs(logs)
}

func (c *Containers) docker(node int, arguments ...string) error {
	fmt.Fprintf(c.log, "%v docker %s %s\n", c.Now().Round(time.Millisecond), strings.Join(arguments, " "), name(node))
	return run("docker", append(arguments, c.ids[node])...)
}

func (c *Containers) inspect(node int, format string) (string, error) {
	return output("docker", "inspect", "-f", format, c.ids[node])
}

// Kill implements cluster.Cluster. Docker leaves a container that was killed through it as it is.
func (c *Containers) Kill(node int) error {
	if !c.Runs(node) {
		return errNotRunning
	}
	return c.docker(node, "kill")
}

// Stop implements cluster.Cluster.
func (c *Containers) Stop(node int) error { return c.docker(node, "stop", "--time", "15") }

// Start implements cluster.Cluster. A node that ended by itself is started by Docker, too: then with the machine's clock.
func (c *Containers) Start(node int) error {
	if err := c.docker(node, "start"); err != nil {
		return err
	}
	return c.showClock(node)
}

// nodeProcess is the container's first process; 0 when there is none, or Docker has frozen it: that one does not even stop.
func (c *Containers) nodeProcess(node int) int {
	text, err := c.inspect(node, "{{.State.Status}} {{.State.Pid}}")
	if err != nil {
		return 0
	}
	pid := 0
	if _, err := fmt.Sscanf(text, "running %d", &pid); err != nil {
		return 0
	}
	return pid
}

// Runs implements cluster.Cluster.
func (c *Containers) Runs(node int) bool {
	state, err := c.inspect(node, "{{.State.Status}}")
	return err == nil && (state == "running" || state == "paused")
}

// Pause implements cluster.Cluster.
func (c *Containers) Pause(node int) error { return c.docker(node, "pause") }

// Resume implements cluster.Cluster.
func (c *Containers) Resume(node int) error {
	if err := c.docker(node, "unpause"); err != nil {
		return err
	}
	return c.showClock(node)
}

// rule inserts a rule for what goes from one host to the other.
func (c *Containers) rule(from, to int, target ...string) error {
	rule := append([]string{"DOCKER-USER", "-s", c.hosts[from].address, "-d", c.hosts[to].address, "-j"}, target...)
	err := run("iptables", append([]string{"-w", "-I"}, rule...)...)
	if err == nil {
		c.rules = append(c.rules, rule)
	}
	return err
}

// Cut implements cluster.Cluster.
func (c *Containers) Cut(from, to int) error { return c.rule(from, to, "DROP") }

// Delay implements cluster.Cluster. Cuts must come after delays: the last rule is the first to be looked at.
func (c *Containers) Delay(from, to int, delay, jitter time.Duration) error {
	return c.trouble(from, to, trouble{delay: delay, jitter: min(jitter, delay)})
}

// Lose implements cluster.Cluster. What is said of cuts after delays holds after losses.
func (c *Containers) Lose(from, to int, share float64, seed uint64) error {
	return c.trouble(from, to, trouble{loss: share, seed: seed})
}

func (c *Containers) trouble(from, to int, what trouble) error {
	queue := 1000 + from*len(c.hosts) + to
	h, err := hold(uint16(queue), what)
	if err != nil {
		return err
	}
	c.holders = append(c.holders, h)
	return c.rule(from, to, "NFQUEUE", "--queue-num", strconv.Itoa(queue), "--queue-bypass")
}

// Heal implements cluster.Cluster.
func (c *Containers) Heal() error {
	var left [][]string
	var errs []error
	for _, rule := range c.rules {
		if err := run("iptables", append([]string{"-w", "-D"}, rule...)...); err != nil {
			left, errs = append(left, rule), append(errs, err)
		}
	}
	c.rules = left
	for _, h := range c.holders {
		h.close()
	}
	c.holders = nil
	return errors.Join(errs...)
}

// Disk implements cluster.Cluster. A disk cannot be full: all containers share the machine's.
func (c *Containers) Disk(node int, d cluster.Disk, delay time.Duration) error {
	if d == cluster.DiskFine {
		tracer := c.tracers[node]
		delete(c.tracers, node)
		if !tracer.runs() {
			return nil
		}
		release(tracer)
		return c.Sleep(context.Background(), detachLimit) // it may be about to end
	}
	pid := c.nodeProcess(node)
	if pid <= 1 {
		return errNotRunning
	}
	runs := func() bool { _, err := os.Stat(fmt.Sprint("/proc/", pid)); return err == nil }
	tracer, err := trace((*exec.Cmd).Start, pid, runs, d, delay, c.log)
	c.tracers[node] = tracer
	return err
}

// data is where a node's volume is.
func (c *Containers) data(node int) (string, error) {
	if c.Runs(node) {
		return "", errRunning
	}
	return output("docker", "volume", "inspect", "-f", "{{.Mountpoint}}", c.project+"_"+name(node))
}

// Wipe implements cluster.Cluster.
func (c *Containers) Wipe(node int) error {
	dir, err := c.data(node)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, entry.Name())))
	}
	return err
}

// Damage implements cluster.Cluster, as that of a cluster of processes.
func (c *Containers) Damage(node int, seed uint64) error {
	dir, err := c.data(node)
	if err != nil {
		return err
	}
	return damage(dir, seed, io.Writer(c.log))
}
