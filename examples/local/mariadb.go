package local

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// StartMariaDB starts a MariaDB that listens on a socket in its directory only, with more options of its command line. It
// blocks until it answers or ctx ends. Address is a DSN for github.com/go-sql-driver/mysql. The caller stops it.
func StartMariaDB(ctx context.Context, options ...string) (_ *Server, err error) {
	install, err := exec.LookPath("mariadb-install-db")
	if err != nil {
		return nil, fmt.Errorf("MariaDB is %w: %w", ErrNotInstalled, err)
	}
	binary, err := exec.LookPath("mariadbd")
	if err != nil {
		if binary, err = exec.LookPath("/usr/sbin/mariadbd"); err != nil { // off the PATH of ordinary users
			return nil, fmt.Errorf("MariaDB is %w: %w", ErrNotInstalled, err)
		}
	}
	dir, err := os.MkdirTemp("", "pawl")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, quit: syscall.SIGKILL} // it would take a second to tidy up what is removed anyway
	defer func() {
		if err != nil {
			s.Stop()
		}
	}()
	attributes, err := unprivileged(dir, "mysql", "nobody")
	if err != nil {
		return nil, err
	}
	data, socket := filepath.Join(dir, "data"), filepath.Join(dir, "sock")
	if err := runIn(ctx, dir, attributes, install, append([]string{"--no-defaults", "--datadir=" + data,
		"--auth-root-authentication-method=normal", "--skip-name-resolve"}, options...)...); err != nil {
		return nil, err
	}
	s.Address = "root@unix(" + socket + ")/test"
	s.command = exec.Command(binary, append([]string{"--no-defaults", "--datadir=" + data, "--socket=" + socket, "--skip-networking",
		"--skip-name-resolve", "--pid-file=" + filepath.Join(dir, "pid"), "--tmpdir=" + dir}, options...)...)
	s.command.Dir, s.command.SysProcAttr = dir, attributes
	return s, s.start(ctx, func() error { return greets(socket) })
}

// greets says whether a server on a socket says the first word, as MariaDB does when it is ready.
func greets(socket string) error {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	_, err = conn.Read(make([]byte, 1))
	return err
}
