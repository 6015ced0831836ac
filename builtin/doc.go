// Package builtin holds what workflows may do with the host by themselves. In
// this version that is one thing: reading a text file of the workspace. Its one
// invariant: no name, link or race makes it read outside the workspace or on
// the confidentiality floor.
package builtin
