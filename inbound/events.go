package inbound

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"
)

// An event is one server-sent event (WHATWG HTML 9.2).
type event struct {
	name string // "message" if the stream names none
	data []byte
}

// cursor is what a client needs to go on with a stream that ended.
type cursor struct {
	id    string // of the last whole event that had one
	retry time.Duration
}

// readEvents hands each event with data to take until the stream ends or take returns
// false. The bounds of an event are those of the body, whose line ends are LF. An event
// that was not finished is dropped, as the standard says.
func readEvents(body io.Reader, at *cursor, take func(event) bool) error {
	r := bufio.NewReaderSize(body, 16<<10)
	var data bytes.Buffer
	var name, id string
	var hasData, hasID bool
	first := true
	for {
		line, err := readLine(r)
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if first {
			line, first = bytes.TrimPrefix(line, []byte("\ufeff")), false
		}
		if len(line) == 0 {
			if hasID {
				at.id = id
			}
			if data.Len() > 0 { // one without is there for its id
				e := event{name: "message", data: bytes.Clone(data.Bytes())}
				if name != "" {
					e.name = name
				}
				if !take(e) {
					return nil
				}
			}
			if data.Cap() > 1<<20 {
				data = bytes.Buffer{}
			}
			data.Reset()
			name, hasData, hasID = "", false, false
			continue
		}
		key, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(key) {
		case "data":
			if hasData {
				data.WriteByte('\n')
			}
			data.Write(value)
			hasData = true
		case "event":
			name = string(value)
		case "id":
			if s := string(value); len(s) <= maxEventID && !strings.ContainsRune(s, 0) {
				id, hasID = s, true
			}
		case "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
				at.retry = time.Duration(ms) * time.Millisecond
			}
		}
	}
}

// maxEventID bounds what is sent back to a server in a header.
const maxEventID = 1024

// readLine returns a line without its LF. A last line that has none is no line.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadSlice('\n')
	if err == nil {
		return line[:len(line)-1], nil
	}
	if !errors.Is(err, bufio.ErrBufferFull) {
		return nil, err
	}
	long := bytes.Clone(line)
	for {
		line, err = r.ReadSlice('\n')
		long = append(long, line...)
		if err == nil {
			return long[:len(long)-1], nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}
