package inbound

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
)

// maxLine bounds one message of a stream transport in bytes: a text of 1 MiB may need
// six times that when it is escaped.
const maxLine = 8 << 20

// lines reads messages that end in a newline. It keeps at most maxLine bytes of one.
type lines struct {
	r *bufio.Reader
}

func newLines(r io.Reader) *lines { return &lines{r: bufio.NewReaderSize(r, 64<<10)} }

// next returns the next line without its end, in bytes of its own. Of a line over the
// bound it returns what is known of it instead, after the whole of it was read. A last
// line without a newline is a line; io.EOF comes after it.
func (l *lines) next() (line []byte, over *oversize, err error) {
	for {
		part, err := l.r.ReadSlice('\n')
		ended := err == nil
		if ended {
			part = part[:len(part)-1]
		}
		switch {
		case over != nil:
			over.scan.feed(part)
		case len(line)+len(part) > maxLine:
			over = &oversize{}
			over.scan.feed(line)
			over.scan.feed(part)
			line = nil
		default:
			line = append(line, part...)
		}
		switch {
		case ended:
			return trimCR(line), over.known(), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case over != nil || len(line) > 0 && errors.Is(err, io.EOF):
			return trimCR(line), over.known(), nil // the next call reports err
		default:
			return nil, nil, err
		}
	}
}

func trimCR(line []byte) []byte {
	if n := len(line); n > 0 && line[n-1] == '\r' {
		return line[:n-1]
	}
	return line
}

// oversize is what is known of a message that was over the bound.
type oversize struct {
	id     json.RawMessage // nil if none was found, or more than one
	method bool            // it has a method, so it is no response
	scan   envelopeScan
}

func (o *oversize) known() *oversize {
	if o != nil {
		o.method = o.scan.method
		if o.scan.ids == 1 {
			o.id = o.scan.id
		}
	}
	return o
}

// envelopeScan looks for the members id and method of the outermost object in bytes
// that are not kept. It keeps at most a few dozen bytes, whatever is fed.
type envelopeScan struct {
	depth  int
	str    bool   // inside a string
	esc    bool   // after a backslash in it
	key    bool   // a string at depth 1 is a name
	isID   bool   // the value at depth 1 is that of id
	token  []byte // the name, or the value of id, as written
	long   bool   // token was cut
	ids    int
	id     json.RawMessage
	method bool
}

// maxToken bounds a name or an id that is looked at, in bytes as written.
const maxToken = 64

func (s *envelopeScan) keep(c byte) {
	if len(s.token) >= maxToken {
		s.long = true
		return
	}
	s.token = append(s.token, c)
}

func (s *envelopeScan) feed(p []byte) {
	for _, c := range p {
		s.one(c)
	}
}

func (s *envelopeScan) one(c byte) {
	atTop := s.depth == 1
	if s.str {
		if atTop {
			s.keep(c)
		}
		switch {
		case s.esc:
			s.esc = false
		case c == '\\':
			s.esc = true
		case c == '"':
			s.str = false
		}
		return
	}
	switch c {
	case '"':
		s.str = true
		if atTop {
			if s.key {
				s.token, s.long = s.token[:0], false
			}
			s.keep(c)
		}
	case '{', '[':
		s.depth++
		if s.depth == 1 {
			s.key = c == '{'
		}
	case '}', ']':
		if atTop {
			s.value()
		}
		s.depth--
	case ':':
		if atTop && s.key {
			s.name()
		}
	case ',':
		if atTop {
			s.value()
			s.key = true
		}
	case ' ', '\t', '\r':
	default:
		if atTop && !s.key {
			s.keep(c)
		}
	}
}

// name ends a name at the top.
func (s *envelopeScan) name() {
	s.key = false
	var name string
	if !s.long && json.Unmarshal(s.token, &name) != nil {
		name = ""
	}
	s.isID = name == "id" && !s.long
	s.method = s.method || name == "method" && !s.long
	s.token, s.long = s.token[:0], false
}

// value ends a value at the top.
func (s *envelopeScan) value() {
	if s.isID {
		s.ids++
		if !s.long && s.id == nil {
			s.id = append(json.RawMessage(nil), s.token...)
		}
	}
	s.isID, s.token, s.long = false, s.token[:0], false
}
