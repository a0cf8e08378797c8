//go:build !linux

package client

import "time"

// processStart is where the monotonic clock is counted from.
var processStart = time.Now()

// bootTime reads Go's monotonic clock. Where that stands still while the machine
// is suspended, a lock lost meanwhile is noticed only with the next renewal.
func bootTime() time.Duration { return time.Since(processStart) }
