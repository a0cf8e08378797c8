package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/pawl-lock/pawl/server"
)

func (p *program) forgetPromiseCommand() *cobra.Command {
	var data, name string
	command := &cobra.Command{
		Use:   "forget-promise --data DIR --name NAME",
		Short: "Free a new node from its promise to a cluster that was never formed",
		Long: `Free a node that has no state yet from its promise to form a cluster, for when the node that was to form it was lost
before it did. The node must not be running. It is refused when the node belongs to a cluster already.`,
		Args: cobra.NoArgs,
		RunE: action(func(context.Context, []string) error {
			if err := server.ForgetPromise(data, name); err != nil {
				return err
			}
			fmt.Fprintf(p.stdout, "node %s in %s is free to join in forming a cluster\n", name, data)
			return nil
		}),
	}
	command.Flags().StringVar(&data, "data", "", "the node's data directory")
	command.Flags().StringVar(&name, "name", "", "the node's name")
	_ = command.MarkFlagRequired("data") // both exist: the lines above
	_ = command.MarkFlagRequired("name")
	return command
}

func (p *program) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: action(func(context.Context, []string) error {
			answer := struct {
				Version  string `json:"version"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{versionText(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return p.show(answer, func() error {
				fmt.Fprintln(p.stdout, "pawl", answer.Version, answer.Go, answer.Platform)
				return nil
			})
		}),
	}
}

// version is set by the linker (see Makefile) and never written.
var version string

// versionText is what was built: the linker's word, else what the Go command knows.
func versionText() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	revision := ""
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			revision = s.Value[:min(12, len(s.Value))]
		}
	}
	switch {
	case info.Main.Version != "" && info.Main.Version != "(devel)":
		return info.Main.Version
	case revision != "":
		return revision
	}
	return "development"
}
