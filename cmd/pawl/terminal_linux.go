package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// lentTerminal is a terminal that the command of pawl run uses: its process group is the terminal's own, so that it can read
// from it and gets its Ctrl-C. The zero value is no terminal.
type lentTerminal struct {
	file  *os.File
	group int // the command's
}

// lendTerminal lends the terminal when this process has it, and both reads from and writes to it: in a pipeline somebody
// else may want it.
func (p *program) lendTerminal(group int) *lentTerminal {
	in, isFile := p.stdin.(*os.File)
	if !isFile || !terminal(p.stdout) || foreground(in) != syscall.Getpgrp() {
		return &lentTerminal{}
	}
	// Taking the terminal back is something that a background group is stopped for.
	signal.Ignore(syscall.SIGTTOU)
	t := &lentTerminal{in, group}
	t.lend()
	return t
}

// foreground gives the process group that has the terminal, 0 when it is none.
func foreground(file *os.File) int {
	group, err := unix.IoctlGetInt(int(file.Fd()), unix.TIOCGPGRP)
	if err != nil {
		return 0
	}
	return group
}

// lend gives the terminal to the command, unless somebody else has it, and has it go on if it had stopped for want of it. It
// says whether the command has it.
func (t *lentTerminal) lend() bool {
	if t.file == nil {
		return false
	}
	switch foreground(t.file) {
	case syscall.Getpgrp():
		_ = unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, t.group)
	case t.group:
	default:
		return false
	}
	_ = syscall.Kill(-t.group, syscall.SIGCONT)
	return true
}

// takeBack gives the terminal to this process again, for the shell that waits for it.
func (t *lentTerminal) takeBack() {
	if t.file != nil && foreground(t.file) == t.group {
		_ = unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, syscall.Getpgrp())
	}
}

// suspend stops this process like its command, as Ctrl-Z wants it: the shell sees only this one. Nobody renews the lock
// then, and the guard ends the command before the lease does.
func (t *lentTerminal) suspend() {
	if t.file == nil || foreground(t.file) != t.group {
		return
	}
	t.takeBack()
	_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
}
