//go:build unix

package filefence_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
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

	"github.com/pawl-lock/pawl/client/fence"
	"github.com/pawl-lock/pawl/client/fence/fencetest"
	"github.com/pawl-lock/pawl/client/fence/filefence"
)

func TestMain(m *testing.M) {
	if path := os.Getenv("FILEFENCE_WRITER"); path != "" {
		writer(path)
		return
	}
	os.Exit(m.Run())
}

// body is what a stamp's write writes: large enough that many are killed in the middle of it.
func body(stamp fence.Stamp) []byte { return bytes.Repeat([]byte(stamp.String()+" "), 20_000) }

// writer is a process that writes until it is killed, with tokens above all that it has seen. It
// says what it has done, a stamp a line.
func writer(path string) {
	random := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(time.Now().UnixNano())))
	newest := fence.Stamp{}
	for {
		stamp := fencetest.Exclusive(newest.Token+random.Uint64N(3), newest.Sequence+1)
		if stamp.Token == 0 {
			stamp.Token = 1
		}
		err := filefence.Write(context.Background(), path, stamp, body(stamp))
		var stale *fence.StaleError
		switch {
		case errors.As(err, &stale):
			newest = stale.Newest
		case err != nil:
			fmt.Println("error:", err)
			return
		default:
			newest = stamp
			fmt.Println(stamp)
		}
	}
}

func resource(path string) fencetest.Resource {
	return fencetest.Resource{
		Write: func(ctx context.Context, stamp fence.Stamp, content string) error {
			return filefence.Write(ctx, path, stamp, []byte(content))
		},
		Read: func(context.Context) (string, fence.Stamp, error) {
			content, mark, err := filefence.Read(path)
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			return string(content), mark, err
		},
	}
}

func TestKit(t *testing.T) {
	fencetest.Run(t, 10, func(t *testing.T) fencetest.Resource { return resource(filepath.Join(t.TempDir(), "report")) })
}

// process is a writer and what it has said.
type process struct {
	command *exec.Cmd
	lines   *bufio.Scanner
	reading sync.WaitGroup
	mu      sync.Mutex
	newest  fence.Stamp
	done    []fence.Stamp
	strange string
}

func startWriter(t *testing.T, path string) *process {
	t.Helper()
	p := &process{command: exec.Command(os.Args[0])}
	p.command.Env = append(os.Environ(), "FILEFENCE_WRITER="+path)
	out, err := p.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	p.lines = bufio.NewScanner(out)
	p.reading.Go(func() {
		for p.lines.Scan() {
			stamp, err := fence.Parse(p.lines.Text())
			p.mu.Lock()
			if err != nil {
				p.strange = p.lines.Text() // a line is one write to the pipe: never cut
			} else if p.done = append(p.done, stamp); stamp.Above(p.newest) {
				p.newest = stamp
			}
			p.mu.Unlock()
		}
	})
	return p
}

// kill ends the process with SIGKILL, wherever it is, and waits for all that it had said.
func (p *process) kill() {
	_ = p.command.Process.Kill()
	p.reading.Wait()
	_ = p.command.Wait()
}

// TestKilledWriters kills real processes in the middle of writing, again and again. At every moment
// the file is whole, content and mark belong together, the mark never goes back, and what was
// confirmed is there. (This says nothing about a machine that loses its power: the kernel keeps
// what was written. Syncing before renaming is for that.)
func TestKilledWriters(t *testing.T) {
	duration := 4 * time.Second
	if testing.Short() {
		duration = time.Second
	}
	path := filepath.Join(t.TempDir(), "report")
	var seen fence.Stamp
	look := func() {
		content, mark, err := filefence.Read(path)
		switch {
		case errors.Is(err, fs.ErrNotExist) && seen == fence.Stamp{}:
		case err != nil:
			t.Fatalf("reading: %v", err)
		case seen.Above(mark):
			t.Fatalf("the mark went back from %v to %v", seen, mark)
		case !bytes.Equal(content, body(mark)):
			t.Fatalf("content of %.20q… stands with mark %v", content, mark)
		default:
			seen = mark
		}
	}
	processes := make([]*process, 3)
	kills, middle, writes := 0, 0, 0
	end := func(i int) {
		p := processes[i]
		p.kill()
		kills++
		if _, err := os.Lstat(path + ".new"); err == nil {
			middle++ // half done, by this one or another
		}
		writes += len(p.done)
		if p.strange != "" {
			t.Fatalf("a writer said %s", p.strange)
		}
		look()
		if p.newest.Above(seen) {
			t.Fatalf("%v was confirmed, and the mark is %v", p.newest, seen)
		}
	}
	for began := time.Now(); time.Since(began) < duration; {
		for i := range processes {
			processes[i] = startWriter(t, path)
		}
		for range 3 * len(processes) {
			// Real processes, in real time; looked at all the while.
			for until := time.Now().Add(time.Duration(rand.IntN(12_000)) * time.Microsecond); time.Now().Before(until); {
				look()
			}
			i := rand.IntN(len(processes))
			end(i)
			processes[i] = startWriter(t, path)
		}
		for i := range processes {
			end(i)
		}
	}
	t.Logf("%d writers were killed, %d times while a write was half done, among %d writes; the mark is %v", kills, middle, writes, seen)
	if kills < 10 || middle < 1 || writes < 5 {
		t.Errorf("%d kills, %d in the middle of %d writes say little", kills, middle, writes)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) > 3 {
		t.Errorf("%d files were left (%v): %v", len(left), err, left)
	}
	// And the file still takes writes, and refuses an old holder's.
	fencetest.Refused(t, filefence.Write(t.Context(), path, fencetest.Exclusive(1, 1), nil), fencetest.Exclusive(1, 1), seen)
	if err := filefence.Write(t.Context(), path, fencetest.Exclusive(seen.Token+1, 1), nil); err != nil {
		t.Error(err)
	}
}

// TestSuspendedProcess stops a real process, lets another holder write, and wakes the first: with
// the file's lock in its hands or without, it writes nothing more under its old tokens.
func TestSuspendedProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report")
	rounds := 10
	if testing.Short() {
		rounds = 4
	}
	for round := range rounds {
		p := startWriter(t, path)
		for { // until it writes
			p.mu.Lock()
			writes := len(p.done)
			p.mu.Unlock()
			if writes >= 3 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(rand.IntN(3000)) * time.Microsecond)
		if err := p.command.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		waitStopped(t, p.command.Process.Pid)
		_, mark, err := filefence.Read(path)
		if err != nil {
			t.Fatal(err)
		}
		next := fencetest.Exclusive(mark.Token+1_000_000, 1)
		short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err = filefence.Write(short, path, next, body(next))
		cancel()
		middle := errors.Is(err, context.DeadlineExceeded) // it was stopped in the middle of a write
		if err != nil && !middle {
			t.Fatalf("round %d: writing: %v", round, err)
		}
		if middle {
			p.kill()
			if err := filefence.Write(t.Context(), path, next, body(next)); err != nil {
				t.Fatalf("round %d: after the one in the middle was killed: %v", round, err)
			}
			continue
		}
		if err := p.command.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			p.mu.Lock()
			newest, done := p.newest, slices.Clone(p.done)
			p.mu.Unlock()
			for _, stamp := range done {
				if stamp.Above(mark) && next.Above(stamp) {
					t.Fatalf("round %d: it wrote with %v after it was stopped at %v and %v had written", round, stamp, mark, next)
				}
			}
			if newest.Above(next) {
				break // refused, it has learnt of the newer token: the real holder would have stopped
			}
			if time.Now().After(deadline) {
				t.Fatalf("round %d: it does not write any more", round)
			}
		}
		p.kill()
	}
}

// waitStopped waits until the process is in state T.
func waitStopped(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			t.Skipf("no /proc: %v", err)
		}
		if _, after, found := strings.Cut(string(stat), ") "); found && after[0] == 'T' {
			return
		}
	}
	t.Fatal("it does not stop")
}

// TestDamagedFile: whatever is cut off or changed is noticed by who reads, and overwritten by
// nobody.
func TestDamagedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report")
	if err := filefence.Write(t.Context(), path, fencetest.Exclusive(41, 7), []byte("three\nlines\nhere")); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damage := func(what string, damaged []byte) {
		t.Helper()
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		if content, mark, err := filefence.Read(path); !errors.Is(err, filefence.ErrDamaged) {
			t.Errorf("%s: %q %v %v", what, content, mark, err)
		}
		if err := filefence.Write(t.Context(), path, fencetest.Exclusive(99, 1), nil); !errors.Is(err, filefence.ErrDamaged) {
			t.Errorf("%s: writing: %v", what, err)
		}
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, damaged) {
			t.Errorf("%s: it was overwritten (%v)", what, err)
		}
	}
	for length := range whole {
		damage(fmt.Sprintf("cut to %d bytes", length), whole[:length])
	}
	for bit := 0; bit < 8*len(whole); bit += 3 {
		damaged := bytes.Clone(whole)
		damaged[bit/8] ^= 1 << (bit % 8)
		damage(fmt.Sprintf("with bit %d changed", bit), damaged)
	}
	damage("with more at its end", append(bytes.Clone(whole), '\n'))
	damage("with zeros", make([]byte, 4096))
	damage("with a very long line", bytes.Repeat([]byte("x"), 1<<20))
}

func TestUpdateAndRefusals(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "counter")
	for n := range uint64(5) {
		err := filefence.Update(t.Context(), path, fencetest.Exclusive(5, n+1), func(old []byte) ([]byte, error) {
			if (old == nil) != (n == 0) {
				t.Errorf("write %d found %q", n, old)
			}
			return append(old, 'x'), nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	broken := errors.New("broken")
	if err := filefence.Update(t.Context(), path, fencetest.Exclusive(6, 1), func([]byte) ([]byte, error) { return nil, broken }); !errors.Is(err, broken) {
		t.Errorf("a change that fails: %v", err)
	}
	if err := filefence.Write(t.Context(), path, fencetest.Exclusive(6, 1), make([]byte, filefence.MaxContent+1)); !errors.Is(err, filefence.ErrTooLarge) {
		t.Errorf("too much: %v", err)
	}
	content, mark, err := filefence.Read(path)
	if string(content) != "xxxxx" || mark != fencetest.Exclusive(5, 5) || err != nil {
		t.Errorf("%q %v %v", content, mark, err)
	}
	// Its mode is kept, what others left beside it is in nobody's way.
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, path+".new"); err != nil {
		t.Fatal(err)
	}
	if err := filefence.Write(t.Context(), path, fencetest.Exclusive(5, 6), []byte("y")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != 0o640 {
		t.Errorf("its mode is now %v (%v)", info.Mode(), err)
	}
	// Another name of the file would have another lock.
	if err := os.Symlink(path, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := filefence.Write(t.Context(), filepath.Join(dir, "link"), fencetest.Exclusive(9, 1), nil); err == nil {
		t.Error("a symbolic link was written to")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := filefence.Write(ended, path, fencetest.Exclusive(9, 1), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}
