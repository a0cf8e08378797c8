// Command cron is a job that must run once a day, on whichever of several machines comes first. Start it on all of them at
// the same time of day.
//
// A lock alone is not enough for that: the first machine may be done before the clock of the second strikes, and the lock is
// free again. So the job marks its day as done in the transaction that does the work; and the stamp is checked there too, for
// the machine that was suspended in the middle and wakes up later.
package main

import (
	"context"
	"database/sql"
	"errors"
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

func main() {
	endpoints := flag.String("endpoints", "http://127.0.0.1:7700", "the nodes of Pawl")
	dsn := flag.String("dsn", os.Getenv("DATABASE_URL"), "a PostgreSQL database")
	day := flag.String("day", time.Now().UTC().Format(time.DateOnly), "the day to report")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *dsn == "" {
		fmt.Fprintln(os.Stderr, "cron: --dsn or DATABASE_URL is required, as postgres://me@localhost/test")
		stop()
		os.Exit(2)
	}
	if err := run(ctx, *endpoints, *dsn, *day); err != nil {
		fmt.Fprintln(os.Stderr, "cron:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, endpoints, dsn, day string) error {
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	guard, err := sqlfence.New(sqlfence.PostgreSQL)
	if err != nil {
		return err
	}
	if err := guard.Create(ctx, db); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS report (day TEXT NOT NULL, made_by TEXT NOT NULL)`); err != nil {
		return err
	}
	pawl, err := client.New(strings.Split(endpoints, ","))
	if err != nil {
		return err
	}
	defer pawl.Close(context.WithoutCancel(ctx))

	lock, err := pawl.TryAcquire(ctx, "cron/daily-report")
	if errors.Is(err, client.ErrHeld) {
		fmt.Println("another machine is at it")
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Release(context.WithoutCancel(ctx))
	return report(lock.Context(), db, guard, fence.NewStamper(lock).Next(), day)
}

// report is the work: all of it in one transaction, with the check of the stamp and the mark of the day.
func report(ctx context.Context, db *sql.DB, guard *sqlfence.Guard, stamp fence.Stamp, day string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := guard.Check(ctx, tx, "cron/daily-report", stamp); err != nil {
		return err
	}
	done, err := guard.Once(ctx, tx, "daily-report "+day)
	if err != nil {
		return err
	}
	said := "done already:"
	if !done {
		said = "reported:"
		if _, err := tx.ExecContext(ctx, `INSERT INTO report (day, made_by) VALUES ($1, $2)`, day, fmt.Sprint("process ", os.Getpid())); err != nil {
			return err
		}
	}
	// Also when it was done already: only then the mark stays that keeps older holders out.
	if err := tx.Commit(); err != nil {
		return err
	}
	fmt.Println(said, day)
	return nil
}
