// Command transfer moves money between two accounts that it has locked both at once. However many transfers run, in whatever
// directions, none of them waits for another in a circle: the locks of one acquire are granted together.
package main

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/client/fence/sqlfence"
)

// transfer is what is asked for.
type transfer struct {
	from, to, amount int64
	wait             time.Duration
}

func main() {
	var t transfer
	endpoints := flag.String("endpoints", "http://127.0.0.1:7700", "the nodes of Pawl")
	dsn := flag.String("dsn", os.Getenv("DATABASE_URL"), "a PostgreSQL database with a table account (id, balance)")
	flag.Int64Var(&t.from, "from", 0, "the account that pays")
	flag.Int64Var(&t.to, "to", 0, "the account that is paid")
	flag.Int64Var(&t.amount, "amount", 0, "how much")
	flag.DurationVar(&t.wait, "wait", 10*time.Second, "how long to wait for the accounts")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *dsn == "" {
		fmt.Fprintln(os.Stderr, "transfer: --dsn or DATABASE_URL is required, as postgres://me@localhost/test")
		stop()
		os.Exit(2)
	}
	if err := run(ctx, *endpoints, *dsn, t); err != nil {
		fmt.Fprintln(os.Stderr, "transfer:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, endpoints, dsn string, t transfer) error {
	if t.amount <= 0 || t.from == t.to {
		return errors.New("an --amount above 0 goes --from one account --to another")
	}
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
	pawl, err := client.New(strings.Split(endpoints, ","))
	if err != nil {
		return err
	}
	defer pawl.Close(context.WithoutCancel(ctx))

	waiting, cancel := context.WithTimeout(ctx, t.wait)
	defer cancel()
	lock, err := pawl.AcquireAll(waiting, []string{lockName(t.from), lockName(t.to)})
	if err != nil {
		return err
	}
	defer lock.Release(context.WithoutCancel(ctx))
	return t.book(lock.Context(), db, guard, lock)
}

func lockName(account int64) string { return fmt.Sprintf("account/%d", account) }

// book changes both accounts in one transaction. It begins with the marks of both: who held one of these locks before may have
// a transaction under way whose COMMIT is late, and what is read before the mark was moved on lacks what that one writes. Check
// waits for it, and what is read after Check is the truth until this transaction ends.
func (t transfer) book(ctx context.Context, db *sql.DB, guard *sqlfence.Guard, lock *client.Lock) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	accounts := []int64{t.from, t.to}
	slices.Sort(accounts) // one order for all: the marks are locked one after the other
	for _, account := range accounts {
		// One transaction for this hold, so one stamp of each lock.
		stamp := fence.Stamp{Token: uint64(lock.TokenOf(lockName(account))), Sequence: 1}
		if err := guard.Check(ctx, tx, lockName(account), stamp); err != nil {
			return fmt.Errorf("account %d: %w", account, err)
		}
	}
	for _, change := range []struct{ account, amount int64 }{{t.from, -t.amount}, {t.to, t.amount}} {
		var balance int64
		if err := tx.QueryRowContext(ctx, `SELECT balance FROM account WHERE id = $1`, change.account).Scan(&balance); err != nil {
			return fmt.Errorf("account %d: %w", change.account, err)
		}
		if balance+change.amount < 0 {
			return fmt.Errorf("account %d has only %d", change.account, balance)
		}
		if _, err := tx.ExecContext(ctx, `UPDATE account SET balance = $1 WHERE id = $2`, balance+change.amount, change.account); err != nil {
			return fmt.Errorf("account %d: %w", change.account, err)
		}
	}
	return tx.Commit()
}
