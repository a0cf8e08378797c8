//go:build !linux

package main

import "github.com/spf13/cobra"

// systemCommands are those that not every system can run. pawl run needs a clock that counts suspended time and is the same
// in two processes.
func (p *program) systemCommands() []*cobra.Command { return nil }
