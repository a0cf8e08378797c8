// Package examples_test runs the examples as their users would: as processes, on a real PostgreSQL and a real cluster.
package examples_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pawl-lock/pawl/examples/local"
)

// programs are the examples, built, with what they talk to.
type programs struct {
	dir            string
	postgres, pawl *local.Server
	db             *sql.DB
}

func start(t *testing.T) *programs {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p := &programs{dir: t.TempDir()}
	var err error
	if p.postgres, err = local.StartPostgres(ctx); errors.Is(err, local.ErrNotInstalled) && os.Getenv("PAWL_CI") != "1" {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.postgres.Stop)
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", p.dir, "../cmd/pawl", "./...").CombinedOutput(); err != nil {
		t.Fatalf("building: %v\n%s", err, out)
	}
	if p.pawl, err = local.StartPawl(ctx, filepath.Join(p.dir, "pawl")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.pawl.Stop)
	if p.db, err = sql.Open("pgx", p.postgres.Address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.db.Close() })
	return p
}

// run runs an example to its end, and gives what it said.
func (p *programs) run(t *testing.T, name string, arguments ...string) string {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join(p.dir, name), append([]string{"--endpoints", p.pawl.Address, "--dsn", p.postgres.Address}, arguments...)...)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v\n%s", name, strings.Join(arguments, " "), err, out)
	}
	return string(out)
}

// atOnce runs the same on several machines, so to speak.
func (p *programs) atOnce(t *testing.T, count int, name string, arguments ...string) string {
	t.Helper()
	said := make([]string, count)
	var group sync.WaitGroup
	for i := range count {
		group.Go(func() { said[i] = p.run(t, name, arguments...) })
	}
	group.Wait()
	return strings.Join(said, "")
}

func (p *programs) number(t *testing.T, query string) (n int64) {
	t.Helper()
	if err := p.db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func (p *programs) execute(t *testing.T, statement string) {
	t.Helper()
	if _, err := p.db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

func TestExamples(t *testing.T) {
	p := start(t)

	t.Run("paused writer", func(t *testing.T) {
		c := exec.CommandContext(t.Context(), filepath.Join(p.dir, "pausedwriter"), "--pawl", filepath.Join(p.dir, "pawl"))
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		fenced, unfenced, _ := strings.Cut(string(out), "Without it")
		if !strings.Contains(fenced, "A  is refused by the database") || !strings.Contains(fenced, "The balance is 150") {
			t.Errorf("with the kit:\n%s", fenced)
		}
		if !strings.Contains(unfenced, "A  has written 120") || !strings.Contains(unfenced, "The balance is 120") {
			t.Errorf("without it:\n%s", unfenced)
		}
	})

	t.Run("cron", func(t *testing.T) {
		p.run(t, "cron", "--day", "2026-11-29") // makes the tables, which PostgreSQL cannot do twice at once
		said := p.atOnce(t, 5, "cron", "--day", "2026-11-30") + p.run(t, "cron", "--day", "2026-11-30")
		if n := strings.Count(said, "reported:"); n != 1 {
			t.Errorf("%d said that they have reported:\n%s", n, said)
		}
		if n := p.number(t, `SELECT count(*) FROM report WHERE day = '2026-11-30'`); n != 1 {
			t.Errorf("%d reports of the day", n)
		}
	})

	t.Run("migration", func(t *testing.T) {
		said := p.atOnce(t, 4, "migration") + p.run(t, "migration")
		if n := strings.Count(said, "migrated:"); n != 3 {
			t.Errorf("%d steps were done:\n%s", n, said)
		}
		p.number(t, `SELECT count(email) FROM customer`)
	})

	t.Run("transfer", func(t *testing.T) {
		p.execute(t, `CREATE TABLE IF NOT EXISTS account (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL,
			fence_token BIGINT NOT NULL DEFAULT 0, fence_sequence BIGINT NOT NULL DEFAULT 0)`)
		p.execute(t, `DELETE FROM account`)
		p.execute(t, `INSERT INTO account (id, balance) VALUES (1, 1000), (2, 1000), (3, 1000)`)
		var group sync.WaitGroup
		for i := range 12 {
			from, to := i%3+1, (i+1+i/3%2)%3+1
			group.Go(func() {
				p.run(t, "transfer", "--from", fmt.Sprint(from), "--to", fmt.Sprint(to), "--amount", fmt.Sprint(i+1), "--wait", "30s")
			})
		}
		group.Wait()
		if n := p.number(t, `SELECT sum(balance) FROM account`); n != 3000 {
			t.Errorf("%d in all accounts", n)
		}
		if n := p.number(t, `SELECT count(*) FROM account WHERE fence_token > 0`); n != 3 {
			t.Errorf("%d accounts were written with a stamp", n)
		}
	})

	t.Run("election", func(t *testing.T) {
		candidates := make(map[string]*exec.Cmd)
		leading := make(chan string, 100)
		for _, name := range []string{"ann", "ben", "cleo"} {
			c := exec.Command(filepath.Join(p.dir, "election"), "--endpoints", p.pawl.Address, "--name", name, "--ttl", "1s")
			out, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			candidates[name] = c
			t.Cleanup(func() {
				_ = c.Process.Kill()
				_ = c.Wait()
			})
			go func() {
				for lines := bufio.NewScanner(out); lines.Scan(); {
					if who, leads := strings.CutSuffix(lines.Text(), ": leading"); leads {
						leading <- who
					}
				}
			}()
		}
		// One is killed, one is asked to go, the last one remains.
		for _, signal := range []os.Signal{os.Kill, os.Interrupt, nil} {
			select {
			case who := <-leading:
				if signal != nil {
					_ = candidates[who].Process.Signal(signal)
				}
			case <-time.After(30 * time.Second):
				t.Fatal("nobody leads")
			}
		}
	})
}
