package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
)

// onTerminal is a program that has a terminal of its own.
type onTerminal struct {
	t       *testing.T
	command *exec.Cmd
	typed   *os.File
	lines   chan string
}

// startOnTerminal starts a program, in which this test binary is pawl.
func startOnTerminal(t *testing.T, name string, arguments ...string) *onTerminal {
	t.Helper()
	c := exec.Command(name, arguments...)
	c.Env = append(os.Environ(), asPawl+"=1")
	typed, err := pty.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGCONT)
		_ = c.Process.Kill()
		_ = c.Wait()
		typed.Close()
	})
	o := &onTerminal{t, c, typed, make(chan string, 10000)}
	go func() {
		defer close(o.lines)
		for scanner := bufio.NewScanner(typed); scanner.Scan(); {
			o.lines <- scanner.Text()
		}
	}()
	return o
}

func (o *onTerminal) await(text string) {
	o.t.Helper()
	for limit := time.After(patience); ; {
		select {
		case line, open := <-o.lines:
			if strings.Contains(line, text) {
				return
			}
			if !open {
				o.t.Fatalf("it ended without %q", text)
			}
		case <-limit:
			o.t.Fatalf("it did not say %q", text)
		}
	}
}

func (o *onTerminal) write(text string) {
	o.t.Helper()
	if _, err := o.typed.WriteString(text); err != nil {
		o.t.Fatal(err)
	}
}

// On a terminal the command of pawl run is where a shell would have put it: it reads what is typed and gets the Ctrl-C; with
// Ctrl-Z both stop, and go on together. People are told what becomes of it when the lock is lost, unless they want quiet.
func TestRunOnATerminal(t *testing.T) {
	t.Parallel()
	base := devPorts(t, 1)
	startPawl(t, nil, "dev", "--nodes", "1", "--data", t.TempDir(), "--port", strconv.Itoa(base)).await(t, "ready")
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := startOnTerminal(t, executable, "run", "tty", endpointsFlag(base, 1), "--ttl", "60s", "--", "sh", "-c",
		`trap "echo interrupted; exit 6" INT; read line; echo got $line; while :; do echo alive; sleep 0.05; done`)
	o.await("on loss TERM 20s and KILL 6s before others may have the lock")
	o.write("hello\n")
	o.await("got hello")
	o.write("\x1a")
	awaitState(t, o.command.Process.Pid, "T")
	for len(o.lines) > 0 {
		<-o.lines
	}
	_ = o.command.Process.Signal(syscall.SIGCONT)
	o.await("alive")
	o.write("\x03")
	o.await("interrupted")
	_ = o.command.Wait() // the exit code says it
	if code := o.command.ProcessState.ExitCode(); code != 6 {
		t.Errorf("exit code %d", code)
	}

	o = startOnTerminal(t, executable, "run", "tty", endpointsFlag(base, 1), "--on-lost", "kill", "--", "true")
	o.await("on loss KILL 1.5s before others may have the lock")
	o = startOnTerminal(t, executable, "run", "quiet", endpointsFlag(base, 1), "--quiet", "--", "echo", "first")
	if line := <-o.lines; line != "first" {
		t.Errorf("a quiet one said %q", line)
	}

	// In a pipeline the terminal is not lent, since another part of it may want that. A command that does is stopped by the
	// kernel: without a word nobody would know what it waits for.
	o = startOnTerminal(t, "sh", "-c", `"$0" run piped "$1" -- cat | cat`, executable, endpointsFlag(base, 1))
	o.await("it wants the terminal")
}

func awaitState(t *testing.T, pid int, state string) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Fields(string(content[strings.LastIndexByte(string(content), ')')+1:]))[0] == state {
			return
		}
	}
	t.Fatalf("process %d is not in state %s", pid, state)
}
