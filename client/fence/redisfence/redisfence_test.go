package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/client/fence/fencetest"
	"github.com/pawl-lock/pawl/client/fence/redisfence"
)

// server is a real redis-server on a socket of its own.
type server struct {
	dir     string
	append  string // appendonly
	command *exec.Cmd
	client  *redis.Client
}

func startServer(t *testing.T, appendOnly bool) *server {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		if os.Getenv("PAWL_CI") == "1" {
			t.Fatalf("needs redis-server, and PAWL_CI=1 makes what is skipped a failure: %v", err)
		}
		t.Skipf("needs redis-server: skipped (%v)", err)
	}
	dir, err := os.MkdirTemp("", "redis") // t.TempDir's path is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	s := &server{dir: dir, append: map[bool]string{true: "yes", false: "no"}[appendOnly]}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s.start(t, program)
	t.Cleanup(func() { s.kill() })
	return s
}

func (s *server) start(t *testing.T, program string) {
	t.Helper()
	socket := filepath.Join(s.dir, "socket")
	_ = os.Remove(socket)
	s.command = exec.Command(program, "--port", "0", "--unixsocket", socket, "--dir", s.dir, "--daemonize", "no",
		"--save", "", "--appendonly", s.append, "--appendfsync", "always", "--logfile", filepath.Join(s.dir, "log"))
	if err := s.command.Start(); err != nil {
		t.Fatal(err)
	}
	s.client = redis.NewClient(&redis.Options{Network: "unix", Addr: socket, MaxRetries: -1})
	for began := time.Now(); ; time.Sleep(2 * time.Millisecond) { // a process in real time
		err := s.client.Ping(t.Context()).Err()
		if err == nil {
			return
		}
		if time.Since(began) > 20*time.Second {
			log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			t.Fatalf("redis-server does not answer: %v\n%s", err, log)
		}
	}
}

func (s *server) kill() {
	_ = s.command.Process.Kill()
	_ = s.command.Wait()
	_ = s.client.Close()
}

// eval is the adapter that the package's documentation shows.
func (s *server) eval(ctx context.Context, script string, keys []string, args ...any) (any, error) {
	return s.client.Eval(ctx, script, keys, args...).Result()
}

func (s *server) resource(name string) fencetest.Resource {
	mark, key := "{"+name+"}:mark", "{"+name+"}"
	return fencetest.Resource{
		Write: func(ctx context.Context, stamp fence.Stamp, content string) error {
			return redisfence.Set(ctx, s.eval, mark, stamp, key, content)
		},
		Read: func(ctx context.Context) (string, fence.Stamp, error) {
			both, err := s.client.MGet(ctx, key, mark).Result()
			if err != nil || both[1] == nil {
				return "", fence.Stamp{}, err
			}
			newest, err := fence.Parse(both[1].(string))
			content, _ := both[0].(string)
			return content, newest, err
		},
	}
}

func TestKit(t *testing.T) {
	s := startServer(t, false)
	fencetest.Run(t, 100, func(t *testing.T) fencetest.Resource { return s.resource(t.Name()) })
}

func TestRun(t *testing.T) {
	s := startServer(t, false)
	ctx := t.Context()
	sequence := uint64(0)
	run := func(script string, keys []string, args ...any) (any, error) {
		sequence++
		return redisfence.Run(ctx, s.eval, "mark", fencetest.Exclusive(5, sequence), script, keys, args...)
	}
	for _, c := range []struct {
		script string
		want   any
	}{
		{"return redis.call('INCRBY', KEYS[1], ARGV[1])", int64(7)},
		{"return redis.call('GET', KEYS[1])", "7"},
		{"return redis.call('GET', KEYS[2])", nil},
		{"return #KEYS * 10 + #ARGV", int64(21)},
		{"return {KEYS[2], ARGV[1]} -- a comment at the end", []any{"other", "7"}},
		{"redis.call('SET', KEYS[1], 'x')", nil},
		{"return redis.status_reply('FINE')", "FINE"},
	} {
		answer, err := run(c.script, []string{"counter", "other"}, 7)
		if err != nil || fmt.Sprint(answer) != fmt.Sprint(c.want) {
			t.Errorf("%s: %v (%v), want %v", c.script, answer, err, c.want)
		}
	}
	// A script that fails is an error, and was not done.
	done := fencetest.Exclusive(5, sequence)
	for _, script := range []string{"return redis.call('LPUSH', KEYS[1], 1)", "return redis.error_reply('NO')", "syntax error"} {
		if answer, err := run(script, []string{"counter"}); err == nil || errors.Is(err, fence.ErrStale) {
			t.Errorf("%s: %v %v", script, answer, err)
		}
	}
	if newest, err := redisfence.Newest(ctx, s.eval, "mark"); err != nil || newest != done {
		t.Errorf("the mark is %v (%v)", newest, err)
	}
	fencetest.Refused(t, redisfence.Check(ctx, s.eval, "mark", fencetest.Exclusive(4, 1)), fencetest.Exclusive(4, 1), done)
	if err := redisfence.Check(ctx, s.eval, "mark", fencetest.Exclusive(6, 1)); err != nil {
		t.Error(err)
	}
	if newest, err := redisfence.Newest(ctx, s.eval, "nothing"); err != nil || newest != (fence.Stamp{}) {
		t.Errorf("where nothing was seen: %v %v", newest, err)
	}
	// What is no mark is not "nothing seen".
	for _, damaged := range []string{"", "41", "41.", "x.y", "41.ss", "41.1 "} {
		s.client.Set(ctx, "damaged", damaged, 0)
		if err := redisfence.Check(ctx, s.eval, "damaged", fencetest.Exclusive(99, 1)); err == nil || !strings.Contains(err.Error(), "PAWLMARK") {
			t.Errorf("over the mark %q: %v", damaged, err)
		}
	}
	s.client.LPush(ctx, "list", 1)
	if err := redisfence.Check(ctx, s.eval, "list", fencetest.Exclusive(99, 1)); err == nil {
		t.Error("a list was taken for a mark")
	}
}

// TestFailedWriteIsNotDone: its stamp may be used again, by nobody who is older. What it wrote before it failed remains.
func TestFailedWriteIsNotDone(t *testing.T) {
	s := startServer(t, false)
	ctx := t.Context()
	const mark, half = "mark", "redis.call('INCR', KEYS[1]); return redis.call('INCR', KEYS[2])"
	run := func(stamp fence.Stamp) error {
		_, err := redisfence.Run(ctx, s.eval, mark, stamp, half, []string{"runs", "counter"})
		return err
	}
	newest := func(want fence.Stamp) {
		t.Helper()
		if seen, err := redisfence.Newest(ctx, s.eval, mark); err != nil || seen != want {
			t.Errorf("the mark is %v (%v), want %v", seen, err, want)
		}
	}
	if err := redisfence.Set(ctx, s.eval, mark, fencetest.Exclusive(4, 1), "counter", "text"); err != nil {
		t.Fatal(err)
	}
	runs := 0
	for _, stamp := range []fence.Stamp{fencetest.Exclusive(5, 1), fencetest.Exclusive(50, 1), fencetest.Exclusive(50, 2)} {
		for range 2 {
			runs++
			if err := run(stamp); err == nil || errors.Is(err, fence.ErrStale) {
				t.Errorf("a write with stamp %v that fails: %v", stamp, err)
			}
			newest(fence.Stamp{Token: stamp.Token})
			fencetest.Refused(t, redisfence.Check(ctx, s.eval, mark, fencetest.Exclusive(4, 2)), fencetest.Exclusive(4, 2), fence.Stamp{Token: stamp.Token})
		}
	}
	if n, err := s.client.Get(ctx, "runs").Int(); err != nil || n != runs {
		t.Errorf("%d attempts have left %d halves (%v)", runs, n, err)
	}
	s.client.Del(ctx, "counter")
	if err := run(fencetest.Exclusive(50, 1)); err != nil {
		t.Errorf("trying again: %v", err)
	}
	newest(fencetest.Exclusive(50, 1))
	var stale *fence.StaleError
	if err := run(fencetest.Exclusive(50, 1)); !errors.As(err, &stale) || !stale.Repeated() {
		t.Errorf("a write that was done: %v", err)
	}
	// The second of a hold fails: the first is still the newest that was done.
	s.client.Set(ctx, "counter", "text", 0)
	if err := run(fencetest.Exclusive(50, 2)); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("a second write that fails: %v", err)
	}
	newest(fencetest.Exclusive(50, 1))
	// A period of shared holders has no sequence to be told by: it has come.
	if err := run(fencetest.Shared(60)); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("a shared write that fails: %v", err)
	}
	fencetest.Refused(t, run(fencetest.Exclusive(60, 1)), fencetest.Exclusive(60, 1), fencetest.Shared(60))
}

// TestKilledServer: with an append-only file that is synced always, a server killed among writes
// comes back with mark and value together, and with every write that it had confirmed.
func TestKilledServer(t *testing.T) {
	s := startServer(t, true)
	token := uint64(0)
	for range 8 {
		r := s.resource("report")
		var writers sync.WaitGroup
		var mu sync.Mutex
		var confirmed fence.Stamp
		enough := make(chan bool)
		count := 0
		for writer := range uint64(4) {
			writers.Go(func() {
				for sequence := uint64(1); ; sequence++ {
					stamp := fencetest.Exclusive(token+1+writer+4*sequence, sequence)
					err := r.Write(t.Context(), stamp, stamp.String())
					if err != nil && !errors.Is(err, fence.ErrStale) {
						return // killed
					}
					mu.Lock()
					if err == nil && stamp.Above(confirmed) {
						confirmed = stamp
					}
					if count++; count == 50 {
						close(enough)
					}
					mu.Unlock()
				}
			})
		}
		<-enough
		program := s.command.Path
		s.kill()
		writers.Wait()
		s.start(t, program)
		content, mark, err := s.resource("report").Read(t.Context())
		if err != nil || content != mark.String() || confirmed.Above(mark) {
			t.Fatalf("after a kill there is %q with mark %v (%v), and %v had been confirmed", content, mark, err, confirmed)
		}
		fencetest.Refused(t, s.resource("report").Write(t.Context(), fencetest.Exclusive(1, 1), "late"), fencetest.Exclusive(1, 1), mark)
		token = mark.Token
	}
}

// TestWithoutAppendOnlyFileMarksAreLost: what the package says that it cannot guarantee. Whoever
// makes this test fail has something better to say there.
func TestWithoutAppendOnlyFileMarksAreLost(t *testing.T) {
	s := startServer(t, false)
	r := s.resource("report")
	if err := r.Write(t.Context(), fencetest.Exclusive(41, 1), "41.1"); err != nil {
		t.Fatal(err)
	}
	program := s.command.Path
	s.kill()
	s.start(t, program)
	if err := s.resource("report").Write(t.Context(), fencetest.Exclusive(33, 2), "33.2"); err != nil {
		t.Errorf("a late write to a server that has forgotten: %v", err)
	}
}
