package sqlfence

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
)

// Dialect is a database's way of speaking.
type Dialect int

// The dialects. There is no default.
const (
	PostgreSQL Dialect = iota + 1 // 9.5 and later
	MySQL                         // MariaDB 10.2 and later, MySQL 5.7 and later (of the two, MariaDB is in the tests); InnoDB
	SQLite                        // 3.24 and later
)

// statement is SQL in the making, with its arguments.
type statement struct {
	dialect Dialect
	text    strings.Builder
	args    []any
}

func (d Dialect) statement(parts ...any) *statement {
	s := &statement{dialect: d}
	s.add(parts...)
	return s
}

// value is an argument of a statement; everything else is text.
type value struct{ any }

func (s *statement) add(parts ...any) {
	for _, part := range parts {
		v, isValue := part.(value)
		if !isValue {
			fmt.Fprint(&s.text, part)
			continue
		}
		s.args = append(s.args, v.any)
		if s.dialect == PostgreSQL {
			s.text.WriteString("$" + strconv.Itoa(len(s.args)))
		} else {
			s.text.WriteByte('?')
		}
	}
}

// exec runs it.
func (s *statement) exec(ctx context.Context, db Runner) (sql.Result, error) {
	return db.ExecContext(ctx, s.text.String(), s.args...)
}

// name makes an argument of a mark's name: bytes where its column is one of bytes.
func (d Dialect) name(name string) value {
	if d == MySQL {
		return value{[]byte(name)}
	}
	return value{name}
}

// locking is what makes a read see, and hold, the newest row rather than a snapshot's. SQLite has one writer
// and needs none.
func (d Dialect) locking() string {
	if d == SQLite {
		return ""
	}
	return " FOR UPDATE"
}

// unless ends an INSERT that shall do nothing when the row is there. In MySQL it must lock that row as an
// UPDATE does, which INSERT IGNORE does not: two transactions that both went on to update it would deadlock.
func (d Dialect) unless(key, column string) string {
	if d == MySQL {
		return " ON DUPLICATE KEY UPDATE " + column + " = " + column
	}
	return " ON CONFLICT (" + key + ") DO NOTHING"
}

// now is the database's clock in seconds since 1970.
func (d Dialect) now() string {
	switch d {
	case PostgreSQL:
		return "CAST(EXTRACT(EPOCH FROM now()) AS BIGINT)"
	case MySQL:
		return "UNIX_TIMESTAMP()"
	default:
		return "CAST(strftime('%s', 'now') AS INTEGER)"
	}
}

// quote makes an identifier of a name, which may be qualified as in schema.table. Letters keep their case.
// SQLite takes MySQL's quotes, and would take a misspelt column in standard ones for a text.
func (d Dialect) quote(name string) (string, error) {
	quote := "`"
	if d == PostgreSQL {
		quote = `"`
	}
	parts := strings.Split(name, ".")
	for i, part := range parts {
		if part == "" || len(part) > 63 || strings.ContainsAny(part, "\"`\\\x00") {
			return "", fmt.Errorf("sqlfence: %q is not a name of a table or column", name)
		}
		parts[i] = quote + part + quote
	}
	return strings.Join(parts, "."), nil
}
