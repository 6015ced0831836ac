// Package publish is an MCP server whose tools are workflows. It builds the
// table of tools once, turns a tools/call into a run of the engine or joins one,
// waits for it on the caller's behalf, and turns what the run yields into the
// shapes that the caller's protocol revision knows. It serves revisions
// 2024-11-05 to 2026-07-28. How messages arrive is the business of
// publish/transport; how a run is kept is the engine's. Its one invariant: no
// tool, resource or argument decides a human gate.
package publish
