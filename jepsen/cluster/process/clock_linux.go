package process

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pawl-lock/pawl/jepsen/cluster"
)

// A program asks for the time without a system call, in code that the kernel has mapped into it (vdso(7)), so neither a library
// nor a tracer can lie to it. But what is written into the mapping is written for this process alone. So the entry of
// clock_gettime gets a jump to a routine at the end of the mapping, which makes the system call and, when it was asked for the
// wall clock, adds a number of seconds. All other clocks tell what they told. Go programs ask in no other way.

// routine, for amd64. What follows it are its seconds.
var routine = []byte{
	0xb8, 228, 0, 0, 0, // mov eax, 228: clock_gettime
	0x0f, 0x05, // syscall
	0x85, 0xff, // test edi, edi: CLOCK_REALTIME is 0
	0x75, 0x0a, // jne to ret
	0x48, 0x8b, 0x15, 4, 0, 0, 0, // mov rdx, [rip+4]
	0x48, 0x01, 0x16, // add [rsi], rdx: timespec.tv_sec
	0xc3, // ret
}

const (
	jump      = 0xe9 // jmp with a distance of 32 bits
	jumpSize  = 5
	routineAt = 64 // from the end of the mapping, in bytes that are 0
	stopWait  = 2 * time.Second
)

// setWallClock has the wall clock of a process differ from the machine's by a time, in whole seconds, until it ends. The process
// stands still for some milliseconds when it is set for the first time.
func setWallClock(pid int, by time.Duration) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("setting the clock of process %d: %w", pid, err)
		}
	}()
	if runtime.GOARCH != "amd64" {
		if by == 0 {
			return nil
		}
		return fmt.Errorf("on %s: %w", runtime.GOARCH, cluster.ErrUnsupported)
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close()
	start, image, err := vdso(pid, memory)
	if err != nil {
		return err
	}
	entry, err := clockEntry(image)
	if err != nil {
		return err
	}
	at := len(image) - routineAt
	leap := binary.LittleEndian.AppendUint32([]byte{jump}, uint32(at-entry-jumpSize))
	seconds := binary.LittleEndian.AppendUint64(nil, uint64(int64(by/time.Second)))
	if bytes.HasPrefix(image[entry:], leap) { // it was set before
		_, err = memory.WriteAt(seconds, start+int64(at+len(routine)))
		return err
	}
	if by == 0 {
		return nil
	}
	if rest := image[at:]; !bytes.HasPrefix(rest, routine) && len(bytes.Trim(rest, "\x00")) > 0 {
		return errors.New("there is no room at the end of its vdso")
	}
	if _, err := memory.WriteAt(append(bytes.Clone(routine), seconds...), start+int64(at)); err != nil {
		return err
	}
	return standing(pid, uint64(start)+uint64(entry), func() error {
		_, err := memory.WriteAt(leap, start+int64(entry))
		return err
	})
}

// vdso reads where it is in a process, and what is there.
func vdso(pid int, memory *os.File) (start int64, image []byte, err error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, nil, err
	}
	for line := range strings.Lines(string(maps)) {
		if !strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			continue
		}
		var end int64
		if _, err := fmt.Sscanf(line, "%x-%x", &start, &end); err != nil {
			return 0, nil, err
		}
		if end-start < 2*routineAt || end-start > 1<<20 {
			return 0, nil, fmt.Errorf("a vdso of %d bytes", end-start)
		}
		image = make([]byte, end-start)
		_, err := memory.ReadAt(image, start)
		return start, image, err
	}
	return 0, nil, errors.New("it has no vdso")
}

// clockEntry is where clock_gettime begins.
func clockEntry(image []byte) (int, error) {
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return 0, fmt.Errorf("reading the vdso: %w", err)
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return 0, fmt.Errorf("reading the vdso: %w", err)
	}
	for _, s := range symbols {
		if s.Name == "__vdso_clock_gettime" && s.Value < uint64(len(image)-routineAt) {
			return int(s.Value), nil
		}
	}
	return 0, errors.New("its vdso has no clock_gettime")
}

// standing does something while a process stands still, with no thread inside the few bytes at an address.
func standing(pid int, address uint64, do func() error) error {
	if states, _ := threads(pid); strings.Trim(states, "T") != "" { // else whoever stopped it lets it go on
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return err
		}
		defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }()
	}
	counters, err := stands(pid)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(counters, func(c uint64) bool { return c > address && c < address+jumpSize }) {
		return errors.New("a thread stands at the very place")
	}
	return do()
}

// stands waits until all threads of a process have noticed that it is stopped, and says where each is.
func stands(pid int) (counters []uint64, err error) {
	for end := time.Now().Add(stopWait); ; time.Sleep(time.Millisecond) {
		states, counters := threads(pid)
		if states != "" && strings.Trim(states, "Tt") == "" { // t: by the tracer that makes faults of disks
			return counters, nil
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("process %d did not stop within %v: its threads are %q", pid, stopWait, states)
		}
	}
}

// threads gives the state of each thread, and where it is.
func threads(pid int) (states string, counters []uint64) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range tasks {
		stat, err := os.ReadFile(filepath.Join(task, "stat"))
		if err != nil {
			continue // it has ended
		}
		if i := bytes.LastIndexByte(stat, ')'); i >= 0 && i+2 < len(stat) {
			states += string(stat[i+2])
		}
		// "running", or the call with its arguments, the stack pointer and the program counter.
		where, _ := os.ReadFile(filepath.Join(task, "syscall"))
		if fields := strings.Fields(string(where)); len(fields) > 1 {
			if counter, err := strconv.ParseUint(strings.TrimPrefix(fields[len(fields)-1], "0x"), 16, 64); err == nil {
				counters = append(counters, counter)
			}
		}
	}
	return states, counters
}

// walls are the wall clocks of hosts: how far each is from the machine's. It is safe for concurrent use.
type walls struct {
	mu sync.Mutex // held while a clock is set, too, so the last one to set it sets the last value
	by map[int]time.Duration
}

// step sets the clock of a host by a time, and of its process if that runs.
func (w *walls) step(host int, by time.Duration, pid func() int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by == nil {
		w.by = map[int]time.Duration{}
	}
	w.by[host] += by
	return w.setLocked(host, pid)
}

// show has the process of a host see the host's clock, which may have been set before there was one.
func (w *walls) show(host int, pid func() int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.setLocked(host, pid)
}

// setLocked tries twice: a thread may have stood at the wrong place. A process that has ended needs no clock.
func (w *walls) setLocked(host int, pid func() int) (err error) {
	for range 2 {
		p := pid()
		if p <= 0 {
			return nil
		}
		if err = setWallClock(p, w.by[host]); err == nil || errors.Is(err, cluster.ErrUnsupported) {
			return err
		}
	}
	if pid() <= 0 {
		return nil
	}
	return err
}
