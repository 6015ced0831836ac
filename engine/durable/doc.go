// Package durable binds the engine to its durable execution: DBOS on a SQLite
// file. It opens the pools, starts and recovers segments, records effects as
// steps, and knows which executors of the file are alive. It does not know what
// a run is.
package durable
