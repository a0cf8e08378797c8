package main

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// program is one run of the command: where it reads and writes, and what it was told for every command.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	getenv         func(string) string
	exit           func(code int) // ends the process at once

	endpoints []string
	json      bool
}

// run executes the command line and gives the exit code (see exits). ctx ends a server as the first signal does, and
// cuts everything else off.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	p := &program{stdin: stdin, stdout: stdout, stderr: stderr, getenv: os.Getenv, exit: os.Exit}
	root := p.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	command, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	// What did not come out of a command's own work is a command line that cobra could not understand.
	var failed *failure
	if !errors.As(err, &failed) {
		err = usageError{err}
	}
	return p.report(command.CommandPath(), err)
}

// failure marks an error that a command's work ended with.
type failure struct{ error }

func (f *failure) Unwrap() error { return f.error }

// action makes cobra's RunE of what a command does.
func action(work func(ctx context.Context, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		if err := work(cmd.Context(), args); err != nil {
			return &failure{err}
		}
		return nil
	}
}

const about = `Pawl is a lock server whose tokens only go up: three or five nodes replicate every lock
through Raft, and each grant carries a fencing token that storage can check.

Try it:   pawl dev            a three-node cluster in this process
          pawl acquire NAME   take a lock`

func (p *program) root() *cobra.Command {
	root := &cobra.Command{
		Use:           "pawl",
		Short:         "A fenced lock server on Raft",
		Long:          about + "\n\n" + exitHelp(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddGroup(
		&cobra.Group{ID: "nodes", Title: "Running nodes:"},
		&cobra.Group{ID: "locks", Title: "Locks and sessions:"},
		&cobra.Group{ID: "cluster", Title: "The cluster:"},
	)
	flags := root.PersistentFlags()
	flags.StringSliceVar(&p.endpoints, "endpoints", nil, "API URLs of the nodes, comma separated (PAWL_ENDPOINTS; default "+defaultEndpoint+")")
	flags.BoolVar(&p.json, "json", false, "print the answer as JSON, as it came over the wire")
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("nodes", p.serverCommand(), p.devCommand(), p.forgetPromiseCommand())
	add("locks", p.systemCommands()...)
	add("locks", p.acquireCommand(), p.releaseCommand(), p.renewCommand(), p.convertCommand(), p.checkCommand(), p.forceReleaseCommand(),
		p.locksCommand(), p.lockCommand(), p.whyCommand(), p.sessionsCommand(), p.eventsCommand())
	add("cluster", p.clusterCommand(), p.healthCommand(), p.transferCommand(), p.raiseCommand())
	root.AddCommand(p.versionCommand())
	return root
}

// terminal reports whether w is a terminal, where people read.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// colour reports whether w may be coloured: a terminal whose user has not said NO_COLOR.
func (p *program) colour(w io.Writer) bool {
	return terminal(w) && p.getenv("NO_COLOR") == "" && p.getenv("TERM") != "dumb"
}
