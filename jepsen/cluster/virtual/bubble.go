package virtual

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
)

// Bubble runs a function in a bubble of virtual time of its own, and returns when all its goroutines have ended. The error says
// that run failed, or is a *LeftError.
type Bubble func(run func(t testing.TB)) error

// LeftError says that a run has come to its end, and that goroutines of it stand where nothing will ever wake them.
type LeftError struct {
	Goroutines []string // their stacks
}

func (e *LeftError) Error() string {
	return fmt.Sprintf("goroutines that nothing will wake: %s", strings.Join(e.Goroutines, "\n"))
}

// Ours gives those that are not the Raft library's hand-over of leadership: that can wait for ever for a follower that is no
// longer sent to (raft#696). The node takes care of what follows (replica/transfer.go), and a process ends.
func (e *LeftError) Ours() (ours []string) {
	for _, stack := range e.Goroutines {
		if !strings.Contains(stack, "raft.(*Raft).leadershipTransfer(") && !strings.Contains(stack, "raft.(*Raft).leaderLoop.func") {
			ours = append(ours, stack)
		}
	}
	return ours
}

var errFailed = errors.New("the run failed in virtual time: see above")

// In gives the bubble of a test.
func In(t *testing.T) Bubble {
	return func(run func(testing.TB)) error { return inside(t, run) }
}

func inside(t *testing.T, run func(testing.TB)) error {
	var left *LeftError
	ended := t.Run("virtual", func(t *testing.T) {
		bubble := ""
		defer func() {
			if caught := recover(); caught != nil {
				if left = whoIsLeft(bubble); left == nil || !strings.Contains(fmt.Sprint(caught), "blocked goroutines remain") {
					panic(caught)
				}
			}
		}()
		synctest.Test(t, func(t *testing.T) {
			bubble = inBubble.FindString(string(debug.Stack()))
			run(loud{t})
		})
	})
	switch {
	case left != nil:
		return left
	case !ended:
		return errFailed
	}
	return nil
}

// inBubble is how a stack names the bubble of its goroutine.
var inBubble = regexp.MustCompile(`synctest bubble \d+`)

// whoIsLeft gives the goroutines of a bubble whose main one has ended, or nil.
func whoIsLeft(bubble string) *LeftError {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	var left LeftError
	for _, stack := range strings.Split(string(stacks), "\n\n") {
		if head, _, _ := strings.Cut(stack, "\n"); bubble != "" && inBubble.FindString(head) == bubble {
			left.Goroutines = append(left.Goroutines, stack)
		}
	}
	if left.Goroutines == nil {
		return nil
	}
	return &left
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
