package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pawl-lock/pawl/client/fence/sqlfence"
)

// What is in the account at first, what the workers add, and what must be in it at last: the one who was refused tries again.
const (
	initial  = 100
	depositA = 20
	depositB = 50
	expected = initial + depositB
)

// story runs the two workers and tells what happens.
type story struct {
	dsn, endpoints string
	unfenced       bool
	out            io.Writer

	mu    sync.Mutex // over what is told
	began time.Time
}

// tell runs it and gives the balance at the end.
func (s *story) tell(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	db, err := sql.Open("pgx", s.dsn)
	if err != nil {
		return 0, err
	}
	defer db.Close()
	for _, statement := range []string{
		`DROP TABLE IF EXISTS account`,
		`CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT NOT NULL)`,
		`INSERT INTO account (id, balance) VALUES (7, ` + strconv.Itoa(initial) + `)`,
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return 0, err
		}
	}
	guard, err := sqlfence.New(sqlfence.PostgreSQL)
	if err != nil {
		return 0, err
	}
	if err := guard.Create(ctx, db); err != nil {
		return 0, err
	}
	title := "With the fencing kit: the database keeps the newest stamp, and refuses older ones"
	if s.unfenced {
		title = "Without it: the lock alone"
	}
	fmt.Fprintf(s.out, "\n%s\n\n", s.strong(title))
	s.began = time.Now()

	first, err := s.start(ctx, "A", depositA, true)
	if err != nil {
		return 0, err
	}
	defer first.kill()
	if err := first.awaitStopped(ctx); err != nil {
		return 0, err
	}
	s.line("A", fmt.Sprintf("(stopped; its lease of %v runs out)", ttl))
	second, err := s.start(ctx, "B", depositB, false)
	if err != nil {
		return 0, err
	}
	defer second.kill()
	if err := second.wait(); err != nil {
		return 0, fmt.Errorf("worker B: %w", err)
	}
	if err := first.command.Process.Signal(syscall.SIGCONT); err != nil {
		return 0, err
	}
	if _, err := first.wake.Write([]byte{'\n'}); err != nil {
		return 0, err
	}
	if err := first.wait(); err != nil {
		return 0, fmt.Errorf("worker A: %w", err)
	}
	var balance int64
	if err := db.QueryRowContext(ctx, `SELECT balance FROM account WHERE id = 7`).Scan(&balance); err != nil {
		return 0, err
	}
	verdict := fmt.Sprintf("%d: B's deposit is there, and A knows that its own is not.", balance)
	if balance != expected {
		verdict = fmt.Sprintf("%d: B was told that its %d were written, and they are gone. Nobody has noticed.", balance, depositB)
	}
	fmt.Fprintf(s.out, "\n%s\n", s.strong("The balance is "+verdict))
	return balance, nil
}

// running is a worker process.
type running struct {
	command *exec.Cmd
	wake    io.Writer
	read    chan struct{} // all that it said has been told
}

// start starts a worker and tells what it says.
func (s *story) start(ctx context.Context, name string, deposit int, pause bool) (*running, error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, executable, "--worker", name, "--dsn", s.dsn, "--endpoints", s.endpoints,
		"--deposit", strconv.Itoa(deposit), fmt.Sprintf("--pause=%t", pause), fmt.Sprintf("--unfenced=%t", s.unfenced))
	command.Stderr = os.Stderr
	wake, err := command.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	r := &running{command: command, wake: wake, read: make(chan struct{})}
	go func() {
		defer close(r.read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			s.line(name, lines.Text())
		}
	}()
	return r, nil
}

func (r *running) wait() error {
	<-r.read
	return r.command.Wait()
}

// kill ends a worker that a story which failed has left.
func (r *running) kill() {
	if r.command.ProcessState == nil {
		_ = r.command.Process.Kill()
		_ = r.wait()
	}
}

// awaitStopped waits until the worker has stopped itself.
func (r *running) awaitStopped(ctx context.Context) error {
	path := fmt.Sprintf("/proc/%d/stat", r.command.Process.Pid)
	for {
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		switch state := strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))[0]; state {
		case "T":
			return nil
		case "Z":
			return errors.New("the worker ended before it was stopped")
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// line tells one thing, in the column of who does it.
func (s *story) line(who, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	indent := map[string]string{"A": "", "B": "      "}[who]
	fmt.Fprintf(s.out, "%6.2f s   %s%s  %s\n", time.Since(s.began).Seconds(), indent, s.strong(who), what)
}

// strong is for terminals.
func (s *story) strong(text string) string {
	if file, ok := s.out.(*os.File); ok && os.Getenv("NO_COLOR") == "" {
		if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return "\x1b[1m" + text + "\x1b[0m"
		}
	}
	return text
}
