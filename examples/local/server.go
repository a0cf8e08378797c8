package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
	"time"
)

// ErrNotInstalled is matched by the error of a server whose programs are not on this machine.
var ErrNotInstalled = errors.New("not installed")

// Server is a program that this process has started, with its data.
type Server struct {
	// Address is how to reach it: a DSN, or a list of URLs.
	Address string

	dir     string
	quit    syscall.Signal
	command *exec.Cmd
	log     bytes.Buffer
	done    chan struct{}
}

// stopWithin is how long a server may take to stop in order.
const stopWithin = 10 * time.Second

// Stop ends the server and removes its data. It may be called of a nil Server.
func (s *Server) Stop() {
	if s == nil {
		return
	}
	if s.command != nil && s.command.Process != nil {
		_ = s.command.Process.Signal(s.quit)
		select {
		case <-s.done:
		case <-time.After(stopWithin):
			_ = s.command.Process.Kill()
			<-s.done
		}
	}
	_ = os.RemoveAll(s.dir)
}

// start starts the program and waits until ready says that it answers.
func (s *Server) start(ctx context.Context, ready func() error) error {
	s.command.Stdout, s.command.Stderr = &s.log, &s.log
	if err := s.command.Start(); err != nil {
		return err
	}
	s.done = make(chan struct{})
	go func() {
		_ = s.command.Wait() // what it said is in the log
		close(s.done)
	}()
	for {
		err := ready()
		if err == nil {
			return nil
		}
		select {
		case <-s.done:
			return fmt.Errorf("%s has stopped:\n%s", s.command.Path, s.log.String())
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w\n%s", s.command.Path, err, s.log.String())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// unprivileged gives a directory to the first of the users that exists, when this process is root, which such servers
// refuse.
func unprivileged(dir string, users ...string) (*syscall.SysProcAttr, error) {
	if os.Getuid() != 0 {
		return &syscall.SysProcAttr{}, nil
	}
	for _, name := range users {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.Atoi(account.Uid)
		gid, _ := strconv.Atoi(account.Gid)
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, os.Chown(dir, uid, gid)
	}
	return nil, fmt.Errorf("there is none of the users %v to run a server as", users)
}

// runIn runs a program to its end.
func runIn(ctx context.Context, dir string, attributes *syscall.SysProcAttr, name string, arguments ...string) error {
	command := exec.CommandContext(ctx, name, arguments...)
	command.Dir, command.SysProcAttr = dir, attributes
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}
