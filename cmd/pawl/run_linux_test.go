package main

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/transport"
)

// beatLine is one sign of life of a command.
type beatLine struct {
	at    time.Duration
	token uint64
}

func beats(t *testing.T, path string) (lines []beatLine) {
	t.Helper()
	file, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil
	} else if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		at, token, _ := strings.Cut(scanner.Text(), " ")
		nanoseconds, err1 := strconv.ParseInt(at, 10, 64)
		number, err2 := strconv.ParseUint(token, 10, 64)
		if err1 != nil || err2 != nil {
			continue // the last line of a command that was killed while it wrote
		}
		lines = append(lines, beatLine{time.Duration(nanoseconds), number})
	}
	slices.SortFunc(lines, func(a, b beatLine) int { return cmp.Compare(a.at, b.at) })
	return lines
}

// proxy passes on what a client sends to one node, until it is cut: then nothing arrives any more, and nothing says so.
type proxy struct {
	listener net.Listener
	target   string

	mu   sync.Mutex
	open chan struct{} // closed while it is not cut
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, target: target, open: make(chan struct{})}
	close(p.open)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go p.serve(t.Context(), conn)
		}
	}()
	return p
}

func (p *proxy) url() string { return "http://" + p.listener.Addr().String() }

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = make(chan struct{})
}

func (p *proxy) passes(ctx context.Context) bool {
	p.mu.Lock()
	open := p.open
	p.mu.Unlock()
	select {
	case <-open:
		return true
	case <-ctx.Done():
		return false
	}
}

func (p *proxy) serve(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	if !p.passes(ctx) {
		return
	}
	node, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer node.Close()
	pass := func(to, from net.Conn) {
		defer to.Close()
		defer from.Close()
		buffer := make([]byte, 32<<10)
		for {
			n, err := from.Read(buffer)
			if n == 0 && err != nil || !p.passes(ctx) {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
	go pass(node, conn)
	pass(conn, node)
}

// The lease of the tests with real faults, and when the command must be gone.
var shortLease = []string{"--ttl", "3s", "--term-before", "1s", "--kill-before", "500ms"}

// startRun starts pawl run with a command that beats.
func startRun(t *testing.T, endpoints []string, path string, environment []string, flags ...string) *process {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	arguments := append([]string{"run", "beaten", "--endpoints", strings.Join(endpoints, ",")}, shortLease...)
	arguments = append(append(arguments, flags...), "--", "env", asBeater+"="+path, executable)
	return startPawl(t, environment, arguments...)
}

// firstBeat waits for the first sign of life of a token above the given one.
func firstBeat(t *testing.T, path string, above uint64) beatLine {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for _, line := range beats(t, path) {
			if line.token > above {
				return line
			}
		}
	}
	lines := beats(t, path)
	t.Fatalf("no command began with a token above %d; the last signs of life: %v", above, lines[max(0, len(lines)-3):])
	return beatLine{}
}

// childrenOf gives the processes that were started by this one.
func childrenOf(t *testing.T, parent int) (pids []int) {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
	if err == nil {
		for _, field := range strings.Fields(string(content)) {
			pid, _ := strconv.Atoi(field)
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		// Children belong to the thread that made them.
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
		for _, path := range tasks {
			content, _ := os.ReadFile(path)
			for _, field := range strings.Fields(string(content)) {
				pid, _ := strconv.Atoi(field)
				pids = append(pids, pid)
			}
		}
	}
	if len(pids) == 0 {
		t.Fatalf("process %d has no children", parent)
	}
	return pids
}

// Two commands never run under one lock, whatever happens to the one that has it: pawl run or its guard killed or stopped,
// its client cut off, the leader killed (then it keeps the lock).
func TestRunNeverTwoCommands(t *testing.T) {
	t.Parallel()
	cluster := startProcesses(t)
	direct := make([]string, len(cluster.apis))
	for i, api := range cluster.apis {
		direct[i] = "http://" + api
	}
	path := filepath.Join(t.TempDir(), "beats")
	kill := func(s syscall.Signal) func(*process, []*proxy) {
		return func(p *process, _ []*proxy) { _ = p.command.Process.Signal(s) }
	}
	killGuard := func(s syscall.Signal) func(*process, []*proxy) {
		return func(p *process, _ []*proxy) { _ = syscall.Kill(childrenOf(t, p.command.Process.Pid)[0], s) }
	}
	var above uint64
	for _, fault := range []struct {
		name string
		do   func(*process, []*proxy)
		code int // of pawl run when it goes on; -1: it was killed
	}{
		{"pawl run killed", kill(syscall.SIGKILL), -1},
		{"pawl run stopped", kill(syscall.SIGSTOP), exitRunLost},
		{"guard killed", killGuard(syscall.SIGKILL), exitRunLost},
		{"guard stopped, client cut off", func(p *process, proxies []*proxy) {
			killGuard(syscall.SIGSTOP)(p, nil)
			for _, proxy := range proxies {
				proxy.cut()
			}
		}, exitRunLost},
		{"client cut off", func(_ *process, proxies []*proxy) {
			for _, proxy := range proxies {
				proxy.cut()
			}
		}, exitRunLost},
	} {
		var proxies []*proxy
		var through []string
		for _, api := range cluster.apis {
			p := newProxy(t, api)
			proxies = append(proxies, p)
			through = append(through, p.url())
		}
		holder := startRun(t, through, path, nil)
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s: pawl run said %s", fault.name, holder.errors())
			}
		})
		first := firstBeat(t, path, above)
		waiter := startRun(t, direct, path, []string{beatFor + "=300ms"}, "--wait", "60s")
		awaitWaiter(t, cluster)
		fault.do(holder, proxies)
		began := client.Now()
		second := firstBeat(t, path, first.token)
		if code, _ := waiter.end(t, nil); code != 0 {
			t.Errorf("%s: the one that waited ended with code %d: %s", fault.name, code, waiter.errors())
		}
		_ = holder.command.Process.Signal(syscall.SIGCONT)
		if fault.code >= 0 {
			if code, _ := holder.end(t, nil); code != fault.code || !strings.Contains(holder.errors(), "before others may have the lock") {
				t.Errorf("%s: pawl run ended with code %d: %s", fault.name, code, holder.errors())
			}
		} else {
			holder.end(t, nil)
		}
		var last beatLine
		for _, line := range beats(t, path) {
			if line.token == first.token {
				last = line
			}
		}
		if last.at >= second.at {
			t.Errorf("%s: the first command lived %v longer than the second one's beginning", fault.name, last.at-second.at)
		}
		t.Logf("%s: the command was gone after %v, %v before the next one began", fault.name,
			(last.at - began).Round(time.Millisecond), (second.at - last.at).Round(time.Millisecond))
		above = second.token
	}

	holder := startRun(t, direct, path, []string{beatFor + "=6s"})
	first := firstBeat(t, path, above)
	waiter := startRun(t, direct, path, []string{beatFor + "=100ms"}, "--wait", "60s")
	awaitWaiter(t, cluster)
	cluster.kill(cluster.leader())
	if code, _ := holder.end(t, nil); code != 0 {
		t.Errorf("leader killed: pawl run ended with code %d: %s", code, holder.errors())
	}
	firstBeat(t, path, first.token)
	if code, _ := waiter.end(t, nil); code != 0 {
		t.Errorf("leader killed: the one that waited ended with code %d: %s", code, waiter.errors())
	}
	var newest beatLine
	for _, line := range beats(t, path) {
		if line.token < newest.token {
			t.Fatalf("at %v the command with token %d was alive, after one with token %d had begun at %v", line.at, line.token, newest.token, newest.at)
		}
		newest = line
	}
}

// awaitWaiter waits until somebody stands in the queue.
func awaitWaiter(t *testing.T, cluster *processes) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		var lock transport.LockResponse
		for i := range cluster.nodes {
			if cluster.nodes[i] == nil {
				continue
			}
			if status, err := cluster.call(t.Context(), i, "GET", "/v1/lock?name=beaten", nil, "", &lock); err == nil && status == 200 && len(lock.Queue) > 0 {
				return
			}
		}
	}
	t.Fatal("nobody waits")
}

// What pawl run tells its command, passes on and says itself.
func TestRun(t *testing.T) {
	t.Parallel()
	base := devPorts(t, 1)
	endpoints := endpointsFlag(base, 1)
	startPawl(t, nil, "dev", "--nodes", "1", "--data", t.TempDir(), "--port", strconv.Itoa(base)).await(t, "ready")
	run := func(stdin string, arguments ...string) result {
		t.Helper()
		p := startPawlWith(t, strings.NewReader(stdin), nil, append([]string{"run", endpoints}, arguments...)...)
		var out strings.Builder
		for line := range p.lines {
			out.WriteString(line + "\n")
		}
		code, _ := p.end(t, nil)
		return result{code, out.String(), p.errors()}
	}
	for name, test := range map[string]struct {
		stdin     string
		arguments []string
		code      int
		out, err  string
	}{
		"code":           {arguments: []string{"a", "--", "sh", "-c", "exit 9"}, code: 9},
		"signal":         {arguments: []string{"b", "--", "sh", "-c", "kill -KILL $$"}, code: 128 + 9},
		"standard input": {stdin: "hello\n", arguments: []string{"c", "--", "cat"}, out: "hello\n"},
		"no shell":       {arguments: []string{"d", "--", "echo", "$HOME; *"}, out: "$HOME; *\n"},
		"environment":    {arguments: []string{"--all", "e,f", "--", "sh", "-c", `test "$PAWL_TOKENS" = "{\"e\":$PAWL_TOKEN,\"f\":$PAWL_TOKEN}" && echo $PAWL_LOCK`}, out: "e\n"},
		"not found":      {arguments: []string{"g", "--", "no-such-command-here"}, code: exitRunNotFound, err: "not found"},
		"denied":         {arguments: []string{"h", "--", "/etc/passwd"}, code: exitRunDenied, err: "permission denied"},
		"no dash":        {arguments: []string{"i", "true"}, code: exitRunFailed, err: "behind --"},
		"no command":     {arguments: []string{"i", "--"}, code: exitRunFailed, err: "behind --"},
		"two names":      {arguments: []string{"i", "j", "--", "true"}, code: exitRunFailed, err: "--all"},
		"unknown flag":   {arguments: []string{"i", "--nope", "--", "true"}, code: exitRunFailed, err: "--nope"},
		"bad margins":    {arguments: []string{"i", "--ttl", "2s", "--term-before", "1500ms", "--", "true"}, code: exitRunFailed, err: "--term-before"},
		"bad name":       {arguments: []string{"", "--", "true"}, code: exitRunFailed, err: "name"},
		"bad on-lost":    {arguments: []string{"i", "--on-lost", "pray", "--", "true"}, code: exitRunFailed, err: "pray"},
	} {
		t.Run(name, func(t *testing.T) {
			if r := run(test.stdin, test.arguments...); r.code != test.code || r.stdout != test.out || !strings.Contains(r.stderr, test.err) {
				t.Errorf("%+v", r)
			}
		})
	}

	t.Run("files", func(t *testing.T) {
		executable, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		for _, numbers := range []string{"3 4 5 6", "4 7", "3", "9"} {
			dir := t.TempDir()
			opened, script := "", ""
			for _, number := range strings.Fields(numbers) {
				opened += fmt.Sprintf(" %s>%s/%s", number, dir, number)
				script += fmt.Sprintf("echo %s >&%s || exit 1; ", number, number)
			}
			// Of pawl run's own nothing is left to it.
			script += `for file in 3 4 5 6 7 8; do ! test -p /proc/$$/fd/$file || exit 2; done`
			c := exec.Command("sh", "-c", `exec "$0" "$@"`+opened, executable, "run", endpoints, "files", "--", "sh", "-c", script)
			c.Env = append(os.Environ(), asPawl+"=1")
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("files %s: %v: %s", numbers, err, out)
			}
			for _, number := range strings.Fields(numbers) {
				if content, _ := os.ReadFile(filepath.Join(dir, number)); string(content) != number+"\n" {
					t.Errorf("file %s of %s: %q", number, numbers, content)
				}
			}
		}
	})

	t.Run("held by another", func(t *testing.T) {
		must(t, "acquire", "held", endpoints, "--ttl", "60s", "--owner", "ann")
		who := "held by ann (token " + answered[transport.LockResponse](t, "lock", "held", endpoints).Holders[0].Token.String() + ", for "
		for _, wait := range []string{"0s", "50ms"} {
			r := run("", "held", "--wait", wait, "--", "true")
			if r.code != exitRunNotGranted || !strings.Contains(r.stderr, who) || strings.Contains(r.stderr, "not granted within "+wait) != (wait != "0s") {
				t.Errorf("--wait %s: %+v", wait, r)
			}
		}
		p := startPawl(t, nil, "run", endpoints, "held", "--wait", "60s", "--", "true")
		awaitQueue(t, "held", 1, endpoints)
		if code, _ := p.end(t, syscall.SIGTERM); code != 128+15 {
			t.Errorf("interrupted: %d %s", code, p.errors())
		}
		if lock := answered[transport.LockResponse](t, "lock", "held", endpoints); len(lock.Queue) != 0 {
			t.Errorf("it stands in the queue: %+v", lock)
		}
	})

	t.Run("signals", func(t *testing.T) {
		p := startPawl(t, nil, "run", endpoints, "signals", "--", "sh", "-c", `trap "echo usr1" USR1; trap "echo term; exit 4" TERM; echo ready; while :; do sleep 0.01; done`)
		p.await(t, "ready")
		_ = p.command.Process.Signal(syscall.SIGUSR1)
		p.await(t, "usr1")
		if code, _ := p.end(t, syscall.SIGTERM); code != 4 {
			t.Errorf("%d %s", code, p.errors())
		}
		if lock := answered[transport.LockResponse](t, "lock", "signals", endpoints); len(lock.Holders) != 0 {
			t.Errorf("it still holds: %+v", lock)
		}
	})

	t.Run("forced", func(t *testing.T) {
		command := []string{"--ttl", "2s", "--", "sh", "-c", `trap "echo term; exit 0" TERM; echo $PAWL_TOKEN; while :; do sleep 0.01; done`}
		p := startPawl(t, nil, append([]string{"run", endpoints, "forced"}, command...)...)
		token := p.await(t, "")
		must(t, "force-release", "forced", "--token", token, "--reason", "wedged", "--yes", endpoints)
		p.await(t, "term")
		code, _ := p.end(t, nil)
		if said := p.errors(); code != exitRunLost || !strings.Contains(said, "wedged") || strings.Count(said, "when others may have had the lock already") != 2 {
			t.Errorf("%d %s", code, p.errors())
		}
	})

	t.Run("maximum", func(t *testing.T) {
		r := run("", "maximum", "--ttl", "2s", "--max-hold", "1500ms", "--", "sleep", "60")
		if r.code != exitRunLost || strings.Count(r.stderr, "ms before others may have the lock") != 2 || strings.Contains(r.stderr, "on loss") {
			t.Errorf("%+v", r)
		}
	})

	t.Run("no cluster", func(t *testing.T) {
		p := startPawl(t, nil, "run", "--endpoints", "http://"+freeAddress(t), "x", "--wait", "100ms", "--", "true")
		if code, _ := p.end(t, nil); code != exitRunUnavailable {
			t.Errorf("%d %s", code, p.errors())
		}
	})
}
