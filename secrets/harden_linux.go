package secrets

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Harden keeps the memory of this process out of core files, and away from other
// processes of the same user that would attach to it. Children start with the limit
// on core files, and without the rest.
func Harden() error {
	return errors.Join(noCore(), unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}
