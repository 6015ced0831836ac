package transport

import (
	"bytes"
	"cmp"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// A stream is the answer to one HTTP request while it is written: one JSON body
// or a stream of events. It is safe for concurrent use.
type stream struct {
	w         http.ResponseWriter
	flush     *http.ResponseController
	events    bool // events may be written; without, notifications are dropped
	onlyEvent bool // the client takes nothing but events
	ids       bool // events carry ids
	prime     bool // an event with an id alone may open the stream
	beat      time.Duration

	mu      sync.Mutex
	opened  bool
	closed  bool
	failed  error
	pending string // id of the next event
	marked  int    // length of pending up to its mark
	timer   *time.Timer
}

// keep writes a sign of life after first, and then at every beat.
func (s *stream) keep(first, beat time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beat = beat
	if !s.events {
		first = beat
	}
	s.timer = time.AfterFunc(first, s.tick)
}

func (s *stream) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	switch {
	case !s.events:
		s.open(http.StatusOK, "application/json")
		s.write([]byte("\n")) // white space before a JSON text
	case s.prime && s.pending != "":
		s.open(http.StatusOK, "text/event-stream")
		s.write([]byte("id: " + s.pending + "\ndata: \n\n"))
		s.pending = ""
	default:
		s.open(http.StatusOK, "text/event-stream")
		s.write([]byte(":\n\n"))
	}
	s.prime = false
	if s.failed == nil {
		s.timer.Reset(s.beat)
	}
}

// at names the place in the stream that the next event stands for. mark says whose
// stream it is, to a process that does not know; it may be "".
func (s *stream) at(run string, n int64, mark string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ids {
		return
	}
	s.pending = run + "." + strconv.FormatInt(n, 10)
	s.marked = len(s.pending)
	s.pending += mark
}

// last marks the id of the next event, which is the answer: nothing of the call comes
// after it.
func (s *stream) last() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending != "" {
		s.pending = s.pending[:s.marked] + endMark
	}
}

// open writes the header, once; s.mu is held.
func (s *stream) open(status int, contentType string) {
	if s.opened {
		return
	}
	s.opened = true
	h := s.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Cache-Control", "no-store")
	if contentType == "text/event-stream" {
		h.Set("X-Accel-Buffering", "no") // proxies that gather answers must not
	}
	s.w.WriteHeader(status)
}

// write sends bytes at once; s.mu is held.
func (s *stream) write(b []byte) {
	if s.failed != nil {
		return
	}
	if _, s.failed = s.w.Write(b); s.failed == nil {
		s.failed = s.flush.Flush()
	}
}

// event sends one message as an event; s.mu is held.
func (s *stream) event(line []byte) {
	s.open(http.StatusOK, "text/event-stream")
	line = bytes.TrimSpace(line)
	if bytes.ContainsAny(line, "\r\n") { // white space between tokens: a line ends a field
		line = bytes.Map(func(c rune) rune {
			if c == '\r' || c == '\n' {
				return ' '
			}
			return c
		}, line)
	}
	b := make([]byte, 0, len(line)+128)
	b = append(b, "event: message\n"...)
	if s.pending != "" {
		b = append(append(append(b, "id: "...), s.pending...), '\n')
		s.pending = ""
	}
	b = append(append(append(b, "data: "...), line...), "\n\n"...)
	s.write(b)
}

// notify writes a notification if the client takes any.
func (s *stream) notify(line []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if !s.events {
		return nil
	}
	s.event(line)
	return s.failed
}

// more writes a response after which others follow.
func (s *stream) more(line []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return cmp.Or(s.failed, ErrClosed)
	}
	s.event(line)
	return s.failed
}

// streaming reports whether the answer has become a stream of events.
func (s *stream) streaming() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.opened && s.events
}

// finish writes the response and ends the answer. status is that of a JSON body
// that has not begun.
func (s *stream) finish(status int, line []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.end() {
		return ErrClosed
	}
	if s.events && (s.opened || s.onlyEvent && status == http.StatusOK) {
		s.event(line)
		return s.failed
	}
	if !s.opened {
		s.w.Header().Set("Content-Length", strconv.Itoa(len(line)))
	}
	s.open(status, "application/json")
	s.write(line)
	return s.failed
}

// drop ends the answer without a response.
func (s *stream) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.end() || s.opened {
		return
	}
	s.opened = true
	s.w.WriteHeader(http.StatusNoContent)
}

// refuse ends the answer with a status where nothing of it was written.
func (s *stream) refuse(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end() && !s.opened {
		s.opened = true
		s.w.WriteHeader(status)
	}
}

// head lets set change the header where nothing was written.
func (s *stream) head(set func(http.Header)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.opened {
		set(s.w.Header())
	}
}

// end stops everything else that writes; s.mu is held.
func (s *stream) end() bool {
	if s.closed {
		return false
	}
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	return true
}

// failed answers with a JSON-RPC error and an HTTP status.
func failed(w http.ResponseWriter, status int, id []byte, e *Error) {
	line := errorLine(id, e)
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(len(line)))
	w.WriteHeader(status)
	_, _ = w.Write(line)
}

// number gives events ids; prime lets one come before any event.
func (s *stream) number(prime bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ids, s.prime = true, prime && s.events
}

// accept ends an answer to what needs none.
func (s *stream) accept() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end() && !s.opened {
		s.opened = true
		s.w.WriteHeader(http.StatusAccepted)
	}
}

// finishAll ends the answer with several responses.
func (s *stream) finishAll(lines [][]byte) bool {
	if !s.streaming() {
		array := append(append([]byte("["), bytes.Join(lines, []byte(","))...), "]\n"...)
		return s.finish(http.StatusOK, array) == nil
	}
	for _, line := range lines {
		if s.more(line) != nil {
			return false
		}
	}
	return true
}
