package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/pawl-lock/pawl/server"
)

func (p *program) serverCommand() *cobra.Command {
	c := &configuration{}
	list := settings(c)
	var file string
	var printOnly bool
	command := &cobra.Command{
		Use:   "server",
		Short: "Run one node of a cluster",
		Long: `Run one node of a cluster until it is told to stop (SIGTERM or SIGINT; a second one ends it at once).

Each setting can be given as a flag, as a variable, or in a YAML file of lines like "name: n1". A flag counts
more than a variable, a variable more than the file. A variable that is empty counts as not set.`,
		Example: `  pawl server --name n1 --data /var/lib/pawl --peers n1=10.0.0.1:7800,n2=10.0.0.2:7800,n3=10.0.0.3:7800 \
              --api 10.0.0.1:7700 --insecure`,
		Args: cobra.NoArgs,
	}
	flags := command.Flags()
	flags.SortFlags = false
	addFlags(flags, list)
	flags.StringVar(&file, "config", "", "read settings from this YAML file (PAWL_CONFIG)")
	flags.BoolVar(&printOnly, "print-config", false, "print every setting with where it came from, and exit")
	command.RunE = action(func(ctx context.Context, _ []string) error {
		origins, err := p.configureFrom(file, list, command)
		if err != nil {
			return usageError{err}
		}
		if printOnly {
			return printConfiguration(p.stdout, list, origins)
		}
		return p.serve(ctx, c)
	})
	return command
}

// configureFrom fills the settings from the flags of the command, the environment and the file, if there is one.
func (p *program) configureFrom(file string, list []setting, command *cobra.Command) (map[string]string, error) {
	if file == "" {
		file = p.getenv("PAWL_CONFIG")
	}
	var content []byte
	if file != "" {
		var err error
		if content, err = os.ReadFile(file); err != nil {
			return nil, fmt.Errorf("reading the configuration: %w", err)
		}
	}
	return configure(list, command.Flags(), p.getenv, file, content)
}

// serve runs the node that c describes.
func (p *program) serve(ctx context.Context, c *configuration) error {
	c.Logger = p.logger(c)
	c.Version = versionText()
	c.Fatal = p.failStop
	if err := c.Validate(); err != nil {
		return usageError{err}
	}
	stop := p.watchSignals(ctx)
	node, err := server.Start(c.Config)
	if err != nil {
		return fmt.Errorf("starting node %s: %w", c.Name, err)
	}
	c.Logger.Info("serving", "node", c.Name, "api", node.APIAddress(), "version", c.Version)
	return p.untilStopped(stop, c.Logger, node)
}
