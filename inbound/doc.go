// Package inbound is the guarded host of the MCP servers that agents use. It connects
// all servers of a run before the run's first node, after a person of this machine has
// consented to each program that it would start, keeps one session with each until the
// run ends, and bounds everything that a server can do: how long it may take to come
// up, to list its tools and to answer, and how much of anything it may send.
//
// A [Host] has the sessions of all runs of the process. It satisfies the agent loop's
// interface for tools. What comes from a server is data here: tool definitions are
// admitted or dropped, never repaired, results are text, and a server's own requests
// are declined, since none of what they would ask for is declared.
//
// The one invariant: nothing that was begun is forgotten. A call returns at its
// deadline or when it is cancelled, but its request, its body and its notice of
// cancellation are still owed, and closing a session waits for them, for the socket and
// for the process.
package inbound
