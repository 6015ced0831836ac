// Command relavium-serve publishes workflow files as MCP tools and runs them
// durably, with people at their gates. The package holds flags, the layers of
// the configuration, the wiring of the rooms, and exit codes; it decides
// nothing that a room could decide. Exit codes (format 5.5): 0 done, 1 the run
// failed or was cancelled, 2 the invocation, a file or the configuration is at
// fault, 3 the run waits for a person.
package main
