//go:build unix && !linux

package secrets

// Harden keeps the memory of this process out of core files.
func Harden() error { return noCore() }
