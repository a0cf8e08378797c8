// Command pawl-jepsen looks for what goes wrong with Pawl under faults.
package main

import (
	"context"
	"os"
)

func main() {
	ctx, stop := untilStopped(context.Background())
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
