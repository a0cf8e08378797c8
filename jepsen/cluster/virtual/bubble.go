package virtual

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"testing"
	"testing/synctest"
)

// Bubble runs a function in a bubble of virtual time of its own, and returns when all its goroutines have ended. The error says
// that run failed.
type Bubble func(run func(t testing.TB)) error

var errFailed = errors.New("the run failed in virtual time: see above")

// In gives the bubble of a test.
func In(t *testing.T) Bubble {
	return func(run func(testing.TB)) error { return inside(t, run) }
}

func inside(t *testing.T, run func(testing.TB)) error {
	if !t.Run("virtual", func(t *testing.T) { synctest.Test(t, func(t *testing.T) { run(loud{t}) }) }) {
		return errFailed
	}
	return nil
}

// Command is the bubble of a program that is no test. A bubble can only be had from a test, so one is started on the first
// use, and does not end before the program.
func Command(run func(testing.TB)) error {
	work := bubbles()
	done := make(chan error)
	work <- func(t *testing.T) { done <- inside(t, run) }
	return <-done
}

var bubbles = sync.OnceValue(func() chan<- func(*testing.T) {
	testing.Init()
	_ = flag.CommandLine.Parse(nil) // or Main would take the program's arguments for its own
	work := make(chan func(*testing.T))
	serve := func(t *testing.T) {
		for do := range work {
			do(t)
		}
	}
	all := func(string, string) (bool, error) { return true, nil }
	go testing.Main(all, []testing.InternalTest{{Name: "command", F: serve}}, nil, nil)
	return work
})

// loud prints what fails at once: a test that does not end prints nothing by itself.
type loud struct{ testing.TB }

func (l loud) Errorf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	l.TB.Errorf(format, args...)
}

func (l loud) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	l.TB.Fatalf(format, args...)
}

func (l loud) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	l.TB.Fatal(args...)
}
