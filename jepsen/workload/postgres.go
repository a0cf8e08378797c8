package workload

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx

	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/client/fence/sqlfence"
)

// postgres keeps rows in a table of PostgreSQL, with sqlfence's marks beside them in the same transaction.
type postgres struct {
	db    *sql.DB
	guard *sqlfence.Guard
}

// postgresConnections is how many connections a Store has at most: a client does one thing at a time, and a connection that
// was ended by the server may still be there.
const postgresConnections = 4

// PostgresSettings are those that the server of such a Store needs, for so many users of it. A user that is stopped in the
// middle of a transaction keeps rows locked, and everybody else would wait for it.
func PostgresSettings(users int) []string {
	return []string{
		"fsync=off", // the server is outside the faults, and its data need not outlive the run
		"idle_in_transaction_session_timeout=2s",
		"lock_timeout=5s",
		fmt.Sprintf("max_connections=%d", 20+users*postgresConnections),
	}
}

// NewPostgres makes a Store in a PostgreSQL with PostgresSettings, which any number of processes may use at once. CreatePostgres
// comes first.
func NewPostgres(dsn string) (Store, error) {
	guard, err := sqlfence.New(sqlfence.PostgreSQL)
	if err != nil {
		return nil, err
	}
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return nil, fmt.Errorf("opening the register: %w", err)
	}
	db.SetMaxOpenConns(postgresConnections)
	return &postgres{db, guard}, nil
}

// CreatePostgres makes the tables.
func CreatePostgres(ctx context.Context, dsn string) error {
	s, err := NewPostgres(dsn)
	if err != nil {
		return err
	}
	p := s.(*postgres)
	_, err = p.db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS pawl_rows (name TEXT PRIMARY KEY, numbers BYTEA NOT NULL)")
	if err == nil {
		err = p.guard.Create(ctx, p.db)
	}
	return errors.Join(err, p.Close())
}

// begin begins a transaction and checks the stamps. Who gets an error has no transaction.
func (p *postgres) begin(ctx context.Context, names []string, stamps []fence.Stamp) (*sql.Tx, error) {
	tx, err := p.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	for i, stamp := range stamps {
		if err := p.guard.Check(ctx, tx, names[i], stamp); err != nil {
			_ = tx.Rollback()
			return nil, err
		}
	}
	return tx, nil
}

func (p *postgres) Read(ctx context.Context, names []string, stamps []fence.Stamp) (rows [][]int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	tx, err := p.begin(ctx, names, stamps)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // nothing, once it is committed
	for _, name := range names {
		var data []byte
		err := tx.QueryRowContext(ctx, "SELECT numbers FROM pawl_rows WHERE name = $1", name).Scan(&data)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return nil, err
		}
		rows = append(rows, decodeRow(data))
	}
	if err := tx.Commit(); err != nil {
		return nil, err
	}
	return rows, nil
}

// Write goes on when ctx ends, as a late write does, for storeLimit at most.
func (p *postgres) Write(ctx context.Context, names []string, stamps []fence.Stamp, rows [][]int64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
	defer cancel()
	tx, err := p.begin(ctx, names, stamps)
	if err != nil {
		return unwritten(err)
	}
	for i, name := range names {
		_, err := tx.ExecContext(ctx, "INSERT INTO pawl_rows (name, numbers) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET numbers = $2",
			name, encodeRow(rows[i]))
		if err != nil {
			_ = tx.Rollback()
			return unwritten(err)
		}
	}
	if err = tx.Commit(); rolledBack(err) {
		return unwritten(err)
	}
	return err
}

func (p *postgres) Close() error { return p.db.Close() }

// unwritten marks the error of a transaction that was not committed.
func unwritten(err error) error {
	if errors.Is(err, fence.ErrStale) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnwritten, err)
}

// rolledBack tells whether an error of COMMIT says that the server has rolled back (class 40, but for 40003, which is just not
// knowing). After any other nobody knows, also when the connection is gone because the transaction was idle for too long.
func rolledBack(err error) bool {
	var said *pgconn.PgError
	return errors.As(err, &said) && strings.HasPrefix(said.Code, "40") && said.Code != "40003"
}
