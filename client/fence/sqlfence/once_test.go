//go:build linux

package sqlfence_test

import (
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

// TestOnce: a holder dies after its commit, or before; the next one repeats only what was not done.
func TestOnce(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) {
		db, guard := account(t, d)
		pay := func(month string, result error) (done bool, err error) {
			err = inTx(db, nil, func(tx *sql.Tx) error {
				var err error
				if done, err = guard.Once(t.Context(), tx, "payroll "+month); err != nil || done {
					return err
				}
				if _, err = tx.Exec("UPDATE account SET balance = balance + 1"); err != nil {
					return err
				}
				return result
			})
			return done, err
		}
		died := errors.New("died")
		if _, err := pay("2026-11", died); !errors.Is(err, died) {
			t.Fatal(err)
		}
		for i, want := range []bool{false, true, true} {
			if done, err := pay("2026-11", nil); err != nil || done != want {
				t.Errorf("attempt %d: done %t, %v", i, done, err)
			}
		}
		if done, err := pay("2026-12", nil); err != nil || done {
			t.Errorf("another month: done %t, %v", done, err)
		}
		wantBalance(t, db, 2)

		// Many at once, and the first of them rolls back.
		var group sync.WaitGroup
		for i := range 8 {
			group.Go(func() {
				for range 1000 {
					var result error
					if i == 0 {
						result = died
					}
					if _, err := pay("2027-01", result); !again(err) {
						if err != nil && !errors.Is(err, died) {
							t.Error(err)
						}
						return
					}
				}
				t.Error("tried 1000 times")
			})
		}
		group.Wait()
		wantBalance(t, db, 3)
	})
}

func TestForget(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) {
		db, guard := account(t, d)
		for i := range 10 {
			if err := inTx(db, nil, func(tx *sql.Tx) error {
				_, err := guard.Once(t.Context(), tx, fmt.Sprint("operation ", i))
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		// By the database's clock they have been done just now.
		if n, err := guard.Forget(t.Context(), db, time.Minute, 100); err != nil || n != 0 {
			t.Errorf("%d were forgotten: %v", n, err)
		}
		if _, err := db.Exec("UPDATE pawl_done SET done_at = done_at - 3600 WHERE name <> '" + "operation 3" + "'"); err != nil {
			t.Fatal(err)
		}
		for _, want := range []int64{5, 4, 0} {
			if n, err := guard.Forget(t.Context(), db, time.Hour-time.Minute, 5); err != nil || n != want {
				t.Errorf("%d were forgotten, want %d: %v", n, want, err)
			}
		}
		var left string
		if err := db.QueryRow("SELECT name FROM pawl_done").Scan(&left); err != nil || left != "operation 3" {
			t.Errorf("%q is left: %v", left, err)
		}
		if _, err := guard.Forget(t.Context(), db, -time.Second, 5); err == nil {
			t.Error("a negative age was taken")
		}
		if _, err := guard.Forget(t.Context(), db, time.Hour, 0); err == nil {
			t.Error("no limit was taken")
		}
	})
}
