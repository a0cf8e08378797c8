//go:build linux

package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/pawl-lock/pawl/client/fence/sqlfence"
	"github.com/pawl-lock/pawl/examples/local"
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
	postgres, maria  *local.Server
	postgresE, mariE error
}

func TestMain(m *testing.M) {
	if os.Getenv(holderDSN) != "" {
		os.Exit(holder())
	}
	code := m.Run()
	servers.postgres.Stop()
	servers.maria.Stop()
	os.Exit(code)
}

// eachDatabase runs a test against each. One that is not installed is skipped, or fails where PAWL_CI says that nothing may be skipped.
func eachDatabase(t *testing.T, test func(*testing.T, *database)) {
	t.Helper()
	servers.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		var group sync.WaitGroup
		// Nothing of them outlives the test, so nothing has to reach the disk.
		group.Go(func() { servers.postgres, servers.postgresE = local.StartPostgres(ctx, "fsync=off") })
		group.Go(func() {
			servers.maria, servers.mariE = local.StartMariaDB(ctx, "--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync", "--max-connections=200")
		})
		group.Wait()
	})
	need := func(t *testing.T, err error) {
		t.Helper()
		if errors.Is(err, local.ErrNotInstalled) && os.Getenv("PAWL_CI") != "1" {
			t.Skipf("not installed: skipped (%v)", err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Run("PostgreSQL", func(t *testing.T) {
		need(t, servers.postgresE)
		test(t, &database{name: "PostgreSQL", dialect: sqlfence.PostgreSQL, driver: "pgx", dsn: servers.postgres.Address,
			levels: []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}})
	})
	t.Run("MariaDB", func(t *testing.T) {
		need(t, servers.mariE)
		test(t, &database{name: "MariaDB", dialect: sqlfence.MySQL, driver: "mysql", dsn: servers.maria.Address,
			levels: []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}})
	})
	// This is what clientFoundRows changes: how many rows a driver says that an UPDATE has changed.
	t.Run("MariaDBFoundRows", func(t *testing.T) {
		need(t, servers.mariE)
		test(t, &database{name: "MariaDBFoundRows", dialect: sqlfence.MySQL, driver: "mysql", dsn: servers.maria.Address + "?clientFoundRows=true",
			levels: []sql.IsolationLevel{sql.LevelRepeatableRead}})
	})
	t.Run("SQLite", func(t *testing.T) {
		dsn := "file:" + filepath.Join(t.TempDir(), "test.db") + "?_txlock=immediate&_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)"
		test(t, &database{name: "SQLite", dialect: sqlfence.SQLite, driver: "sqlite", dsn: dsn, levels: []sql.IsolationLevel{sql.LevelDefault}})
	})
}
