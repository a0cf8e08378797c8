package sqlfence

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/pawl-lock/pawl/transport"
)

// Once marks an operation as done in the transaction that does it. It says whether it was done already, by an earlier
// transaction that has committed: then leave it, and commit all the same, because the mark that Check has moved on is kept
// only then. The operation's name has 1 to 512 bytes of UTF-8 without control
// characters; it must name the same thing for every holder, as "payroll 2026-11", so neither a token nor anything random
// can be part of it.
//
// It blocks while another transaction under the same name is at it, as long as ctx and the database let it.
// It does not look at stamps: a holder that may be late needs Check too, in the same transaction and before.
func (g *Guard) Once(ctx context.Context, tx *sql.Tx, operation string) (done bool, err error) {
	if err := transport.ValidateName("operation", operation); err != nil {
		return false, err
	}
	insert, end := "INSERT INTO ", " ON CONFLICT ("+g.name+") DO NOTHING"
	if g.dialect == MySQL {
		insert, end = "INSERT IGNORE INTO ", "" // of all that this ignores, only the row that is there already can be
	}
	s := g.dialect.statement(insert, g.done, " (", g.name, ", done_at) VALUES (", g.dialect.name(operation), ", ", g.dialect.now(), ")", end)
	result, err := s.exec(ctx, tx)
	if err != nil {
		return false, fmt.Errorf("marking %q as done: %w", operation, err)
	}
	made, err := result.RowsAffected()
	if err != nil {
		return false, fmt.Errorf("marking %q as done: %w", operation, err)
	}
	return made == 0, nil
}

// Forget forgets operations that were done longer ago than age by the database's clock, at most limit (1 or more) at a time, and
// says how many; fewer than limit means that there are no more. What was forgotten can be done again, so age must
// be longer than anybody may come back to an operation: think of weeks. Marks of stamps are never forgotten.
func (g *Guard) Forget(ctx context.Context, db Runner, age time.Duration, limit int) (int64, error) {
	if age < 0 || limit < 1 {
		return 0, fmt.Errorf("sqlfence: forgetting %d operations older than %v", limit, age)
	}
	old := []any{" WHERE done_at < ", g.dialect.now(), " - ", value{int64(age / time.Second)}, " LIMIT ", limit}
	s := g.dialect.statement("DELETE FROM ", g.done)
	if g.dialect == MySQL {
		s.add(old...)
	} else {
		s.add(" WHERE ", g.name, " IN (SELECT ", g.name, " FROM ", g.done)
		s.add(old...)
		s.add(")")
	}
	result, err := s.exec(ctx, db)
	if err != nil {
		return 0, fmt.Errorf("forgetting operations: %w", err)
	}
	return result.RowsAffected()
}
