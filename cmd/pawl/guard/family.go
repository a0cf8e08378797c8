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

// family lists the processes that descend from this one and have not ended. This process adopts what its descendants leave
// behind (adopt), so nothing of theirs can get away but by a namespace of its own.
func family() []member {
	self := os.Getpid()
	children := map[int][]member{}
	paths, _ := filepath.Glob("/proc/[0-9]*/stat") // only a bad pattern is an error
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		if m, alive := parseStat(content); alive {
			children[m.parent] = append(children[m.parent], m)
		} else if m.pid != 0 {
			// The children of one that has ended are being given to us.
			children[self] = append(children[self], children[m.pid]...)
		}
	}
	var all []member
	for todo := []int{self}; len(todo) > 0; todo = todo[1:] {
		for _, m := range children[todo[0]] {
			all = append(all, m)
			todo = append(todo, m.pid)
		}
		delete(children, todo[0]) // no circles, whatever was read
	}
	return all
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
