package transport

import (
	"bufio"
	"errors"
	"io"
)

// errTooLong reports a line over the bound; the reader stands behind it.
var errTooLong = errors.New("transport: line too long")

// lines reads lines of at most max bytes. It keeps no more than that of any
// line, however long the line is.
type lines struct {
	r   *bufio.Reader
	max int
}

func newLines(r io.Reader, most int) *lines {
	return &lines{r: bufio.NewReaderSize(r, 64<<10), max: most}
}

// next returns the next line without its newline. A last line that has none is
// returned like any other, and io.EOF after it. errTooLong stands for one line.
func (l *lines) next() ([]byte, error) {
	var line []byte
	long := false
	for {
		part, err := l.r.ReadSlice('\n')
		ended := err == nil
		if ended {
			part = part[:len(part)-1]
		}
		if !long && len(line)+len(part) > l.max {
			long, line = true, nil
		}
		if !long {
			line = append(line, part...)
		}
		switch {
		case ended && long:
			return nil, errTooLong
		case ended:
			return line, nil
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case long:
			return nil, errTooLong // the next call reports err
		case len(line) > 0 && errors.Is(err, io.EOF):
			return line, nil
		default:
			return nil, err
		}
	}
}
