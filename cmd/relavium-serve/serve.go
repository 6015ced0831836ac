package main

import "github.com/spf13/cobra"

func (a *app) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "serve",
		Short:   "Serve the published workflows as MCP tools over stdio",
		Example: "  relavium-serve serve --publish review-diff",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			a.entered = true
			return unbuilt("serve")
		},
	}
}
