package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/client/fence/sqlfence"
)

const (
	lockName = "account/7"
	ttl      = 2 * time.Second
)

// worker adds a deposit to the account, under the lock.
type worker struct {
	name, dsn, endpoints string
	deposit              int64
	pause, unfenced      bool
}

// say is a line for the story.
func (w *worker) say(format string, arguments ...any) {
	fmt.Printf(format+"\n", arguments...)
}

func (w *worker) work(ctx context.Context) error {
	db, err := sql.Open("pgx", w.dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	pawl, err := client.New(strings.Split(w.endpoints, ","), client.WithTTL(ttl), client.WithOwner("worker "+w.name))
	if err != nil {
		return err
	}
	defer pawl.Close(context.WithoutCancel(ctx))
	w.say("asks for the lock %s", lockName)
	lock, err := pawl.Acquire(ctx, lockName)
	if err != nil {
		return err
	}
	defer lock.Release(context.WithoutCancel(ctx))
	w.say("has the lock, with token %d", lock.Token())
	stamps := fence.NewStamper(lock)

	var balance int64
	if err := db.QueryRowContext(ctx, `SELECT balance FROM account WHERE id = 7`).Scan(&balance); err != nil {
		return err
	}
	w.say("reads the balance: %d; %d more makes %d", balance, w.deposit, balance+w.deposit)
	if err := lock.Err(); err != nil {
		return err // it looks, as it should, and this very moment it is still right
	}
	if w.pause {
		w.say("looks whether it holds the lock: yes — and is stopped, right before it writes")
		if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
			return err
		}
		// The signal may take a moment to stop all of the process: it goes on when the story says so, and not before.
		if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
			return err
		}
		w.say("wakes up, knows nothing of it, and writes")
	}
	err = w.write(ctx, db, balance+w.deposit, stamps.Next())
	if stale := (*fence.StaleError)(nil); errors.As(err, &stale) {
		w.say("is refused by the database: its stamp is %v, and the newest seen is %v", stale.Offered, stale.Newest)
		return nil
	}
	if err != nil {
		return err
	}
	w.say("has written %d", balance+w.deposit)
	return nil
}

// write is the whole difference between the two stories.
func (w *worker) write(ctx context.Context, db *sql.DB, balance int64, stamp fence.Stamp) error {
	if w.unfenced {
		_, err := db.ExecContext(ctx, `UPDATE account SET balance = $1 WHERE id = 7`, balance)
		return err
	}
	guard, err := sqlfence.New(sqlfence.PostgreSQL)
	if err != nil {
		return err
	}
	return guard.Update(ctx, db, sqlfence.Row{
		Table: "account",
		Key:   []sqlfence.Column{{Name: "id", Value: 7}},
		Set:   []sqlfence.Column{{Name: "balance", Value: balance}},
	}, stamp)
}
