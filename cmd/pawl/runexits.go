package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/pawl-lock/pawl/client"
)

// Exit codes of pawl run: all others are its command's. They stand where timeout and env have theirs, out of the way of what
// commands use. They never change.
const (
	exitRunNotGranted  = 122
	exitRunLost        = 123
	exitRunUnavailable = 124
	exitRunFailed      = 125
	exitRunDenied      = 126
	exitRunNotFound    = 127
)

// runExits is the one table of these codes; the help and docs/cli.md are made from it.
var runExits = []struct {
	code    int
	meaning string
}{
	{exitRunNotGranted, "the lock was not granted: held by others, or would be a deadlock; the command did not run"},
	{exitRunLost, "the lock was lost, or could not be renewed: the command was ended, or had just ended"},
	{exitRunUnavailable, "no node could be reached, or none leads; the command did not run"},
	{exitRunFailed, "the command line is wrong, or pawl run failed; the command did not run"},
	{exitRunDenied, "the command is there and cannot be run"},
	{exitRunNotFound, "the command was not found"},
}

func runExitHelp() string {
	var lines strings.Builder
	for _, row := range runExits {
		fmt.Fprintf(&lines, "  %d  %s\n", row.code, row.meaning)
	}
	return "Exit codes: that of the command (128 + N when signal N ended it), or\n" + lines.String()
}

// runFailure is why pawl run did not run its command to its end.
type runFailure struct {
	code int
	error
}

func (r runFailure) Unwrap() error { return r.error }

// commandEnded is the exit code of a command that was run to its end: nothing is to be said about it.
type commandEnded int

// Error implements error.
func (c commandEnded) Error() string { return fmt.Sprintf("the command ended with code %d", int(c)) }

// runCode gives the exit code for an acquire that failed.
func runCode(err error) int {
	switch exitCode(err) {
	case exitNoCluster, exitUnknown:
		return exitRunUnavailable
	case exitUsage:
		return exitRunFailed
	}
	if errors.Is(err, client.ErrNotAcquired) {
		return exitRunNotGranted
	}
	return exitRunFailed
}
