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
	if err := w.step(ctx, db, stamps.Next(), func(ctx context.Context, db sqlfence.Runner) error {
		return db.QueryRowContext(ctx, `SELECT balance FROM account WHERE id = 7`).Scan(&balance)
	}); err != nil {
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
	err = w.step(ctx, db, stamps.Next(), func(ctx context.Context, db sqlfence.Runner) error {
		_, err := db.ExecContext(ctx, `UPDATE account SET balance = $1 WHERE id = 7`, balance+w.deposit)
		return err
	})
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

// step reads or writes. It is the whole difference between the two stories: with the kit, each step is a transaction that
// begins by taking the stamp for the lock's mark. That of the reading moves the mark on before it reads, so that no write of an
// older holder can come after what was read; that of the writing is refused when a newer holder has come since.
func (w *worker) step(ctx context.Context, db *sql.DB, stamp fence.Stamp, act func(context.Context, sqlfence.Runner) error) error {
	if w.unfenced {
		return act(ctx, db)
	}
	guard, err := sqlfence.New(sqlfence.PostgreSQL)
	if err != nil {
		return err
	}
	return guard.Store(db, nil)(ctx, lockName, stamp, func(ctx context.Context) error { return act(ctx, sqlfence.Tx(ctx)) })
}
