// Package consent decides what may be started and with which environment. It is a
// leaf: it imports nothing of this module.
package consent
