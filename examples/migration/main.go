// Command migration brings a database's schema up to date, from whichever of many servers starts first: the others wait,
// and find it done. One that was suspended in the middle of a step, and wakes up when another has gone on, is refused.
package main

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/client/fence/sqlfence"
)

// steps are the migrations, in order. Each is done once; they are only ever appended.
var steps = []struct{ name, statement string }{
	{"001 customers", `CREATE TABLE customer (id BIGINT PRIMARY KEY, name TEXT NOT NULL)`},
	{"002 e-mail", `ALTER TABLE customer ADD COLUMN email TEXT NOT NULL DEFAULT ''`},
	{"003 find by e-mail", `CREATE INDEX customer_email ON customer (email)`},
}

const lockName = "migrate/customers"

func main() {
	endpoints := flag.String("endpoints", "http://127.0.0.1:7700", "the nodes of Pawl")
	dsn := flag.String("dsn", os.Getenv("DATABASE_URL"), "a PostgreSQL database")
	wait := flag.Duration("wait", time.Minute, "how long to wait for another who migrates")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *dsn == "" {
		fmt.Fprintln(os.Stderr, "migration: --dsn or DATABASE_URL is required, as postgres://me@localhost/test")
		stop()
		os.Exit(2)
	}
	if err := run(ctx, *endpoints, *dsn, *wait); err != nil {
		fmt.Fprintln(os.Stderr, "migration:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, endpoints, dsn string, wait time.Duration) error {
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	pawl, err := client.New(strings.Split(endpoints, ","))
	if err != nil {
		return err
	}
	defer pawl.Close(context.WithoutCancel(ctx))
	guard, err := sqlfence.New(sqlfence.PostgreSQL)
	if err != nil {
		return err
	}

	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	lock, err := pawl.Acquire(waiting, lockName)
	if err != nil {
		return err
	}
	defer lock.Release(context.WithoutCancel(ctx))
	// The tables of marks are made under the lock as well: making a table twice at once is an error in PostgreSQL.
	if err := guard.Create(lock.Context(), db); err != nil {
		return err
	}
	stamps := fence.NewStamper(lock)
	for _, step := range steps {
		if err := migrate(lock.Context(), db, guard, stamps.Next(), step.name, step.statement); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

func migrate(ctx context.Context, db *sql.DB, guard *sqlfence.Guard, stamp fence.Stamp, name, statement string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := guard.Check(ctx, tx, lockName, stamp); err != nil {
		return err
	}
	done, err := guard.Once(ctx, tx, lockName+" "+name)
	if err != nil {
		return err
	}
	if !done {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	// Also when it was done already: only then the mark stays that keeps older holders out.
	if err := tx.Commit(); err != nil {
		return err
	}
	if !done {
		fmt.Println("migrated:", name)
	}
	return nil
}
