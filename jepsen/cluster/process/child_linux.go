package process

import (
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

// child is a process of a node or a client. It is safe for concurrent use.
type child struct {
	command *exec.Cmd
	done    chan struct{} // closed when it has ended
	err     error         // how; read it after done
}

// spawn starts a program, somewhere. What becomes of it is written to out, too.
func spawn(start func(*exec.Cmd) error, command *exec.Cmd, out io.Writer) (*child, error) {
	// A terminal tells the whole group of an interrupt: that is for the harness, which then ends its processes itself.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := start(command); err != nil {
		return nil, fmt.Errorf("starting %s: %w", command.Path, err)
	}
	c := &child{command: command, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.err = command.Wait()
		how := "exit status 0"
		if c.err != nil {
			how = c.err.Error()
		}
		fmt.Fprintf(out, "--- harness: the process has ended: %s\n", how)
	}()
	return c, nil
}

func (c *child) pid() int { return c.command.Process.Pid }

func (c *child) runs() bool {
	if c == nil {
		return false
	}
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// signal sends a signal to a process that runs.
func (c *child) signal(s syscall.Signal) error {
	if !c.runs() {
		return errNotRunning
	}
	return c.command.Process.Signal(s)
}

// pause stops it, and returns when it stands.
func (c *child) pause() error {
	if err := c.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	_, err := stands(c.pid())
	if err != nil && !c.runs() {
		return errNotRunning
	}
	return err
}

// kill ends it at once.
func (c *child) kill() error {
	if err := c.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-c.done
	return nil
}

// stop tells it to end, and ends it when it does not.
func (c *child) stop(limit time.Duration) error {
	if err := c.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-c.done:
		return nil
	case <-time.After(limit):
		_ = c.kill()
		return fmt.Errorf("pid %d did not end within %v of SIGTERM and was killed", c.pid(), limit)
	}
}
