//go:build linux

package sqlfence_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"modernc.org/sqlite"

	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/client/fence/fencetest"
	"github.com/pawl-lock/pawl/client/fence/sqlfence"
)

func exclusive(token, sequence uint64) fence.Stamp {
	return fence.Stamp{Token: token, Sequence: sequence}
}
func shared(token uint64) fence.Stamp { return fence.Stamp{Token: token, Shared: true} }

// randomStamp gives one of few, around a token.
func randomStamp(random *rand.Rand, around uint64) fence.Stamp {
	if random.IntN(4) == 0 {
		return shared(around + random.Uint64N(3))
	}
	return exclusive(around+random.Uint64N(3), 1+random.Uint64N(4))
}

// TestSQLIsTheRule compares each way of writing with the rule in Go, which stands in fence.Stamp.Allowed.
func TestSQLIsTheRule(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) {
		db, guard := account(t, d)
		balance := int64(0)
		row := func(key int64, always bool) sqlfence.Row {
			if always {
				balance++ // else the row may be as it should be already
			}
			return sqlfence.Row{Table: "account", Key: []sqlfence.Column{{"id", key}}, Set: []sqlfence.Column{{"balance", balance}}}
		}
		ways := map[string]func(*sql.Tx, fence.Stamp) error{
			"check":  func(tx *sql.Tx, s fence.Stamp) error { return guard.Check(t.Context(), tx, "x", s) },
			"update": func(tx *sql.Tx, s fence.Stamp) error { return guard.Update(t.Context(), tx, row(1, true), s) },
			"put":    func(tx *sql.Tx, s fence.Stamp) error { return guard.Put(t.Context(), tx, row(2, false), s) },
		}
		for name, way := range ways {
			seed := rand.Uint64()
			random := rand.New(rand.NewPCG(seed, 0))
			var newest fence.Stamp
			taken := 0
			for i := range 300 {
				stamp := randomStamp(random, 1+uint64(i)/30)
				want := stamp.Allowed(newest)
				err := inTx(db, nil, func(tx *sql.Tx) error { return way(tx, stamp) })
				if (err == nil) != (want == nil) || err != nil && err.Error() != want.Error() {
					t.Fatalf("%s (seed %d): %v after %v: %v, want %v", name, seed, stamp, newest, err, want)
				}
				if err == nil {
					taken++
				}
				if err == nil && stamp.Above(newest) {
					newest = stamp
				}
			}
			if taken == 0 || taken == 300 {
				t.Errorf("%s: %d of 300 were taken", name, taken)
			}
		}
	})
}

// TestRepeatedAndRolledBack: what was committed is refused, what was rolled back may be tried again with the same stamp.
func TestRepeatedAndRolledBack(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) {
		db, guard := account(t, d)
		add := func(stamp fence.Stamp, result error) error {
			return inTx(db, nil, func(tx *sql.Tx) error {
				if err := guard.Check(t.Context(), tx, "account/1", stamp); err != nil {
					return err
				}
				if _, err := tx.Exec("UPDATE account SET balance = balance + 1"); err != nil {
					return err
				}
				return result
			})
		}
		broken := errors.New("broken")
		for _, stamp := range []fence.Stamp{exclusive(5, 1), shared(7), exclusive(8, 3)} {
			before, err := guard.Newest(t.Context(), db, "account/1")
			if err != nil {
				t.Fatal(err)
			}
			if err := add(stamp, broken); !errors.Is(err, broken) {
				t.Fatal(err)
			}
			if after, err := guard.Newest(t.Context(), db, "account/1"); err != nil || after != before {
				t.Errorf("rolling back left the mark %v, not %v: %v", after, before, err)
			}
			if err := add(stamp, nil); err != nil {
				t.Fatalf("%v: %v", stamp, err)
			}
			if after, err := guard.Newest(t.Context(), db, "account/1"); err != nil || after != stamp {
				t.Errorf("the mark is %v after %v: %v", after, stamp, err)
			}
		}
		wantBalance(t, db, 3)
		var stale *fence.StaleError
		if err := add(exclusive(8, 3), nil); !errors.As(err, &stale) || !stale.Repeated() {
			t.Errorf("repeated: %v", err)
		}
		if err := add(exclusive(8, 2), nil); !errors.As(err, &stale) || stale.Repeated() || !stale.SameHold() {
			t.Errorf("overtaken: %v", err)
		}
		wantBalance(t, db, 3)
	})
}

// again says whether a transaction that failed so is to be tried again.
func again(err error) bool {
	var state interface{ SQLState() string }
	var number *mysql.MySQLError
	var code *sqlite.Error
	switch {
	case errors.As(err, &state):
		return state.SQLState() == "40001" || state.SQLState() == "40P01"
	case errors.As(err, &number):
		return number.Number == 1213 || number.Number == 1205
	case errors.As(err, &code):
		return code.Code()&0xff == 5
	}
	return false
}

// TestWritersRace: at every isolation level the transactions under one name are one after the other, no write is lost,
// and the mark never goes back.
func TestWritersRace(t *testing.T) {
	const writers, rounds = 8, 40
	eachDatabase(t, func(t *testing.T, d *database) {
		for _, level := range d.levels {
			db, guard := account(t, d)
			db.SetMaxIdleConns(writers)
			var done, repeats atomic.Int64
			write := func(tx *sql.Tx, stamp fence.Stamp) error {
				if err := guard.Check(t.Context(), tx, "account/1", stamp); err != nil {
					return err
				}
				var balance, token, sequence int64
				if err := tx.QueryRow("SELECT balance, fence_token, fence_sequence FROM account WHERE id = 1").Scan(&balance, &token, &sequence); err != nil {
					return err
				}
				newest := fence.FromMark(token, sequence)
				if err := stamp.Allowed(newest); err != nil {
					t.Errorf("%v: let in by the mark, refused by the row: %v", level, err)
				}
				if stamp.Above(newest) {
					token, sequence = stamp.Mark()
				}
				_, err := tx.Exec(fmt.Sprintf("UPDATE account SET balance = %d, fence_token = %d, fence_sequence = %d WHERE id = 1", balance+1, token, sequence))
				return err
			}
			seed := rand.Uint64()
			var group sync.WaitGroup
			for writer := range writers {
				group.Go(func() {
					random := rand.New(rand.NewPCG(seed, uint64(writer)))
					for round := range uint64(rounds) {
						stamp := randomStamp(random, 1+round/2)
						var err error
						for range 1000 {
							err = inTx(db, &sql.TxOptions{Isolation: level}, func(tx *sql.Tx) error { return write(tx, stamp) })
							if !again(err) {
								break
							}
							repeats.Add(1)
						}
						if err == nil {
							done.Add(1)
						} else if !errors.Is(err, fence.ErrStale) {
							t.Errorf("%v: %v", level, err)
							return
						}
					}
				})
			}
			group.Wait()
			wantBalance(t, db, done.Load())
			var token, sequence int64
			if err := db.QueryRow("SELECT fence_token, fence_sequence FROM account").Scan(&token, &sequence); err != nil {
				t.Fatal(err)
			}
			if newest, err := guard.Newest(t.Context(), db, "account/1"); err != nil || newest != fence.FromMark(token, sequence) {
				t.Errorf("%v: the mark is %v, the row has %v: %v", level, newest, fence.FromMark(token, sequence), err)
			}
			t.Logf("%v (seed %d): %d of %d were taken, %d transactions were tried again", level, seed, done.Load(), writers*rounds, repeats.Load())
			if done.Load() == 0 || done.Load() == writers*rounds {
				t.Errorf("%v: %d of %d were taken", level, done.Load(), writers*rounds)
			}
		}
	})
}

// TestFirstWritersRace: names and rows that nobody has written to yet are made once, and nobody is refused for it.
func TestFirstWritersRace(t *testing.T) {
	const writers, names = 8, 15
	eachDatabase(t, func(t *testing.T, d *database) {
		db, guard := account(t, d)
		db.SetMaxIdleConns(writers)
		var repeats atomic.Int64
		var group sync.WaitGroup
		for range writers {
			group.Go(func() {
				for i := range names {
					err := errors.New("never tried")
					for range 1000 {
						err = inTx(db, nil, func(tx *sql.Tx) error {
							if err := guard.Check(t.Context(), tx, fmt.Sprintf("new/%d", i), shared(7)); err != nil {
								return err
							}
							row := sqlfence.Row{Table: "account", Key: []sqlfence.Column{{"id", 100 + i}}, Set: []sqlfence.Column{{"balance", i}}}
							return guard.Put(t.Context(), tx, row, shared(7))
						})
						if !again(err) {
							break
						}
						repeats.Add(1)
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		group.Wait()
		var made int
		if err := db.QueryRow("SELECT count(*) FROM account WHERE id >= 100 AND fence_token = 7").Scan(&made); err != nil || made != names {
			t.Errorf("%d rows of %d: %v", made, names, err)
		}
		if repeats.Load() > 0 {
			t.Errorf("%d deadlocks", repeats.Load())
		}
	})
}

// TestUpdateAlone: one statement is enough for a row that carries its stamp, without a transaction.
func TestUpdateAlone(t *testing.T) {
	const writers, rounds = 8, 50
	eachDatabase(t, func(t *testing.T, d *database) {
		db, guard := account(t, d)
		db.SetMaxIdleConns(writers)
		var group sync.WaitGroup
		for writer := range uint64(writers) {
			group.Go(func() {
				for round := range uint64(rounds) {
					stamp := exclusive(1+round/5, 1+round%5*writers+writer)
					row := sqlfence.Row{Table: "account", Key: []sqlfence.Column{{"id", 1}}, Set: []sqlfence.Column{{"balance", stamp.Token*1000 + stamp.Sequence}}}
					if err := guard.Update(t.Context(), db, row, stamp); err != nil && !errors.Is(err, fence.ErrStale) {
						t.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
		wantBalance(t, db, rounds/5*1000+5*writers) // the newest stamp's, whatever came after it
		missing := sqlfence.Row{Table: "account", Key: []sqlfence.Column{{"id", 9}}, Set: []sqlfence.Column{{"balance", 1}}}
		if err := guard.Update(t.Context(), db, missing, exclusive(99, 1)); !errors.Is(err, sql.ErrNoRows) {
			t.Errorf("no such row: %v", err)
		}
		everything := sqlfence.Row{Table: "account", Key: []sqlfence.Column{{"balance", rounds/5*1000 + 5*writers}}}
		if _, err := db.Exec("INSERT INTO account (id, balance) VALUES (2, 10040)"); err != nil {
			t.Fatal(err)
		}
		if err := inTx(db, nil, func(tx *sql.Tx) error { return guard.Update(t.Context(), tx, everything, exclusive(99, 1)) }); err == nil || errors.Is(err, fence.ErrStale) {
			t.Errorf("a key that is not unique: %v", err)
		}
	})
}

// between runs a function once, after the first statement that changes something.
type between struct {
	sqlfence.Runner
	act func()
}

func (b *between) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	result, err := b.Runner.ExecContext(ctx, query, args...)
	if act := b.act; act != nil {
		b.act = nil
		act()
	}
	return result, err
}

// TestSharedHoldersMakeOneRow: two of one shared period write different columns of a row that is not there yet. That the row
// has come meanwhile, with the very stamp that is offered, does not mean that it was written as asked.
func TestSharedHoldersMakeOneRow(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) {
		db, guard := account(t, d)
		if _, err := db.Exec("ALTER TABLE account ADD COLUMN other BIGINT DEFAULT 0 NOT NULL"); err != nil {
			t.Fatal(err)
		}
		row := func(column string, balance int64) sqlfence.Row {
			return sqlfence.Row{Table: "account", Key: []sqlfence.Column{{"id", 2}}, Set: []sqlfence.Column{{column, balance}}}
		}
		come := func() {
			if err := inTx(db, nil, func(tx *sql.Tx) error { return guard.Put(t.Context(), tx, row("balance", 3), shared(7)) }); err != nil {
				t.Fatal(err)
			}
		}
		for round := range 2 { // the second time the row is there, and as it should be
			if err := guard.Update(t.Context(), &between{db, come}, row("other", 5), shared(7)); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			var other, balance int64
			if err := db.QueryRow("SELECT other, balance FROM account WHERE id = 2").Scan(&other, &balance); err != nil || other != 5 || balance != 3 {
				t.Errorf("round %d: both writes were confirmed, and the row has %d, %d: %v", round, other, balance, err)
			}
			come = nil
		}
	})
}

// TestLateCommitIsSeen: an old holder has written, and commits when the next one is at work already. Who takes the row's mark
// before reading sees what was written.
func TestLateCommitIsSeen(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) {
		db, guard := account(t, d)
		row := sqlfence.Row{Table: "account", Key: []sqlfence.Column{{"id", 1}}}
		update := func(tx *sql.Tx, balance int64, stamp fence.Stamp) error {
			written := row
			written.Set = []sqlfence.Column{{"balance", balance}}
			return guard.Update(t.Context(), tx, written, stamp)
		}
		old, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer old.Rollback()
		if err := update(old, 50, exclusive(33, 1)); err != nil {
			t.Fatal(err)
		}
		begins, next := make(chan bool), make(chan error, 1)
		go func() {
			close(begins)
			next <- inTx(db, nil, func(tx *sql.Tx) error {
				if err := guard.Update(t.Context(), tx, row, exclusive(41, 1)); err != nil {
					return err
				}
				var balance int64
				if err := tx.QueryRow("SELECT balance FROM account WHERE id = 1").Scan(&balance); err != nil {
					return err
				}
				return update(tx, balance+10, exclusive(41, 2))
			})
		}()
		<-begins
		select {
		case err := <-next:
			t.Fatalf("it did not wait for the old holder's transaction: %v", err)
		case <-time.After(100 * time.Millisecond): // the database's time is real
		}
		if err := old.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := <-next; err != nil {
			t.Fatal(err)
		}
		wantBalance(t, db, 60)
	})
}

// TestNamesAreBytes: names that a database could take for the same are not.
func TestNamesAreBytes(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) {
		db, guard := account(t, d)
		names := []string{"a", "A", "a ", "ä", "a\u0308", strings.Repeat("n", 512), "a'; DROP TABLE account; --", "🔒"}
		for i, name := range names {
			if err := inTx(db, nil, func(tx *sql.Tx) error {
				if done, err := guard.Once(t.Context(), tx, name); err != nil || done {
					t.Errorf("%q: done %t, %v", name, done, err)
				}
				return guard.Check(t.Context(), tx, name, exclusive(uint64(100-i), 1))
			}); err != nil {
				t.Errorf("%q: %v", name, err)
			}
		}
		for i, name := range names {
			if newest, err := guard.Newest(t.Context(), db, name); err != nil || newest != exclusive(uint64(100-i), 1) {
				t.Errorf("%q: %v %v", name, newest, err)
			}
		}
		for _, name := range []string{"", "a\x00", "a\nb", "\xff", strings.Repeat("n", 513)} {
			if err := inTx(db, nil, func(tx *sql.Tx) error { return guard.Check(t.Context(), tx, name, exclusive(1, 1)) }); err == nil {
				t.Errorf("%q was taken", name)
			}
			if err := inTx(db, nil, func(tx *sql.Tx) error { _, err := guard.Once(t.Context(), tx, name); return err }); err == nil {
				t.Errorf("%q was taken", name)
			}
		}
		for _, stamp := range []fence.Stamp{{}, {Token: 5}} {
			row := sqlfence.Row{Table: "account", Key: []sqlfence.Column{{"id", 1}}}
			for _, err := range []error{
				inTx(db, nil, func(tx *sql.Tx) error { return guard.Check(t.Context(), tx, "a", stamp) }),
				inTx(db, nil, func(tx *sql.Tx) error { return guard.Put(t.Context(), tx, row, stamp) }),
				guard.Update(t.Context(), db, row, stamp),
			} {
				if !errors.Is(err, fence.ErrInvalid) {
					t.Errorf("%#v: %v", stamp, err)
				}
			}
		}
	})
}

func TestBadIdentifiers(t *testing.T) {
	if _, err := sqlfence.New(0); err == nil {
		t.Error("no dialect was taken")
	}
	for _, dialect := range []sqlfence.Dialect{sqlfence.PostgreSQL, sqlfence.MySQL, sqlfence.SQLite} {
		for _, name := range []string{"", ".", "a.", `a"b`, "a`b", `a\b`, "a\x00", strings.Repeat("t", 64)} {
			if _, err := sqlfence.New(dialect, sqlfence.WithTables(name, "done")); err == nil {
				t.Errorf("%q was taken", name)
			}
		}
		guard, err := sqlfence.New(dialect, sqlfence.WithTables("app.marks", "app.done"))
		if err != nil {
			t.Fatal(err)
		}
		for _, row := range []sqlfence.Row{
			{Table: "t"},
			{Table: "", Key: []sqlfence.Column{{"id", 1}}},
			{Table: "t", Key: []sqlfence.Column{{`id" = 1 OR "id`, 1}}},
			{Table: "t", Key: []sqlfence.Column{{"id", 1}}, Set: []sqlfence.Column{{"fence_token", 1}}},
		} {
			if err := guard.Update(context.Background(), nil, row, exclusive(1, 1)); err == nil {
				t.Errorf("%+v was taken", row)
			}
			if err := guard.Put(context.Background(), nil, row, exclusive(1, 1)); err == nil {
				t.Errorf("%+v was put", row)
			}
		}
	}
}

// TestOldSnapshot: a transaction that has read before its check still sees in the check what has been committed since.
func TestOldSnapshot(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) {
		if d.dialect == sqlfence.SQLite {
			t.Skip("nobody else can commit meanwhile")
		}
		for _, level := range []sql.IsolationLevel{sql.LevelReadCommitted, sql.LevelRepeatableRead} {
			db, guard := account(t, d)
			row := sqlfence.Row{Table: "account", Key: []sqlfence.Column{{"id", 1}}, Set: []sqlfence.Column{{"balance", 5}}}
			write := func(tx *sql.Tx, stamp fence.Stamp, check bool) error {
				if check {
					return guard.Check(t.Context(), tx, "account/1", stamp)
				}
				return guard.Update(t.Context(), tx, row, stamp)
			}
			for i, check := range []bool{true, false} {
				if err := inTx(db, nil, func(tx *sql.Tx) error { return write(tx, exclusive(30, 1), check) }); err != nil {
					t.Fatal(err)
				}
				var before fence.Stamp
				err := inTx(db, &sql.TxOptions{Isolation: level}, func(tx *sql.Tx) error {
					var err error
					if before, err = guard.Newest(t.Context(), tx, "account/1"); err != nil {
						return err
					}
					if err := inTx(db, nil, func(tx *sql.Tx) error { return write(tx, exclusive(41, 1), check) }); err != nil {
						t.Fatal(err)
					}
					return write(tx, exclusive(33, 1), check)
				})
				var stale *fence.StaleError
				serialization := d.dialect == sqlfence.PostgreSQL && level == sql.LevelRepeatableRead && again(err)
				if !serialization && (!errors.As(err, &stale) || stale.Newest != exclusive(41, 1)) {
					t.Errorf("%v, way %d, snapshot at %v: %v", level, i, before, err)
				}
			}
		}
	})
}

// TestStore runs writes of others in transactions of its own.
func TestStore(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) {
		db, guard := account(t, d)
		store := guard.Store(db, nil)
		broken := errors.New("broken")
		write := func(stamp fence.Stamp, result error) error {
			return store(t.Context(), "account/1", stamp, func(ctx context.Context) error {
				if _, err := sqlfence.Tx(ctx).ExecContext(ctx, "UPDATE account SET balance = balance + 1"); err != nil {
					return err
				}
				return result
			})
		}
		if err := write(exclusive(41, 1), broken); !errors.Is(err, broken) {
			t.Fatal(err)
		}
		wantBalance(t, db, 0)
		if err := write(exclusive(41, 1), nil); err != nil {
			t.Fatal(err)
		}
		for _, stamp := range []fence.Stamp{exclusive(41, 1), exclusive(33, 2)} {
			if err := write(stamp, nil); !errors.Is(err, fence.ErrStale) {
				t.Errorf("%v: %v", stamp, err)
			}
		}
		wantBalance(t, db, 1)
		if sqlfence.Tx(t.Context()) != nil {
			t.Error("a transaction out of nowhere")
		}
	})
}

// TestKit: what every kit must refuse, for each way of writing.
func TestKit(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) {
		const content = "SELECT body, fence_token, fence_sequence FROM document WHERE id = 1"
		read := func(ctx context.Context, db *sql.DB, query string) (string, fence.Stamp, error) {
			var body string
			var token, sequence int64
			err := db.QueryRowContext(ctx, query).Scan(&body, &token, &sequence)
			if errors.Is(err, sql.ErrNoRows) {
				err = nil
			}
			return body, fence.FromMark(token, sequence), err
		}
		document := func(t *testing.T) (*sql.DB, *sqlfence.Guard) {
			db, guard := account(t, d)
			db.SetMaxIdleConns(9)
			for _, statement := range []string{"DROP TABLE IF EXISTS document",
				"CREATE TABLE document (id INTEGER NOT NULL PRIMARY KEY, body VARCHAR(100) NOT NULL, fence_token BIGINT NOT NULL, fence_sequence BIGINT NOT NULL)"} {
				if _, err := db.Exec(statement); err != nil {
					t.Fatal(err)
				}
			}
			return db, guard
		}
		t.Run("Put", func(t *testing.T) {
			fencetest.Run(t, 20, func(t *testing.T) fencetest.Resource {
				db, guard := document(t)
				return fencetest.Resource{
					Write: func(ctx context.Context, stamp fence.Stamp, content string) error {
						row := sqlfence.Row{Table: "document", Key: []sqlfence.Column{{"id", 1}}, Set: []sqlfence.Column{{"body", content}}}
						return inTx(db, nil, func(tx *sql.Tx) error { return guard.Put(ctx, tx, row, stamp) })
					},
					Read: func(ctx context.Context) (string, fence.Stamp, error) { return read(ctx, db, content) },
				}
			})
		})
		t.Run("Store", func(t *testing.T) {
			fencetest.Run(t, 20, func(t *testing.T) fencetest.Resource {
				db, guard := document(t)
				if _, err := db.Exec("INSERT INTO document VALUES (1, '', 0, 0)"); err != nil {
					t.Fatal(err)
				}
				store := guard.Store(db, nil)
				return fencetest.Resource{
					Write: func(ctx context.Context, stamp fence.Stamp, content string) error {
						return store(ctx, "x", stamp, func(ctx context.Context) error {
							_, err := sqlfence.Tx(ctx).ExecContext(ctx, "UPDATE document SET body = '"+content+"' WHERE id = 1")
							return err
						})
					},
					Read: func(ctx context.Context) (string, fence.Stamp, error) {
						return read(ctx, db, "SELECT body, m.fence_token, m.fence_sequence FROM document JOIN pawl_marks m ON m.name = 'x'")
					},
				}
			})
		})
	})
}
