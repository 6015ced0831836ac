// Package engine runs checked workflows durably: it starts, waits at gates,
// decides, cancels, recovers and tells what happens as one ordered stream of
// events per run. It knows no MCP, no HTTP and no processes. Its one invariant:
// a recorded effect that completed is never done again.
package engine
