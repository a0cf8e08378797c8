package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/pawl-lock/pawl/client/fence"
)

// Row is a row that carries its own stamp, in the columns TokenColumn and SequenceColumn: both BIGINT NOT
// NULL DEFAULT 0. Names of tables and columns are quoted, so they keep their case.
type Row struct {
	Table string // may be qualified, as in schema.table
	Key   []Column
	Set   []Column // what is written
}

// Column is a column's name and value.
type Column struct {
	Name  string
	Value any
}

// row is a Row, or a mark, as SQL.
type row struct {
	table      string // quoted
	where, set []any  // parts of statements: "k = v AND l = w", "a = v, b = w"
}

// Update writes the row if the stamp is allowed by what it carries, and the stamp with it, in one statement: alone or
// in a transaction. It returns a *fence.StaleError when the stamp is refused, and an error that matches sql.ErrNoRows
// when there is no such row.
//
// What it writes is protected, not how that was worked out: a value computed from an earlier read overwrites what the last
// holder committed between the two. So have every writer Check first, and read after that in the same transaction. Or
// Update the row without Set, which moves its mark on and locks it, read it in the same transaction, and write with the
// next stamp.
func (g *Guard) Update(ctx context.Context, db Runner, r Row, stamp fence.Stamp) error {
	if err := stamp.Validate(); err != nil {
		return err
	}
	quoted, err := g.quoted(r)
	if err != nil {
		return err
	}
	return wrap("updating a row of "+r.Table, g.write(ctx, db, quoted, stamp))
}

// Put updates the row, or inserts it with the stamp when it is not there. It takes two statements, which is why
// it needs a transaction. The columns of the key must be unique together.
func (g *Guard) Put(ctx context.Context, tx *sql.Tx, r Row, stamp fence.Stamp) error {
	if err := stamp.Validate(); err != nil {
		return err
	}
	quoted, err := g.quoted(r)
	if err != nil {
		return err
	}
	insert, err := g.insert(r)
	if err != nil {
		return err
	}
	return wrap("putting a row of "+r.Table, g.writeOrMake(ctx, tx, insert, quoted, stamp))
}

// writeOrMake writes a row, which is made first when it is not there.
func (g *Guard) writeOrMake(ctx context.Context, tx *sql.Tx, insert *statement, r row, stamp fence.Stamp) error {
	for attempt := range attempts {
		// In MySQL an UPDATE of a row that is not there locks the gap, and two transactions that then fill it deadlock: so
		// the row is made first. Elsewhere that would be a statement too many, for all but the first time.
		if g.dialect == MySQL || attempt > 0 {
			if _, err := insert.exec(ctx, tx); err != nil {
				return err
			}
		}
		if err := g.write(ctx, tx, r, stamp); !errors.Is(err, sql.ErrNoRows) {
			return err
		}
	}
	return errUnsettled
}

// write is the rule in SQL: one UPDATE whose condition compares the stamp. Only when it has changed nothing the row is read to
// find out why.
func (g *Guard) write(ctx context.Context, db Runner, r row, stamp fence.Stamp) error {
	token, sequence := stamp.Mark()
	update := g.dialect.statement("UPDATE ", r.table, " SET ")
	update.add(r.set...)
	update.add(g.token, " = ", value{token}, ", ", g.sequence, " = ", value{sequence}, " WHERE ")
	update.add(r.where...)
	if stamp.Shared {
		update.add(" AND ", g.token, " <= ", value{token})
	} else {
		update.add(" AND (", g.token, " < ", value{token}, " OR ", g.token, " = ", value{token}, " AND ", g.sequence, " < ", value{sequence}, ")")
	}
	read := g.dialect.statement("SELECT ", g.token, ", ", g.sequence, " FROM ", r.table, " WHERE ")
	read.add(r.where...)
	read.add(g.dialect.locking())
	for attempt := range attempts {
		result, err := update.exec(ctx, db)
		if err != nil {
			return err
		}
		changed, err := result.RowsAffected()
		if err != nil {
			return err
		}
		if changed > 1 {
			return fmt.Errorf("sqlfence: the key is not unique: %d rows were changed", changed)
		}
		if changed == 1 {
			return nil
		}
		var seenToken, seenSequence int64
		if err := db.QueryRowContext(ctx, read.text.String(), read.args...).Scan(&seenToken, &seenSequence); err != nil {
			return err
		}
		newest := fence.FromMark(seenToken, seenSequence)
		if err := stamp.Allowed(newest); err != nil {
			return err
		}
		// Allowed, and yet nothing was changed: the row has come since the UPDATE, perhaps with this very stamp from another
		// of the same shared period. Unless it is MySQL, which does not count a row that is as it should be already: there a
		// second UPDATE, which has met the row, tells. A mark is nothing but its stamp.
		if stamp == newest && (len(r.set) == 0 || g.dialect == MySQL && attempt > 0) {
			return nil
		}
	}
	return errUnsettled
}

// quoted makes SQL of a Row.
func (g *Guard) quoted(r Row) (row, error) {
	if len(r.Key) == 0 {
		return row{}, errors.New("sqlfence: a row needs a key")
	}
	table, err := g.dialect.quote(r.Table)
	if err != nil {
		return row{}, err
	}
	out := row{table: table}
	for i, column := range r.Key {
		name, err := g.column(column)
		if err != nil {
			return row{}, err
		}
		if i > 0 {
			out.where = append(out.where, " AND ")
		}
		out.where = append(out.where, name, " = ", value{column.Value})
	}
	for _, column := range r.Set {
		name, err := g.column(column)
		if err != nil {
			return row{}, err
		}
		out.set = append(out.set, name, " = ", value{column.Value}, ", ")
	}
	return out, nil
}

// insert makes the statement that inserts a Row with a mark that is below every stamp, unless it is there.
func (g *Guard) insert(r Row) (*statement, error) {
	table, err := g.dialect.quote(r.Table)
	if err != nil {
		return nil, err
	}
	s := g.dialect.statement("INSERT INTO ", table, " (")
	key := ""
	values := []any{") VALUES ("}
	for i, column := range append(r.Key[:len(r.Key):len(r.Key)], r.Set...) {
		name, err := g.column(column)
		if err != nil {
			return nil, err
		}
		s.add(name, ", ")
		values = append(values, value{column.Value}, ", ")
		if i > 0 && i < len(r.Key) {
			key += ", "
		}
		if i < len(r.Key) {
			key += name
		}
	}
	s.add(g.token, ", ", g.sequence)
	s.add(values...)
	s.add("0, 0)", g.dialect.unless(key, g.token))
	return s, nil
}

// column quotes a column's name. The stamp's own columns are not for the caller to set.
func (g *Guard) column(c Column) (string, error) {
	name, err := g.dialect.quote(c.Name)
	if err == nil && (name == g.token || name == g.sequence) {
		err = fmt.Errorf("sqlfence: the column %s belongs to the stamp", c.Name)
	}
	return name, err
}
