//go:build !unix

package workflows

import "errors"

func makePipe(string) error { return errors.ErrUnsupported }
