// Package expr evaluates the JavaScript expressions of a workflow: conditions,
// transforms, merge functions and edge conditions (format §8). An expression is
// a pure function of its scope: it has no clock, no randomness, no I/O and no way
// to compile text, and each evaluation gets a machine of its own, with bounds on
// time, memory, call depth and result size. Its one invariant: whatever the source
// is, an evaluation ends in bounded time and leaves nothing behind.
//
// # How time is bounded
//
// The engine, QuickJS, looks at its clock between steps of an expression, once in
// ten thousand, and never inside a builtin. Three things make up for that:
// prelude.js takes away what is outside the format's list and bounds the builtins
// that walk a length or compare long texts; when time is over, a watch takes the
// room for calls and allocations away and makes the engine look at its next step;
// and the length of a source is bounded, because the parser is not interrupted. What
// stays is one step that is slow by itself: the decimal text of a BigInt near the
// engine's limit of a million bits takes some seconds.
//
// # Where it differs from the language
//
// Array methods refuse arrays and array-likes of more than 4,194,304 elements (only
// holes could make one) and lengths that are getters; string searches refuse more
// than 2^30 steps. Typed arrays, Set algebra, Iterator and what belongs to promises
// are absent. The result of an async function is not JSON.
package expr
