// Package secrets finds the values that workflows, providers and servers refer to
// by name, and keeps them out of everything that is written.
//
// A name says what it is for: provider/openai, mcp/github_token,
// input/<workflow>/<input>, search. Its value comes from the first of the
// keychain of the system, a variable, a file that a variable or the service
// supervisor names, and an age file; there is no other place. Who needs values of
// one kind gets a Resolver of that kind, which can build no other name.
//
// A Secret prints as its name whatever prints it. A Scrubber knows every value that
// was resolved and replaces it, in the encodings that it usually travels in, in
// texts, streams and logs.
//
// The values are in the memory of this process and, once they are handed to a
// child, in the environment of that child, which the same user can read. On macOS
// whatever may run /usr/bin/security can read the keychain's items.
package secrets
