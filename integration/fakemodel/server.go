package fakemodel

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// maxBody bounds a request.
const maxBody = 32 << 20

// Options configure a Server. The zero value answers every request with 400,
// because its script is empty.
type Options struct {
	Script Script
	// Answer is asked before the script; ok false leaves the request to it. It is
	// called from many goroutines.
	Answer func(q *Request) (t Turn, ok bool)
	// Key is the only key that is accepted. "" accepts any that is not empty, and at
	// the local address none as well.
	Key string
	// Journal gets each Entry as one line of JSON, in one Write. Nil writes nothing.
	Journal io.Writer
	// PlainLocal makes the local address refuse a response_format of json_schema, as
	// some servers do.
	PlainLocal bool
}

// A Server is the fake. It is safe for concurrent use, keeps its entries in memory,
// and has nothing to close.
type Server struct {
	opt Options

	mu      sync.Mutex
	entries []Entry
	asked   map[string]int // how often a request with this digest came
	changed chan struct{}  // closed and replaced at each entry
	n       int
}

// New returns a fake.
func New(opt Options) *Server {
	return &Server{opt: opt, asked: map[string]int{}, changed: make(chan struct{})}
}

// URL returns the base URL of a provider (anthropic, openai, deepseek, gemini, local,
// or responses, which is OpenAI with that API alone) on a fake that listens at address, such as "http://127.0.0.1:4010".
func URL(address, provider string) string {
	switch provider {
	case "openai", "local", "responses":
		return address + "/" + provider + "/v1"
	default:
		return address + "/" + provider
	}
}

// An Entry of the journal is one request's arrival or its end.
type Entry struct {
	N        int             `json:"n"` // of the request; its two entries share it
	At       time.Time       `json:"at"`
	Event    string          `json:"event"` // request or end
	Provider string          `json:"provider,omitempty"`
	Model    string          `json:"model,omitempty"`
	Turn     int             `json:"turn"`
	Digest   string          `json:"digest,omitempty"` // of provider, model and messages: equal for a repeated turn
	Key      string          `json:"key,omitempty"`    // as it came
	Body     json.RawMessage `json:"body,omitempty"`   // of a request, as it came
	// Outcome of an end: done, failed (by script), cut, gone (the client went away in
	// mid-answer), refused (with Why) or unscripted.
	Outcome string `json:"outcome,omitempty"`
	Status  int    `json:"status,omitempty"`
	Pieces  int    `json:"pieces,omitempty"`
	Why     string `json:"why,omitempty"`
}

// Entries returns a copy of the journal.
func (s *Server) Entries() []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Entry(nil), s.entries...)
}

// Wait returns when ok holds for the journal, or with the context's cause.
func (s *Server) Wait(ctx context.Context, ok func([]Entry) bool) error {
	for {
		s.mu.Lock()
		entries, changed := slices.Clip(s.entries), s.changed
		s.mu.Unlock()
		if ok(entries) {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Ended is for Wait: n requests have ended with outcome.
func Ended(outcome string, n int) func([]Entry) bool {
	return func(es []Entry) bool {
		k := 0
		for i := range es {
			if es[i].Event == "end" && es[i].Outcome == outcome {
				k++
			}
		}
		return k >= n
	}
}

// Arrived is for Wait: n requests have come.
func Arrived(n int) func([]Entry) bool {
	return func(es []Entry) bool {
		k := 0
		for i := range es {
			if es[i].Event == "request" {
				k++
			}
		}
		return k >= n
	}
}

func (s *Server) record(e Entry) {
	e.At = time.Now().UTC()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = append(s.entries, e)
	close(s.changed)
	s.changed = make(chan struct{})
	if s.opt.Journal != nil {
		if line, err := json.Marshal(e); err == nil {
			_, _ = s.opt.Journal.Write(append(line, '\n'))
		}
	}
}

// A Request is what a client asked for, in one form for all wires.
type Request struct {
	Provider  string // anthropic, openai, deepseek, gemini, local or responses
	Model     string
	System    string
	Messages  []Message
	Tools     []string // names
	Turn      int      // how many assistant messages it has
	MaxTokens int
	Effort    string // reasoning effort or budget, as the wire has it; "" if it has none
	Schema    json.RawMessage
	Format    string // "", json_object or json_schema
	Stream    bool
	Header    http.Header
	Path      string
	Body      []byte // as it came
}

// A Message is one of a Request.
type Message struct {
	Role      string // user, assistant or tool
	Text      string
	Reasoning string
	Calls     []Call
	Results   []Result
}

// A Result answers a call.
type Result struct {
	ID, Name, Text string
	IsError        bool
}

// Prompt is the text of the first user message.
func (q *Request) Prompt() string {
	for _, m := range q.Messages {
		if m.Role == "user" {
			return m.Text
		}
	}
	return ""
}

func (q *Request) digest() string {
	b, err := json.Marshal([]any{q.Provider, q.Model, q.System, q.Messages})
	if err != nil {
		b = q.Body
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

// A refusal is a request that a provider would not take.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

func refuse(format string, args ...any) error {
	return &refusal{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// A wire reads requests and writes answers as one provider does.
type wire interface {
	key(r *http.Request) string
	read(r *http.Request, body []byte, q *Request) error
	fail(w http.ResponseWriter, status int, message string)
	begin(t *Turn, q *Request, e *emitter) error
	whole(t *Turn, q *Request, w http.ResponseWriter)
	// errorEvent and badEvent are the events of a stream cut by error and malformed.
	errorEvent(e *emitter) error
	badEvent(e *emitter) error
}

// ServeHTTP answers one request of a client.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	provider, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	var wr wire
	switch {
	case r.Method != http.MethodPost:
	case provider == "anthropic" && rest == "v1/messages":
		wr = anthropicWire{}
	case provider == "openai" && rest == "v1/chat/completions",
		provider == "local" && rest == "v1/chat/completions",
		provider == "deepseek" && rest == "chat/completions":
		wr = openaiWire{provider: provider, plain: s.opt.PlainLocal}
	case (provider == "openai" || provider == "responses") && rest == "v1/responses":
		wr = responsesWire{}
	case provider == "gemini" && strings.HasPrefix(rest, "v1beta/models/"):
		wr = geminiWire{}
	}
	s.mu.Lock()
	s.n++
	e := Entry{N: s.n, Event: "request", Provider: provider}
	s.mu.Unlock()
	end := func(outcome string, status, sent int, why string) {
		e.Event, e.Body, e.Key = "end", nil, ""
		e.Outcome, e.Status, e.Pieces, e.Why = outcome, status, sent, why
		s.record(e)
	}
	if wr == nil {
		e.Why = r.Method + " " + r.URL.Path
		s.record(e)
		http.NotFound(w, r)
		end("refused", http.StatusNotFound, 0, e.Why)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	e.Key = wr.key(r)
	if json.Valid(body) {
		e.Body = body
	}
	q := &Request{Provider: provider, Header: r.Header, Path: r.URL.Path, Body: body}
	if err == nil {
		err = s.admit(wr, r, q, e.Key)
	}
	for _, m := range q.Messages {
		if m.Role == "assistant" {
			q.Turn++
		}
	}
	e.Model, e.Turn, e.Digest = q.Model, q.Turn, q.digest()
	s.record(e)
	if err != nil {
		status := http.StatusBadRequest
		if no, ok := errors.AsType[*refusal](err); ok {
			status = no.status
		}
		wr.fail(w, status, err.Error())
		end("refused", status, 0, err.Error())
		return
	}
	t, ok := Turn{}, false
	if s.opt.Answer != nil {
		t, ok = s.opt.Answer(q)
	}
	if !ok {
		t, ok = s.opt.Script.turn(q)
	}
	if !ok {
		wr.fail(w, http.StatusBadRequest, "fakemodel: the script has no answer for turn "+strconv.Itoa(q.Turn))
		end("unscripted", http.StatusBadRequest, 0, "")
		return
	}
	s.mu.Lock()
	nth := s.asked[e.Digest]
	s.asked[e.Digest]++
	s.mu.Unlock()
	if nth < len(t.Fail) {
		f := t.Fail[nth]
		if !pause(r.Context(), time.Duration(f.Delay)) {
			end("gone", 0, 0, "")
			return
		}
		if f.Status != 0 {
			if f.RetryAfter != "" {
				w.Header().Set("Retry-After", f.RetryAfter)
			}
			wr.fail(w, f.Status, f.Message)
			end("failed", f.Status, 0, "")
			return
		}
		t.Cut, t.After, t.Delay = f.Cut, f.After, 0
	}
	s.answer(w, r, wr, &t, q, end)
}

// admit reads and checks a request.
func (s *Server) admit(wr wire, r *http.Request, q *Request, key string) error {
	if key == "" && q.Provider != "local" || s.opt.Key != "" && key != s.opt.Key {
		return &refusal{http.StatusUnauthorized, "invalid api key"}
	}
	if ct, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); ct != "application/json" {
		return &refusal{http.StatusUnsupportedMediaType, "content type must be application/json"}
	}
	return wr.read(r, q.Body, q)
}

// errCut ends an answer where its script says so.
var errCut = errors.New("cut")

func (s *Server) answer(w http.ResponseWriter, r *http.Request, wr wire, t *Turn, q *Request, end func(string, int, int, string)) {
	if !pause(r.Context(), time.Duration(t.Delay)) {
		end("gone", 0, 0, "")
		return
	}
	if !q.Stream {
		wr.whole(t, q, w)
		end("done", http.StatusOK, 0, "")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	e := &emitter{w: w, c: http.NewResponseController(w), ctx: r.Context(), rate: t.Rate, start: time.Now(), cutAt: -1}
	if t.Cut != "" && t.After >= 0 {
		e.cutAt = t.After
	}
	err := e.flush()
	if err == nil {
		err = wr.begin(t, q, e)
	}
	switch {
	case err == nil:
		end("done", http.StatusOK, e.sent, "")
		return
	case !errors.Is(err, errCut):
		end("gone", http.StatusOK, e.sent, "")
		return
	}
	err = nil
	switch t.Cut {
	case CutHold:
		<-r.Context().Done()
		end("gone", http.StatusOK, e.sent, "")
		return
	case CutMalformed:
		err = wr.badEvent(e)
	case CutError:
		err = wr.errorEvent(e)
	case CutDisconnect, CutTruncated:
	}
	if err == nil {
		err = e.flush()
	}
	end("cut", http.StatusOK, e.sent, string(t.Cut))
	if t.Cut == CutDisconnect || err != nil {
		panic(http.ErrAbortHandler)
	}
}

// pause waits for d and reports whether the client is still there.
func pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// An emitter writes the events of one answer at its pace.
type emitter struct {
	w     io.Writer
	c     *http.ResponseController
	ctx   context.Context //nolint:containedctx // of the one request that it answers
	rate  int
	start time.Time
	sent  int // pieces
	cutAt int // pieces; -1 never
	buf   []byte
}

// event writes one event; name may be empty.
func (e *emitter) event(name string, data any) error {
	b, err := json.Marshal(data)
	if err != nil {
		return err
	}
	return e.raw(name, string(b))
}

func (e *emitter) raw(name, data string) error {
	e.buf = e.buf[:0]
	if name != "" {
		e.buf = append(append(append(e.buf, "event: "...), name...), '\n')
	}
	e.buf = append(append(append(e.buf, "data: "...), data...), "\n\n"...)
	_, err := e.w.Write(e.buf)
	return err
}

func (e *emitter) flush() error { return e.c.Flush() }

// piece writes an event that holds one token: it waits for the token's time and
// stops where the answer is cut.
func (e *emitter) piece(name string, data any) error {
	if e.sent == e.cutAt {
		return errCut
	}
	if e.rate > 0 {
		if !pause(e.ctx, time.Until(e.start.Add(time.Duration(e.sent)*time.Second/time.Duration(e.rate)))) {
			return context.Cause(e.ctx)
		}
	}
	if err := e.event(name, data); err != nil {
		return err
	}
	e.sent++
	return e.flush()
}

// last is called before the events that end an answer.
func (e *emitter) last(t *Turn) error {
	if t.Cut != "" {
		return errCut
	}
	return nil
}

// unknown reports the first member of body that is not in names (space-separated).
func unknown(body map[string]json.RawMessage, names string) string {
	known := map[string]bool{}
	for n := range strings.FieldsSeq(names) {
		known[n] = true
	}
	first := ""
	for k := range body {
		if !known[k] && (first == "" || k < first) {
			first = k
		}
	}
	return first
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may have gone
}
