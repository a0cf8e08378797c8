package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/transport"
)

// Runner runs statements: a *sql.Tx, *sql.DB or *sql.Conn.
type Runner interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// The default tables, and the columns that every fenced table has.
const (
	MarksTable     = "pawl_marks"
	DoneTable      = "pawl_done"
	TokenColumn    = "fence_token"
	SequenceColumn = "fence_sequence"
)

// Guard speaks one dialect. It has no state of its own, and is safe for concurrent use.
type Guard struct {
	dialect               Dialect
	marks, done           string // quoted
	token, sequence, name string // columns, quoted
}

// Option changes a Guard made by New.
type Option func(*names)

type names struct{ marks, done string }

// WithTables names the tables of marks and of operations that are done, as in
// "schema.table", instead of MarksTable and DoneTable.
func WithTables(marks, done string) Option {
	return func(n *names) { n.marks, n.done = marks, done }
}

// New makes a guard. It does not talk to a database.
func New(dialect Dialect, options ...Option) (*Guard, error) {
	if dialect < PostgreSQL || dialect > SQLite {
		return nil, fmt.Errorf("sqlfence: there is no dialect %d", dialect)
	}
	n := names{marks: MarksTable, done: DoneTable}
	for _, option := range options {
		option(&n)
	}
	g := &Guard{dialect: dialect}
	for _, identifier := range []struct {
		quoted *string
		name   string
	}{{&g.marks, n.marks}, {&g.done, n.done}, {&g.token, TokenColumn}, {&g.sequence, SequenceColumn}, {&g.name, "name"}} {
		var err error
		if *identifier.quoted, err = dialect.quote(identifier.name); err != nil {
			return nil, err
		}
	}
	return g, nil
}

// attempts bounds how often a step is tried again because the row came or went in the middle of it.
const attempts = 5

// errUnsettled: a row came and went all the time; or in MySQL, Put met another unique key than the row's.
var errUnsettled = errors.New("sqlfence: the row comes and goes, or another unique key stands in its way")

// Check takes the stamp as the newest under this name, or refuses it with a *fence.StaleError. The mark belongs to the
// transaction: it is locked until the transaction ends, kept when it commits, forgotten when it rolls back. Roll
// back after any error. The name has 1 to 512 bytes of UTF-8 without control characters, as a lock's.
//
// It blocks until other transactions under the name have ended, as long as ctx and the database let it.
func (g *Guard) Check(ctx context.Context, tx *sql.Tx, name string, stamp fence.Stamp) error {
	if err := stamp.Validate(); err != nil {
		return err
	}
	if err := transport.ValidateName("name", name); err != nil {
		return err
	}
	key := g.dialect.name(name)
	insert := g.dialect.statement("INSERT INTO ", g.marks, " (", g.name, ", ", g.token, ", ", g.sequence, ") VALUES (", key, ", 0, 0)",
		g.dialect.unless(g.name, g.token))
	mark := row{table: g.marks, where: []any{g.name, " = ", key}}
	return wrap("checking the mark of "+name, g.writeOrMake(ctx, tx, insert, mark, stamp))
}

// Newest reads the mark of a name, zero when nothing was seen. It is for people: nothing may be decided by it.
func (g *Guard) Newest(ctx context.Context, db Runner, name string) (fence.Stamp, error) {
	var token, sequence int64
	s := g.dialect.statement("SELECT ", g.token, ", ", g.sequence, " FROM ", g.marks, " WHERE ", g.name, " = ", g.dialect.name(name))
	err := db.QueryRowContext(ctx, s.text.String(), s.args...).Scan(&token, &sequence)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fence.Stamp{}, fmt.Errorf("reading the mark of %q: %w", name, err)
	}
	return fence.FromMark(token, sequence), nil
}

// wrap says what was being done, unless the error speaks for itself.
func wrap(doing string, err error) error {
	if err == nil || errors.Is(err, fence.ErrStale) {
		return err
	}
	return fmt.Errorf("%s: %w", doing, err)
}
