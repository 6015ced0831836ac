// Package builtin holds the tools that workflows have of this machine without an
// MCP server: files, commands, git and HTTP. What a call may touch is decided by
// the workflow and the operator alone, in Check, before anything happens, and once
// more on what is then really open: no name, link or race makes a tool leave the
// workspace and the run's own folder, reach the confidentiality floor, or write what
// decides about later runs.
//
// It starts processes only through the function that it is given, and reaches the
// network only through package egress.
package builtin
