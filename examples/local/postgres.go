package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
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

// StartPostgres starts a PostgreSQL that listens on a socket in its directory only. It blocks until it answers or ctx ends.
// The caller stops it.
func StartPostgres(ctx context.Context) (_ *Server, err error) {
	bin, err := postgresBin()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pawl") // short: a socket's path is
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, quit: syscall.SIGINT}
	defer func() {
		if err != nil {
			s.Stop()
		}
	}()
	attributes, err := unprivileged(dir, "postgres", "nobody")
	if err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	initialise := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), "-D", data, "-U", "pawl", "-A", "trust", "-E", "UTF8", "--locale=C")
	initialise.Dir, initialise.SysProcAttr = dir, attributes
	if out, err := initialise.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("initdb: %w\n%s", err, out)
	}
	s.Address = "postgres:///postgres?user=pawl&host=" + url.QueryEscape(dir)
	s.command = exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-k", dir, "-c", "listen_addresses=")
	s.command.Dir, s.command.SysProcAttr = dir, attributes
	return s, s.start(ctx, func() error {
		conn, err := net.Dial("unix", filepath.Join(dir, ".s.PGSQL.5432"))
		if err != nil {
			return err
		}
		return conn.Close()
	})
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

// postgresBin finds the folder of PostgreSQL's programs, which Debian keeps off the PATH.
func postgresBin() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err == nil && len(found) > 0 {
		return filepath.Dir(found[len(found)-1]), nil
	}
	path, err := exec.LookPath("initdb")
	if err != nil {
		return "", fmt.Errorf("PostgreSQL is %w: %w", ErrNotInstalled, err)
	}
	return filepath.Dir(path), nil
}
