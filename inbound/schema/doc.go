// Package schema decides which schemas of servers are used, and checks arguments
// against them.
//
// A server's inputSchema is input from outside: it is read strictly, bounded in
// every dimension that a validator's time hangs on, and refused where it asks for
// something that would not be enforced (another dialect, a reference to another
// document, a pattern that RE2 cannot match). What is admitted is compiled once and
// has a copy for models, in which presentation text is cleaned and nothing else is
// changed. Validation is the work of santhosh-tekuri/jsonschema, behind a loader
// that loads nothing, a recover and a clock.
package schema
