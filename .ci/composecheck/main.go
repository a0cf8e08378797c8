// Command composecheck loads compose files as Docker Compose v2 does, and says whether it would accept them. It is a
// module of its own so that Pawl's does not depend on what it needs.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
)

func main() {
	if err := load(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "composecheck:", err)
		os.Exit(1)
	}
}

func load(files []string) error {
	options, err := cli.NewProjectOptions(files, cli.WithName("pawl"), cli.WithOsEnv, cli.WithResolvedPaths(true))
	if err != nil {
		return fmt.Errorf("preparing: %w", err)
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return fmt.Errorf("loading: %w", err)
	}
	for name, service := range project.Services {
		// A shared image name makes compose 1.29.2 pull and v2 race.
		if service.Build == nil || service.Image != "" {
			return fmt.Errorf("service %s must be built and have no image name", name)
		}
	}
	fmt.Println("compose v2 accepts", files, "with", len(project.Services), "services")
	return nil
}
