// Package consent decides what may be started and with which environment: it
// resolves a declared command to one program, names a declaration by a digest,
// keeps the digests that a person has granted on this machine, and asks. It starts
// nothing. It is a leaf: it imports nothing of this module.
package consent
