// Package servers runs the guarded host against MCP servers as people publish them.
package servers
