// Package conformance runs the official MCP conformance suite against the built
// binary, whose tools are the workflow files of testdata. It has tests only.
package conformance
