// Package deploy tests what users deploy with: the compose file, the image, the real binary in real containers.
package deploy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/transport"
)

// patience bounds what takes a few seconds on a quiet machine.
const patience = 60 * time.Second

var names = []string{"n1", "n2", "n3"}

// cluster is a compose project of its own: its own name, ports, volumes and images.
type cluster struct {
	t           *testing.T
	command     []string // docker-compose, or docker compose
	project     string
	environment []string
	ports       map[string]int
}

// TestCompose takes the three containers through what operators and accidents do to them. Nothing may be lost.
func TestCompose(t *testing.T) {
	c := newCluster(t)
	c.compose("up", "-d", "--build")
	c.awaitReady()

	held := c.acquire("n2", "door", "ann")
	c.mustBeHeld("n3", "door", held)

	c.step("the leader is killed", func(t *testing.T) {
		leader := c.leader()
		other := names[(slices.Index(names, leader)+1)%len(names)]
		c.kill(leader)
		c.mustBeHeld(other, "door", held)
		c.release(other, held)
		next := c.acquire(other, "door", "ben")
		if next.Token <= held.Token {
			t.Errorf("after token %d token %d was granted", held.Token, next.Token)
		}
		held = next
		c.awaitReady() // the one that was killed, too
	})
	c.step("stop and start", func(t *testing.T) {
		c.compose("stop")
		for _, name := range names {
			if code := c.inspect(name, "{{.State.ExitCode}}"); code != "0" {
				t.Errorf("%s stopped with exit code %s", name, code)
			}
		}
		c.compose("start")
		c.awaitReady()
		c.mustBeHeld("n1", "door", held)
	})
	c.step("new containers at new addresses (C12)", func(t *testing.T) {
		before := c.address("n1")
		c.compose("down")
		subnet := fmt.Sprintf("10.231.%d.0/24", rand.IntN(256))
		override := filepath.Join(t.TempDir(), "subnet.yml")
		content := "networks:\n  default:\n    ipam:\n      config: [{subnet: " + subnet + "}]\n"
		if err := os.WriteFile(override, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		c.compose("-f", "docker-compose.yml", "-f", override, "up", "-d")
		if after := c.address("n1"); after == before || !strings.HasPrefix(after, "10.231.") {
			t.Fatalf("the address was %s and is %s", before, after)
		}
		c.awaitReady()
		c.mustBeHeld("n3", "door", held)
	})
	c.step("health checks pass", func(t *testing.T) {
		for _, name := range names {
			c.eventually(name+" is healthy", func() error {
				if status := c.inspect(name, "{{.State.Health.Status}}"); status != "healthy" {
					return fmt.Errorf("it is %s", status)
				}
				return nil
			})
		}
	})
}

// step runs a part of the test that goes on where the one before it ended, and ends the test when it fails.
func (c *cluster) step(name string, work func(*testing.T)) {
	whole := c.t
	defer func() { c.t = whole }()
	if !whole.Run(name, func(t *testing.T) {
		c.t = t
		work(t)
	}) {
		whole.FailNow()
	}
}

// newCluster builds what the images are made from. Without Docker the test is skipped, or fails where PAWL_CI says that
// nothing may be skipped.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("needs Docker and half a minute: skipped by -short")
	}
	command, err := composeCommand()
	if err != nil {
		if os.Getenv("PAWL_CI") == "1" {
			t.Fatalf("needs Docker, and PAWL_CI=1 makes what is skipped a failure: %v", err)
		}
		t.Skipf("needs Docker: skipped (%v)", err)
	}
	c := &cluster{t: t, command: command, project: fmt.Sprintf("pawltest%d", os.Getpid()), ports: map[string]int{}}
	dist := filepath.Join(t.TempDir(), "dist")
	if out, err := exec.Command("make", "-C", "..", "dist", "DIST="+dist).CombinedOutput(); err != nil {
		t.Fatalf("make dist: %v\n%s", err, out)
	}
	c.environment = append(os.Environ(), "PAWL_BUILD="+dist)
	for i, name := range names {
		c.ports[name] = freePort(t)
		c.environment = append(c.environment, fmt.Sprintf("PAWL_PORT%d=%d", i+1, c.ports[name]))
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := c.run("logs", "--no-color", "--tail", "40")
			t.Logf("the nodes' last words:\n%s", out)
		}
		if out, err := c.run("down", "--volumes", "--rmi", "local", "--remove-orphans"); err != nil {
			t.Errorf("cleaning up: %v\n%s", err, out)
		}
	})
	return c
}

func composeCommand() ([]string, error) {
	if out, err := exec.Command("docker", "info").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("docker info: %w: %s", err, lastLine(out))
	}
	if exec.Command("docker", "compose", "version").Run() == nil {
		return []string{"docker", "compose"}, nil
	}
	if out, err := exec.Command("docker-compose", "version").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("docker-compose version: %w: %s", err, lastLine(out))
	}
	return []string{"docker-compose"}, nil
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

func (c *cluster) run(arguments ...string) (string, error) {
	command := exec.Command(c.command[0], append(append(slices.Clone(c.command[1:]), "-p", c.project), arguments...)...)
	command.Dir, command.Env = "..", c.environment
	out, err := command.CombinedOutput()
	return string(out), err
}

func (c *cluster) compose(arguments ...string) {
	c.t.Helper()
	if out, err := c.run(arguments...); err != nil {
		c.t.Fatalf("compose %s: %v\n%s", strings.Join(arguments, " "), err, out)
	}
}

// container gives the id of a service's container, which compose versions name differently.
func (c *cluster) container(name string) string {
	c.t.Helper()
	out, err := exec.Command("docker", "ps", "-aq", "--filter", "label=com.docker.compose.project="+c.project,
		"--filter", "label=com.docker.compose.service="+name).Output()
	id := strings.TrimSpace(string(out))
	if err != nil || id == "" || strings.Contains(id, "\n") {
		c.t.Fatalf("looking for the container of %s: %v %q", name, err, id)
	}
	return id
}

func (c *cluster) inspect(name, format string) string {
	c.t.Helper()
	out, err := exec.Command("docker", "inspect", "-f", format, c.container(name)).Output()
	if err != nil {
		c.t.Fatalf("inspecting %s: %v", name, err)
	}
	return strings.TrimSpace(string(out))
}

func (c *cluster) address(name string) string {
	c.t.Helper()
	return c.inspect(name, "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")
}

// kill is kill -9 on the host, after which Docker restarts the container by itself. Where the process is not to be seen
// (Docker in a virtual machine) the container is killed and started instead.
func (c *cluster) kill(name string) {
	c.t.Helper()
	pid, err := strconv.Atoi(c.inspect(name, "{{.State.Pid}}"))
	if err != nil || pid <= 1 {
		c.t.Fatalf("%s has no process: %d, %v", name, pid, err)
	}
	command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if strings.TrimSpace(string(command)) == "pawl" && syscall.Kill(pid, syscall.SIGKILL) == nil {
		return
	}
	for _, verb := range []string{"kill", "start"} {
		if out, err := exec.Command("docker", verb, c.container(name)).CombinedOutput(); err != nil {
			c.t.Fatalf("docker %s: %v\n%s", verb, err, out)
		}
	}
}

// client gives a client of one node only.
func (c *cluster) client(name string) *client.Client {
	c.t.Helper()
	cl, err := client.New([]string{fmt.Sprintf("http://127.0.0.1:%d", c.ports[name])})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = cl.Close(context.Background()) }) // it has no session
	return cl
}

// eventually tries until there is no error; between two tries it waits as a person would.
func (c *cluster) eventually(what string, try func() error) {
	c.t.Helper()
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	limit := time.After(patience)
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-limit:
			c.t.Fatalf("%s: not within %v: %v", what, patience, err)
		}
	}
}

func (c *cluster) awaitReady() {
	c.t.Helper()
	for _, name := range names {
		cl := c.client(name)
		c.eventually(name+" is ready", func() error {
			_, err := cl.Calls().Health(c.t.Context(), "readyz")
			return err
		})
	}
}

func (c *cluster) leader() string {
	c.t.Helper()
	answer, err := c.client("n1").Calls().Cluster(c.t.Context())
	if err != nil || !slices.Contains(names, answer.Leader) {
		c.t.Fatalf("the leader is %q: %v", answer.Leader, err)
	}
	return answer.Leader
}

// acquire takes a lock through one node for longer than the test runs.
func (c *cluster) acquire(through, lock, owner string) transport.AcquireResponse {
	c.t.Helper()
	answer, err := c.client(through).Calls().Acquire(c.t.Context(), transport.AcquireRequest{Name: lock, Owner: owner, TTLMS: 3_600_000}, "key-of-"+owner)
	if err != nil || !answer.Granted {
		c.t.Fatalf("acquiring %s through %s: %+v, %v", lock, through, answer, err)
	}
	return answer
}

func (c *cluster) release(through string, grant transport.AcquireResponse) {
	c.t.Helper()
	if _, err := c.client(through).Calls().Release(c.t.Context(), transport.ReleaseRequest{Session: grant.Session, Token: grant.Token}); err != nil {
		c.t.Fatalf("releasing through %s: %v", through, err)
	}
}

// mustBeHeld checks, by a linearizable read through one node, that the lock has its one holder still.
func (c *cluster) mustBeHeld(through, lock string, grant transport.AcquireResponse) {
	c.t.Helper()
	answer, err := c.client(through).Calls().GetLock(c.t.Context(), lock)
	if err != nil || len(answer.Holders) != 1 || answer.Holders[0].Token != grant.Token {
		c.t.Fatalf("%s, granted with token %d, reads through %s: %+v, %v", lock, grant.Token, through, answer.Holders, err)
	}
}
