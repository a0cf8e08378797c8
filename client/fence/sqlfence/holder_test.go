//go:build linux

package sqlfence_test

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/client/fence/sqlfence"
)

// What a holder that is a process of its own is told.
const (
	holderDSN     = "PAWL_TEST_DSN"
	holderDriver  = "PAWL_TEST_DRIVER"
	holderDialect = "PAWL_TEST_DIALECT"
	holderStamp   = "PAWL_TEST_STAMP"
)

// holder writes to account 1 under its stamp. It waits for a line before the transaction, and for another one in the middle of it.
func holder() int {
	err := func() error {
		db, err := sql.Open(os.Getenv(holderDriver), os.Getenv(holderDSN))
		if err != nil {
			return err
		}
		stamp, err := fence.Parse(os.Getenv(holderStamp))
		if err != nil {
			return err
		}
		dialect, err := strconv.Atoi(os.Getenv(holderDialect))
		if err != nil {
			return err
		}
		guard, err := sqlfence.New(sqlfence.Dialect(dialect))
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(os.Stdin)
		wait := func(where string) {
			fmt.Println(where)
			lines.Scan()
		}
		wait("before")
		return inTx(db, nil, func(tx *sql.Tx) error {
			if err := guard.Check(context.Background(), tx, "account/1", stamp); err != nil {
				return err
			}
			if _, err := tx.Exec("UPDATE account SET balance = balance + " + strconv.FormatUint(stamp.Token, 10)); err != nil {
				return err
			}
			wait("midway")
			return nil
		})
	}()
	switch {
	case errors.Is(err, fence.ErrStale):
		fmt.Println("stale")
	case err != nil:
		fmt.Println(err)
	default:
		fmt.Println("done")
	}
	return 0
}

// inTx runs act in a transaction and commits, or rolls back when it fails.
func inTx(db *sql.DB, options *sql.TxOptions, act func(*sql.Tx) error) error {
	tx, err := db.BeginTx(context.Background(), options)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := act(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// process is a holder that runs.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    *os.File
	lines chan string
}

func startHolder(t *testing.T, d *database, stamp fence.Stamp) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(os.Args[0], "-test.run=^$"), lines: make(chan string, 10)}
	p.cmd.Env = append(os.Environ(), holderDSN+"="+d.dsn, holderDriver+"="+d.driver, holderDialect+"="+strconv.Itoa(int(d.dialect)), holderStamp+"="+stamp.String())
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stderr = os.Stderr
	in, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.in, p.cmd.Stdin = write, in
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	go func() {
		defer close(p.lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			p.lines <- scanner.Text()
		}
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		_ = write.Close()
		for range p.lines {
		}
	})
	return p
}

func (p *process) expect(want string) {
	p.t.Helper()
	select {
	case line := <-p.lines:
		if line != want {
			p.t.Fatalf("the holder says %q, want %q", line, want)
		}
	case <-time.After(30 * time.Second):
		p.t.Fatalf("the holder says nothing, want %q", want)
	}
}

func (p *process) goOn() {
	p.t.Helper()
	if _, err := p.in.WriteString("\n"); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// stop suspends the process, and returns when all of its threads stand still: one of them could otherwise go on for a moment.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || !status.Stopped() {
			p.t.Fatalf("the holder did not stop: %v %v", status, err)
		}
		return
	}
}

// account makes a fresh account 1 with nothing on it, and fresh tables of marks.
func account(t *testing.T, d *database) (*sql.DB, *sqlfence.Guard) {
	t.Helper()
	db := d.open(t)
	guard, err := sqlfence.New(d.dialect)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing to make
		if err := guard.Create(t.Context(), db); err != nil {
			t.Fatal(err)
		}
	}
	for _, statement := range []string{
		"DELETE FROM pawl_marks", "DELETE FROM pawl_done",
		"DROP TABLE IF EXISTS account",
		"CREATE TABLE account (id INTEGER NOT NULL PRIMARY KEY, balance BIGINT NOT NULL, fence_token BIGINT DEFAULT 0 NOT NULL, fence_sequence BIGINT DEFAULT 0 NOT NULL)",
		"INSERT INTO account (id, balance) VALUES (1, 0)",
	} {
		if _, err := db.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	return db, guard
}

func wantBalance(t *testing.T, db *sql.DB, want int64) {
	t.Helper()
	var balance int64
	if err := db.QueryRow("SELECT balance FROM account WHERE id = 1").Scan(&balance); err != nil || balance != want {
		t.Errorf("the balance is %d, want %d: %v", balance, want, err)
	}
}

// TestSuspendedHolderIsRefused: a process that was stopped writes after its successor has.
func TestSuspendedHolderIsRefused(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) {
		db, _ := account(t, d)
		old := startHolder(t, d, exclusive(33, 1))
		old.expect("before")
		old.stop()
		old.goOn()
		next := startHolder(t, d, exclusive(41, 1))
		next.expect("before")
		next.goOn()
		next.expect("midway")
		next.goOn()
		next.expect("done")
		old.signal(syscall.SIGCONT)
		old.expect("stale")
		wantBalance(t, db, 41)
	})
}

// TestDeadHolderLeavesNothing: a process is killed between its check and its commit.
func TestDeadHolderLeavesNothing(t *testing.T) {
	eachDatabase(t, func(t *testing.T, d *database) {
		db, guard := account(t, d)
		dead := startHolder(t, d, exclusive(33, 1))
		dead.expect("before")
		dead.goOn()
		dead.expect("midway")

		// As long as it only stands still, its transaction is in the way, also of its successor.
		successor := startHolder(t, d, exclusive(41, 1))
		successor.expect("before")
		successor.goOn()
		select {
		case line := <-successor.lines:
			t.Errorf("beside another transaction: %q", line)
		case <-time.After(200 * time.Millisecond):
		}

		dead.signal(syscall.SIGKILL)
		successor.expect("midway")
		// Nothing of the dead one is to be seen, nor anything of this one yet.
		if newest, err := guard.Newest(t.Context(), db, "account/1"); err != nil || newest != (fence.Stamp{}) {
			t.Errorf("a mark that was never committed: %v %v", newest, err)
		}
		wantBalance(t, db, 0)
		successor.goOn()
		successor.expect("done")
		wantBalance(t, db, 41)
	})
}
