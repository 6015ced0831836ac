// Package integration drives the built binary from outside: real MCP clients,
// real processes that are killed, one store that several processes share. It has
// tests and benchmarks only; go test -short leaves the long ones out.
package integration
