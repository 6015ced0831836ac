package agent

import (
	"strings"
	"sync"
	"time"

	"github.com/relavium/relavium-serve/engine"
)

// flushEvery is how often a stream of tokens becomes events at most.
const flushEvery = 25 * time.Millisecond

// A stream turns the deltas of one try into events: what arrives at once goes out
// together, nothing is lost, and nothing goes out after close.
type stream struct {
	emit     func(engine.Event)
	newScrub func() func(string, bool) string
	token    engine.Event // what the events have in common

	mu      sync.Mutex
	scrub   func(piece string, last bool) string // of the kind that arrives now
	thought bool                                 // that kind is reasoning
	pending []chunk
	timer   *time.Timer
	armed   bool
	last    time.Time
	came    int // bytes of text and reasoning
	closed  bool
}

type chunk struct {
	thought bool
	text    []byte
}

func newStream(emit func(engine.Event), newScrub func() func(string, bool) string, model string, attempt int) *stream {
	return &stream{emit: emit, newScrub: newScrub, token: engine.Event{Model: model, Attempt: later(attempt)}}
}

// delta takes in what arrived.
func (s *stream) delta(d Delta) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.came += len(d.Reasoning) + len(d.Text)
	s.take(true, d.Reasoning)
	s.take(false, d.Text)
	if len(s.pending) == 0 || s.armed {
		return
	}
	wait := flushEvery - time.Since(s.last)
	if wait <= 0 {
		s.flush()
		return
	}
	s.armed = true
	if s.timer == nil {
		s.timer = time.AfterFunc(wait, s.tick)
		return
	}
	s.timer.Reset(wait)
}

// take adds text of one kind, in order of arrival.
func (s *stream) take(thought bool, text string) {
	if text == "" {
		return
	}
	if s.scrub != nil && s.thought != thought {
		s.keep(s.scrub("", true))
		s.scrub = nil
	}
	if s.scrub == nil {
		s.scrub, s.thought = s.newScrub(), thought
	}
	s.keep(s.scrub(text, false))
}

// keep adds what may go out to what waits.
func (s *stream) keep(text string) {
	if text == "" {
		return
	}
	if n := len(s.pending); n == 0 || s.pending[n-1].thought != s.thought {
		s.pending = append(s.pending, chunk{thought: s.thought})
	}
	last := &s.pending[len(s.pending)-1]
	last.text = append(last.text, text...)
}

func (s *stream) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed = false
	if !s.closed {
		s.flush()
	}
}

// flush sends what waits.
func (s *stream) flush() {
	for i := range s.pending {
		ev := s.token
		text := strings.ToValidUTF8(string(s.pending[i].text), "\uFFFD")
		if s.pending[i].thought {
			ev.Type, ev.Text = engine.AgentReasoning, text
		} else {
			ev.Type, ev.Token = engine.AgentToken, text
		}
		s.emit(ev)
	}
	s.pending = nil
	s.last = time.Now()
}

// close sends the rest and returns how many bytes came in all.
func (s *stream) close() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.came
	}
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.scrub != nil {
		s.keep(s.scrub("", true))
	}
	s.flush()
	return s.came
}

// later is an attempt's number where it is worth saying: the first is not.
func later(attempt int) int {
	if attempt <= 1 {
		return 0
	}
	return attempt
}
