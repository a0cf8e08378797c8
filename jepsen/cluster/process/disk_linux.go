package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pawl-lock/pawl/jepsen/cluster"
)

const (
	attachLimit = 10 * time.Second // for strace to hold of all threads
	detachLimit = 2 * time.Second  // for strace to let go of them, and for who was about to end to do so
	forever     = 12 * time.Hour   // of an fsync that hangs
)

// Disk implements cluster.Cluster. strace has every fsync of the node wait or fail; a full disk is filled up.
func (c *Cluster) Disk(node int, d cluster.Disk, delay time.Duration) error {
	n := c.nodes[node]
	switch d {
	case cluster.DiskFine:
		n.untrace()
		return n.empty()
	case cluster.DiskFull:
		return n.fill()
	}
	if n.tracer.runs() {
		return errors.New("the disk has a fault already")
	}
	if !n.process.runs() {
		return errNotRunning
	}
	var err error
	n.tracer, err = trace(n.host.start, n.process.pid(), n.process.runs, d, delay, n.log)
	return err
}

// untrace lets the node go, and waits for its end if it has decided on that: what hangs goes on.
func (n *node) untrace() {
	if !n.tracer.runs() {
		return
	}
	release(n.tracer)
	select {
	case <-n.process.done:
	case <-time.After(detachLimit):
	}
}

// trace attaches strace to a process, and returns when it has hold of all its threads.
func trace(start func(*exec.Cmd) error, pid int, runs func() bool, d cluster.Disk, delay time.Duration, log io.Writer) (*child, error) {
	var inject string
	switch d {
	case cluster.DiskSlow:
		inject = fmt.Sprintf("delay_enter=%d", delay.Microseconds())
	case cluster.DiskHangs:
		inject = fmt.Sprintf("delay_enter=%d", forever.Microseconds())
	case cluster.DiskFails:
		inject = "error=EIO"
	default:
		return nil, cluster.ErrUnsupported
	}
	program, err := exec.LookPath("strace")
	if err != nil {
		return nil, fmt.Errorf("%w: %w", cluster.ErrUnsupported, err)
	}
	command := exec.Command(program, "-f", "-qq", "-o", "/dev/null", "-p", fmt.Sprint(pid),
		"-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:"+inject)
	command.Stderr = log
	tracer, err := spawn(start, command, io.Discard)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(attachLimit); runs(); time.Sleep(5 * time.Millisecond) {
		if traced(pid) {
			return tracer, nil
		}
		if !tracer.runs() || time.Now().After(end) {
			return tracer, errors.New("strace does not attach to the node")
		}
	}
	return tracer, nil // a failing disk has ended it
}

// traced says whether every thread of a process is.
func traced(pid int) bool {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(tasks) == 0 {
		return false
	}
	for _, task := range tasks {
		status, err := os.ReadFile(task)
		if err == nil && bytes.Contains(status, []byte("TracerPid:\t0\n")) {
			return false
		}
	}
	return true
}

// release ends a tracer, if there is one. A process that has given up a hanging disk cannot end while strace has it, and
// strace does not always let go of it by itself: then it is forced to. Such a process ends within the next moments.
func release(tracer *child) {
	if tracer.runs() {
		_ = tracer.stop(detachLimit) // it has ended in any case
	}
}

func (n *node) filler() string { return filepath.Join(n.disk, "filler") }

// fill leaves no room on the node's disk.
func (n *node) fill() error {
	f, err := os.OpenFile(n.filler(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 1<<20)
	for len(block) > 0 {
		if _, err = f.Write(block); err != nil {
			if !errors.Is(err, unix.ENOSPC) {
				return err
			}
			block = block[:len(block)/2]
		}
	}
	return nil
}

func (n *node) empty() error {
	if err := os.Remove(n.filler()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Wipe implements cluster.Cluster.
func (c *Cluster) Wipe(node int) error {
	n := c.nodes[node]
	if n.process.runs() {
		return errRunning
	}
	return os.RemoveAll(n.data())
}

// Damage implements cluster.Cluster: it flips bits in, cuts the end off, or overwrites a page of one of the node's files.
func (c *Cluster) Damage(node int, seed uint64) error {
	n := c.nodes[node]
	if n.process.runs() {
		return errRunning
	}
	return damage(n.data(), seed, n.log)
}

// damage changes one of the files in a directory, and says how.
func damage(dir string, seed uint64, log io.Writer) error {
	var files []string
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if info, infoErr := entry.Info(); err == nil && infoErr == nil && info.Mode().IsRegular() && info.Size() > 0 {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		return errors.Join(err, fmt.Errorf("%s has no files to damage", dir))
	}
	random := rand.New(rand.NewPCG(seed, 3))
	path := files[random.IntN(len(files))]
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var what string
	switch random.IntN(3) {
	case 0:
		data = data[:random.IntN(len(data))]
		what = fmt.Sprintf("cut off at %d", len(data))
	case 1:
		var places []string
		for range 1 + random.IntN(8) {
			at, bit := random.IntN(len(data)), random.IntN(8)
			data[at] ^= 1 << bit
			places = append(places, fmt.Sprintf("%d.%d", at, bit))
		}
		what = "bits flipped at " + strings.Join(places, " ")
	default:
		page := random.IntN((len(data) + 4095) / 4096)
		end := min(len(data), (page+1)*4096)
		for i := page * 4096; i < end; i++ {
			data[i] = byte(random.Uint32())
		}
		what = fmt.Sprintf("page %d overwritten", page)
	}
	fmt.Fprintf(log, "--- harness: %s of %d bytes: %s\n", filepath.Base(path), len(data), what)
	return os.WriteFile(path, data, 0o600)
}

// mount makes the node's disk.
func (n *node) mount(size int64) error {
	if err := os.MkdirAll(n.disk, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", n.disk, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("size=%d,mode=700", size)); err != nil {
		return fmt.Errorf("making the disk of %s: %w", n.name, err)
	}
	return nil
}

func (n *node) unmount() { _ = unix.Unmount(n.disk, syscall.MNT_DETACH) }
