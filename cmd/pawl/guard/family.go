//go:build linux

package guard

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// member is a process that descends from this one. A process group is not enough to end a command by: timeout(1), the
// job control of shells and others make groups of their own.
type member struct {
	pid, parent, group, session int
}

// scans bounds how often the list of processes is read for one that makes sense.
const scans = 10

// family lists the processes that descend from this one and have not ended. This process adopts what its descendants leave
// behind (adopt), so nothing of theirs can get away but by a namespace of its own.
func family() (all []member) {
	for range scans {
		whole := false
		if all, whole = scan(); whole {
			break
		}
	}
	return all
}

// scan reads the list of processes once. Their parents may end meanwhile: whole says that none was seen whose parent was
// not, so that nobody was missed.
func scan() (all []member, whole bool) {
	children := map[int][]member{}
	alive := map[int]bool{0: true}                 // the parent of what the kernel has started
	paths, _ := filepath.Glob("/proc/[0-9]*/stat") // only a bad pattern is an error
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if m, lives := parseStat(content); lives {
			alive[m.pid] = true
			children[m.parent] = append(children[m.parent], m)
		}
	}
	whole = true
	for parent := range children {
		whole = whole && alive[parent]
	}
	for todo := []int{os.Getpid()}; len(todo) > 0; todo = todo[1:] {
		for _, m := range children[todo[0]] {
			all = append(all, m)
			todo = append(todo, m.pid)
		}
		delete(children, todo[0]) // no circles, whatever was read
	}
	return all, whole
}

// parseStat reads a process's stat file: pid (name) state parent group session …; the name may have anything in it.
func parseStat(content []byte) (m member, alive bool) {
	open, end := bytes.IndexByte(content, '('), bytes.LastIndexByte(content, ')')
	if open < 0 || end < 0 {
		return m, false
	}
	fields := bytes.Fields(content[end+1:])
	if len(fields) < 4 {
		return m, false
	}
	number := func(b []byte) int {
		n, _ := strconv.Atoi(string(bytes.TrimSpace(b)))
		return n
	}
	m = member{pid: number(content[:open]), parent: number(fields[1]), group: number(fields[2]), session: number(fields[3])}
	state := fields[0][0]
	return m, state != 'Z' && state != 'X'
}

// signalAll sends a signal to each, and gives the first error but that one has ended.
func signalAll(members []member, s syscall.Signal) (failed error) {
	for _, m := range members {
		if err := syscall.Kill(m.pid, s); err != nil && !errors.Is(err, syscall.ESRCH) && failed == nil {
			failed = fmt.Errorf("process %d of the command cannot be ended: %w", m.pid, err)
		}
	}
	return failed
}
