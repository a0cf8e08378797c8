//go:build linux

package sqlfence_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/pawl-lock/pawl/client/fence/sqlfence"
)

// database is a real one that a test runs against.
type database struct {
	name    string
	dialect sqlfence.Dialect
	driver  string
	dsn     string
	levels  []sql.IsolationLevel // those that it knows and that differ
}

func (d *database) open(t testing.TB) *sql.DB {
	t.Helper()
	db, err := sql.Open(d.driver, d.dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// The servers are started by the first test that asks, both at once, and stopped by TestMain.
var servers struct {
	once             sync.Once
	postgres, maria  *server
	postgresE, mariE error
}

func TestMain(m *testing.M) {
	if os.Getenv(holderDSN) != "" {
		os.Exit(holder())
	}
	code := m.Run()
	servers.postgres.stop()
	servers.maria.stop()
	os.Exit(code)
}

// eachDatabase runs a test against each. One that is not installed is skipped, or fails where PAWL_CI says that nothing may be skipped.
func eachDatabase(t *testing.T, test func(*testing.T, *database)) {
	t.Helper()
	servers.once.Do(func() {
		var group sync.WaitGroup
		group.Go(func() { servers.postgres, servers.postgresE = startPostgres() })
		group.Go(func() { servers.maria, servers.mariE = startMaria() })
		group.Wait()
	})
	need := func(t *testing.T, err error) {
		t.Helper()
		if (errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist)) && os.Getenv("PAWL_CI") != "1" {
			t.Skipf("not installed: skipped (%v)", err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Run("PostgreSQL", func(t *testing.T) {
		need(t, servers.postgresE)
		test(t, &database{name: "PostgreSQL", dialect: sqlfence.PostgreSQL, driver: "pgx", dsn: servers.postgres.dsn,
			levels: []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}})
	})
	t.Run("MariaDB", func(t *testing.T) {
		need(t, servers.mariE)
		test(t, &database{name: "MariaDB", dialect: sqlfence.MySQL, driver: "mysql", dsn: servers.maria.dsn,
			levels: []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}})
	})
	// This is what clientFoundRows changes: how many rows a driver says that an UPDATE has changed.
	t.Run("MariaDBFoundRows", func(t *testing.T) {
		need(t, servers.mariE)
		test(t, &database{name: "MariaDBFoundRows", dialect: sqlfence.MySQL, driver: "mysql", dsn: servers.maria.dsn + "?clientFoundRows=true",
			levels: []sql.IsolationLevel{sql.LevelRepeatableRead}})
	})
	t.Run("SQLite", func(t *testing.T) {
		dsn := "file:" + filepath.Join(t.TempDir(), "test.db") + "?_txlock=immediate&_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
		test(t, &database{name: "SQLite", dialect: sqlfence.SQLite, driver: "sqlite", dsn: dsn, levels: []sql.IsolationLevel{sql.LevelDefault}})
	})
}

// server is a database server that this process has started.
type server struct {
	dir  string
	dsn  string
	quit syscall.Signal // asks it to stop at once, in order
	cmd  *exec.Cmd
	log  bytes.Buffer
	done chan struct{}
}

// newServer makes a directory that belongs to the user who is to run the server: themselves, or when that is root,
// which the servers refuse, the first of the users that exists.
func newServer(users ...string) (s *server, attributes *syscall.SysProcAttr, err error) {
	// Not t.TempDir: its path can be too long for a socket.
	dir, err := os.MkdirTemp("", "pawl")
	if err != nil {
		return nil, nil, err
	}
	s = &server{dir: dir, done: make(chan struct{})}
	attributes = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		return s, attributes, nil
	}
	for _, name := range users {
		account, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.Atoi(account.Uid)
		gid, _ := strconv.Atoi(account.Gid)
		attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		return s, attributes, os.Chown(dir, uid, gid)
	}
	return nil, nil, fmt.Errorf("there is none of the users %v", users)
}

// run runs a command to its end.
func (s *server) run(attributes *syscall.SysProcAttr, name string, arguments ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, arguments...)
	cmd.Dir, cmd.SysProcAttr = s.dir, attributes
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, out)
	}
	return nil
}

// start starts the server and waits until it answers.
func (s *server) start(driver string, attributes *syscall.SysProcAttr, name string, arguments ...string) error {
	s.cmd = exec.Command(name, arguments...)
	s.cmd.Dir, s.cmd.SysProcAttr, s.cmd.Stdout, s.cmd.Stderr = s.dir, attributes, &s.log, &s.log
	if err := s.cmd.Start(); err != nil {
		return err
	}
	go func() { _ = s.cmd.Wait(); close(s.done) }()
	db, err := sql.Open(driver, s.dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	deadline := time.Now().Add(time.Minute)
	for db.Ping() != nil {
		select {
		case <-s.done:
			return fmt.Errorf("%s has stopped:\n%s", name, s.log.String())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			s.stop()
			return fmt.Errorf("%s does not answer:\n%s", name, s.log.String())
		}
	}
	return nil
}

// stop stops it and removes its data.
func (s *server) stop() {
	if s == nil {
		return
	}
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Signal(s.quit)
		select {
		case <-s.done:
		case <-time.After(10 * time.Second):
			_ = s.cmd.Process.Kill()
			<-s.done
		}
	}
	_ = os.RemoveAll(s.dir)
}

func startPostgres() (*server, error) {
	bin, err := postgresBin()
	if err != nil {
		return nil, err
	}
	s, attributes, err := newServer("postgres", "nobody")
	if err != nil {
		return nil, err
	}
	s.quit = syscall.SIGQUIT // nothing of it is needed any more
	s.dsn = "postgres:///postgres?user=pawl&host=" + url.QueryEscape(s.dir)
	data := filepath.Join(s.dir, "data")
	if err := s.run(attributes, filepath.Join(bin, "initdb"), "-D", data, "-U", "pawl", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"); err != nil {
		return s, err
	}
	return s, s.start("pgx", attributes, filepath.Join(bin, "postgres"), "-D", data, "-k", s.dir, "-c", "listen_addresses=", "-c", "fsync=off")
}

// postgresBin finds the folder of PostgreSQL's programs, which Debian keeps off the PATH.
func postgresBin() (string, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		path, err := exec.LookPath("initdb")
		return filepath.Dir(path), err
	}
	return filepath.Dir(found[len(found)-1]), nil
}

func startMaria() (*server, error) {
	install, err := exec.LookPath("mariadb-install-db")
	if err != nil {
		return nil, err
	}
	binary, err := exec.LookPath("mariadbd")
	if err != nil {
		if binary, err = exec.LookPath("/usr/sbin/mariadbd"); err != nil { // off the PATH of ordinary users
			return nil, err
		}
	}
	s, attributes, err := newServer("mysql", "nobody")
	if err != nil {
		return nil, err
	}
	s.quit = syscall.SIGKILL // it would take a second to tidy up
	socket := filepath.Join(s.dir, "sock")
	s.dsn = "root@unix(" + socket + ")/test"
	data := filepath.Join(s.dir, "data")
	if err := s.run(attributes, install, "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-name-resolve", "--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync"); err != nil {
		return s, err
	}
	return s, s.start("mysql", attributes, binary, "--no-defaults", "--datadir="+data, "--socket="+socket, "--skip-networking", "--skip-name-resolve",
		"--pid-file="+filepath.Join(s.dir, "pid"), "--tmpdir="+s.dir, "--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--max-connections=200")
}
