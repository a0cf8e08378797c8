package virtual

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
)

// testing.Init registers the flags that RunTests looks at, which a program that is no test binary does not have.
var initTesting = sync.OnceFunc(testing.Init)

var errFailed = errors.New("the run failed; what it said was printed")

// Run calls run in a bubble of virtual time of its own, and returns when all goroutines of the bubble have ended. It works in
// any program. What run says to t is printed; when that is an error, or a goroutine is left behind, Run returns one.
func Run(run func(t *testing.T)) error {
	if !testing.Testing() {
		initTesting()
	}
	all := func(string, string) (bool, error) { return true, nil }
	if !testing.RunTests(all, []testing.InternalTest{{Name: "virtual", F: func(t *testing.T) { synctest.Test(t, run) }}}) {
		return errFailed
	}
	return nil
}
