package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"

	"github.com/pawl-lock/pawl/client"
	"github.com/pawl-lock/pawl/transport"
)

// Exit codes. Programs depend on them: they never change.
const (
	exitOK = iota
	exitFailure
	exitUsage
	exitNotGranted
	exitLost
	exitNoCluster
	exitUnknown
)

// exit is one exit code with the error codes of the API that it stands for.
type exit struct {
	code    int
	meaning string
	errors  []transport.Code
}

// exits is the one table of exit codes; the help and docs/cli.md are made from it. The first row that an error matches
// counts, so "unknown" stands before what the last attempt of an unknown call may have said.
func exits() []exit {
	return []exit{
		{exitOK, "done", nil},
		{exitUnknown, "the outcome is unknown: it may have happened", []transport.Code{transport.ErrUnknownOutcome}},
		{exitNotGranted, "not granted: held by others, or would be a deadlock",
			[]transport.Code{transport.ErrHeld, transport.ErrDelayed, transport.ErrDeadlock, transport.ErrModeConflict}},
		{exitLost, "lost, not held, or the session is gone",
			[]transport.Code{transport.ErrNotHeld, transport.ErrSessionGone, transport.ErrStaleToken, transport.ErrFinished}},
		{exitUsage, "the command line or the request is wrong",
			[]transport.Code{transport.ErrInvalid, transport.ErrTooLarge, transport.ErrUnsupportedMedia, transport.ErrRequestMismatch}},
		{exitNoCluster, "no node could be reached, or none leads",
			[]transport.Code{transport.ErrNoLeader, transport.ErrOverloaded, transport.ErrShuttingDown}},
		{exitFailure, "any other failure", nil},
	}
}

func exitHelp() string {
	meanings := make([]string, len(exits()))
	for _, row := range exits() {
		meanings[row.code] = fmt.Sprintf("  %d  %s", row.code, row.meaning)
	}
	return "Exit codes:\n" + strings.Join(meanings, "\n")
}

// usageError is a command line, variable or file that cannot be meant.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

// exitCode gives the exit code of an error.
func exitCode(err error) int {
	var ran runFailure
	var ended commandEnded
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &ran):
		return ran.code
	case errors.As(err, &ended):
		return int(ended)
	case errors.As(err, new(usageError)):
		return exitUsage
	}
	// A code that this version does not know, or a bug of the node: the answer itself says whether it may have happened.
	var problem *transport.Error
	if errors.As(err, &problem) && problem.Applied == transport.AppliedUnknown {
		return exitUnknown
	}
	for _, row := range exits() {
		for _, code := range row.errors {
			if errors.Is(err, code) {
				return row.code
			}
		}
	}
	if errors.Is(err, client.ErrUnavailable) {
		return exitNoCluster
	}
	return exitFailure
}

// report tells what went wrong with a command: one sentence with the code on stderr and, for programs, the answer itself
// on stdout. It gives the exit code.
func (p *program) report(command string, err error) int {
	if errors.As(err, new(commandEnded)) {
		return exitCode(err) // the command has said what there is to say
	}
	word := "pawl:"
	if p.colour(p.stderr) {
		word = "\x1b[31m" + word + "\x1b[0m"
	}
	hint := ""
	if errors.As(err, new(usageError)) {
		hint = " (see " + command + " --help)"
	}
	fmt.Fprintln(p.stderr, word, sentence(err)+hint)
	var problem *transport.Error
	if errors.As(err, &problem) && p.json {
		// A failed write leaves nobody to tell.
		_ = printJSON(p.stdout, problem)
	}
	return exitCode(err)
}

// sentence says an error in one line.
func sentence(err error) string {
	var problem *transport.Error
	switch {
	case errors.Is(err, transport.ErrUnknownOutcome):
		return "the outcome is unknown, it may have happened (unknown_outcome)"
	case errors.Is(err, client.ErrUnavailable):
		if errors.As(err, &problem) {
			return fmt.Sprintf("no node could serve the request: %s (%s)", oneLine(problem.Detail), string(problem.Code))
		}
		// Of a connection that failed, what failed where; how often it was tried interests nobody.
		var connection *net.OpError
		if errors.As(err, &connection) {
			err = connection
		}
		return "no node could be reached: " + oneLine(err.Error())
	case errors.As(err, &problem):
		return oneLine(problemText(problem)) + " (" + string(problem.Code) + ")"
	case errors.Is(err, context.Canceled):
		return "interrupted"
	}
	return oneLine(err.Error())
}

// problemText is what a refusal says to people, with who stands in the way.
func problemText(problem *transport.Error) string {
	if text := problem.Explain(); text != "" {
		return text
	}
	return problem.Title
}

// oneLine keeps an error on its line: several joined ones are told one after the other.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}

// printJSON writes a message as it was on the wire.
func printJSON(w io.Writer, message any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false) // names are shown as they are
	return encoder.Encode(message)
}
