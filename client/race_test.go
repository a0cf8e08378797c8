//go:build race

package client

import (
	"os"
	"runtime"
	"testing"
)

// TestMain keeps to one processor under the race detector. In virtual time the
// runtime runs a bubble's timers under one context of the detector, which two
// threads may enter at once when many channel timers are due: the detector then
// crashes the process (go.dev/issue/78156 looks like the same). Races are still
// found: the detector follows the order of events, not the clock.
func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(1)
	os.Exit(m.Run())
}
