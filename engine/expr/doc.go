// Package expr evaluates the JavaScript expressions of a workflow: conditions,
// transforms, merge functions and edge conditions (format §8). An expression is
// a pure function of its scope: it has no clock, no randomness, no I/O and no way
// to compile text, and each evaluation gets a machine of its own, with bounds on
// time, memory, call depth and result size. Its one invariant: whatever the source
// is, an evaluation ends in bounded time and leaves nothing behind.
package expr
