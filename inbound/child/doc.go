// Package child starts processes, and is the only package that does: the servers that
// agents consume over stdio, and the commands that agents run. Nothing that it starts
// outlives what it was started for.
//
// On Linux and macOS each program runs under a supervisor: this binary, executed again,
// which is what [Supervising] and [Supervise] are for. The supervisor is alone in a
// session without a terminal and hands its three standard streams through. Its lifeline
// is a pipe that only the host can write; when the host ends, however it ends, the pipe
// does too, and the supervisor kills the program with all its descendants. It does the
// same when the program ends by itself. On Linux orphans come back to the supervisor, so
// that no descendant can leave; on macOS it looks for them. On Windows a job object does
// all of this.
//
// A [Table] lists every process from before its fork to after its end. Processes are
// never signalled by number from here: orders go through the lifeline, and the supervisor
// signals only what it has not waited for yet.
//
// The package does not decide what may be started. Its callers resolve the program and
// ask for consent; here a program is an absolute path to a regular file that may be
// executed, and the environment is what [NewEnvironment] made, never this process's own.
package child
