package local

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// StartPostgres starts a PostgreSQL that listens on a socket in its directory only, with settings of the form name=value.
// It blocks until it answers or ctx ends. Address is a DSN. The caller stops it.
func StartPostgres(ctx context.Context, settings ...string) (_ *Server, err error) {
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
	if err := runIn(ctx, dir, attributes, filepath.Join(bin, "initdb"), "-D", data, "--no-sync", "-U", "pawl", "-A", "trust", "-E", "UTF8", "--locale=C"); err != nil {
		return nil, err
	}
	s.Address = "postgres:///postgres?user=pawl&host=" + url.QueryEscape(dir)
	s.command = exec.Command(filepath.Join(bin, "postgres"), "-D", data, "-k", dir, "-c", "listen_addresses=")
	for _, setting := range settings {
		s.command.Args = append(s.command.Args, "-c", setting)
	}
	s.command.Dir, s.command.SysProcAttr = dir, attributes
	return s, s.start(ctx, func() error {
		return exec.CommandContext(ctx, filepath.Join(bin, "pg_isready"), "--quiet", "--host", dir).Run()
	})
}

// HasPostgres tells whether PostgreSQL's programs are on this machine.
func HasPostgres() bool {
	_, err := postgresBin()
	return err == nil
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
