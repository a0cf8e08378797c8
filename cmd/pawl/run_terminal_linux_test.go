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

// On a terminal the command of pawl run is where a shell would have put it: it reads what is typed and gets the Ctrl-C; with
// Ctrl-Z both stop, and go on together.
func TestRunOnATerminal(t *testing.T) {
	t.Parallel()
	base := devPorts(t, 1)
	startPawl(t, nil, "dev", "--nodes", "1", "--data", t.TempDir(), "--port", strconv.Itoa(base)).await(t, "ready")
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(executable, "run", "tty", endpointsFlag(base, 1), "--ttl", "60s", "--", "sh", "-c",
		`trap "echo interrupted; exit 6" INT; read line; echo got $line; while :; do echo alive; sleep 0.05; done`)
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
	lines := make(chan string, 10000)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(typed); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	await := func(text string) {
		t.Helper()
		for limit := time.After(patience); ; {
			select {
			case line, open := <-lines:
				if strings.Contains(line, text) {
					return
				}
				if !open {
					t.Fatalf("it ended without %q", text)
				}
			case <-limit:
				t.Fatalf("it did not say %q", text)
			}
		}
	}
	write := func(text string) {
		t.Helper()
		if _, err := typed.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	write("hello\n")
	await("got hello")
	write("\x1a")
	awaitState(t, c.Process.Pid, "T")
	for len(lines) > 0 {
		<-lines
	}
	_ = c.Process.Signal(syscall.SIGCONT)
	await("alive")
	write("\x03")
	await("interrupted")
	_ = c.Wait() // the exit code says it
	if code := c.ProcessState.ExitCode(); code != 6 {
		t.Errorf("exit code %d", code)
	}
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
