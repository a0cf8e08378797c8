package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// asPawl makes this test binary the program, so that tests run the real thing as processes of their own.
const asPawl = "PAWL_TEST_AS_PAWL"

func TestMain(m *testing.M) {
	if path := os.Getenv(asBeater); path != "" {
		beat(path)
		os.Exit(0)
	}
	if os.Getenv(asPawl) != "" {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// patience bounds what takes a second or two on a quiet machine.
const patience = 40 * time.Second

// process is a running pawl.
type process struct {
	command *exec.Cmd
	lines   chan string // of its standard output
	code    chan int

	mu     sync.Mutex
	stderr bytes.Buffer
}

// Write collects standard error.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.Write(b)
}

func (p *process) errors() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stderr.String()
}

func startPawl(t *testing.T, environment []string, arguments ...string) *process {
	t.Helper()
	return startPawlWith(t, nil, environment, arguments...)
}

// startPawlWith gives it something to read, too.
func startPawlWith(t *testing.T, stdin io.Reader, environment []string, arguments ...string) *process {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{command: exec.Command(executable, arguments...), lines: make(chan string, 1000), code: make(chan int, 1)}
	p.command.Env = append(append(os.Environ(), asPawl+"=1"), environment...)
	p.command.Stdin, p.command.Stderr = stdin, p
	stdout, err := p.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
			p.lines <- scanner.Text()
		}
		close(p.lines)
		_ = p.command.Wait() // the exit code says it
		p.code <- p.command.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		_ = p.command.Process.Kill() // most have ended already
		<-ended
	})
	return p
}

// await gives the first line of standard output with the text.
func (p *process) await(t *testing.T, text string) string {
	t.Helper()
	limit := time.After(patience)
	for {
		select {
		case line, open := <-p.lines:
			if strings.Contains(line, text) {
				return line
			}
			if !open {
				t.Fatalf("the process ended before it said %q; stderr: %s", text, p.errors())
			}
		case <-limit:
			t.Fatalf("the process did not say %q within %v; stderr: %s", text, patience, p.errors())
		}
	}
}

// end sends a signal, if any, and gives the exit code and how long it took.
func (p *process) end(t *testing.T, signal os.Signal) (code int, took time.Duration) {
	t.Helper()
	began := time.Now()
	if signal != nil {
		if err := p.command.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case code := <-p.code:
		return code, time.Since(began)
	case <-time.After(patience):
		t.Fatalf("the process did not end within %v; stderr: %s", patience, p.errors())
	}
	return 0, 0
}

// result is what a command did.
type result struct {
	code           int
	stdout, stderr string
}

// pawl runs a command in this process.
func pawl(ctx context.Context, arguments ...string) result {
	var stdout, stderr bytes.Buffer
	code := run(ctx, arguments, strings.NewReader(""), &stdout, &stderr)
	return result{code, stdout.String(), stderr.String()}
}

// must runs a command that is to succeed and gives what it wrote.
func must(t *testing.T, arguments ...string) string {
	t.Helper()
	r := pawl(t.Context(), arguments...)
	if r.code != exitOK {
		t.Fatalf("pawl %s: exit code %d: %s", strings.Join(arguments, " "), r.code, r.stderr)
	}
	return r.stdout
}

// answered runs a command with --json and reads what it wrote.
func answered[T any](t *testing.T, arguments ...string) (answer T) {
	t.Helper()
	text := must(t, append(arguments, "--json")...)
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		t.Fatalf("pawl %s wrote %q: %v", strings.Join(arguments, " "), text, err)
	}
	return answer
}

// devPorts finds a port that a cluster of so many nodes can start at, below the range that the system gives to outgoing
// connections: a port that was free a moment ago would otherwise often be somebody's when the node binds it.
func devPorts(t *testing.T, nodes int) int {
	t.Helper()
	for range 100 {
		base := 12_000 + rand.IntN(100)*200
		if portsFree(base, nodes) && portsFree(base+peerOffset, nodes) {
			return base
		}
	}
	t.Fatal("no free ports were found")
	return 0
}

func portsFree(base, count int) bool {
	for port := base; port < base+count; port++ {
		listener, err := net.Listen("tcp", loopbackAddress(port))
		if err != nil {
			return false
		}
		listener.Close()
	}
	return true
}

func endpointsFlag(base, nodes int) string {
	var urls []string
	for i := range nodes {
		urls = append(urls, "http://"+loopbackAddress(base+i))
	}
	return "--endpoints=" + strings.Join(urls, ",")
}
