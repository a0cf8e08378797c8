package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/pawl-lock/pawl/jepsen/cluster"
)

var _ cluster.Apart = (*Cluster)(nil)

// giveBack is how long a client may take to end: it gives back what it holds, from a cluster that may be in trouble.
const giveBack = 60 * time.Second

// hurry is how long it may take when the run is broken off.
const hurry = 3 * time.Second

func (c *ground) clientLog(i int) string {
	return filepath.Join(c.dir, fmt.Sprintf("client%d.log", i))
}

// Spawn implements cluster.Apart. What the program says is in Dir.
func (c *ground) Spawn(ctx context.Context, i int, arguments []string, input []byte) error {
	log, err := os.OpenFile(c.clientLog(i), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	command := exec.Command(ownProgram, arguments...)
	command.Args[0] = os.Args[0]
	command.Stdout, command.Stderr = log, log
	stdin, err := command.StdinPipe()
	if err != nil {
		return err
	}
	process, err := spawn(c.hosts[c.size+i].start, command, log)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.clients[i] = process
	c.mu.Unlock()
	if err = c.showClock(c.size + i); err == nil {
		_, err = stdin.Write(input)
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case <-process.done:
			err = errors.New("it ended by itself")
		}
	}
	_ = stdin.Close()
	limit := giveBack
	if cluster.BrokenOff(ctx) {
		limit = hurry
	}
	select {
	case <-process.done:
		err = errors.Join(err, process.err)
	case <-time.After(limit):
		_ = process.kill()
		err = errors.Join(err, fmt.Errorf("it did not end within %v and was killed", limit))
	}
	if err != nil {
		return fmt.Errorf("client %d: %w: see %s", i, err, log.Name())
	}
	return nil
}

// PauseClient implements cluster.Cluster, for a client that Spawn has started.
func (c *ground) PauseClient(client int) error { return c.atClient(client, (*child).pause) }

// ResumeClient implements cluster.Cluster.
func (c *ground) ResumeClient(client int) error {
	return c.atClient(client, func(process *child) error { return process.signal(syscall.SIGCONT) })
}

func (c *ground) atClient(client int, do func(*child) error) error {
	c.mu.Lock()
	process := c.clients[client]
	c.mu.Unlock()
	if process == nil {
		return fmt.Errorf("client %d has no process of its own: %w", client, cluster.ErrUnsupported)
	}
	return do(process)
}
