package sqlfence

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/pawl-lock/pawl/client/fence"
)

type txKey struct{}

// Store makes a fence.Store of the database, for kits that have no storage of their own: each write runs in a transaction of
// its own with these options (nil for the database's default), after Check, and finds it with Tx. When write fails,
// nothing is kept. The database's errors are handed on: nothing is tried again here.
func (g *Guard) Store(db *sql.DB, options *sql.TxOptions) fence.Store {
	return func(ctx context.Context, name string, stamp fence.Stamp, write func(context.Context) error) error {
		tx, err := db.BeginTx(ctx, options)
		if err != nil {
			return fmt.Errorf("beginning a transaction: %w", err)
		}
		defer tx.Rollback() // does nothing after a commit
		if err := g.Check(ctx, tx, name, stamp); err != nil {
			return err
		}
		if err := write(context.WithValue(ctx, txKey{}, tx)); err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			return fmt.Errorf("committing a write under %q: %w", name, err)
		}
		return nil
	}
}

// Tx gives the transaction of a write that Store runs, nil elsewhere.
func Tx(ctx context.Context) *sql.Tx {
	tx, _ := ctx.Value(txKey{}).(*sql.Tx)
	return tx
}
