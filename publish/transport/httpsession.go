package transport

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
)

const (
	maxCalls    = 64      // that a session remembers
	maxStreams  = 8       // GET streams of a session
	maxCallID   = 1 << 10 // bytes of the id of a call that is remembered
	maxCallName = 1 << 10
)

// An httpSession is a client of a revision before 2026-07-28.
type httpSession struct {
	Session

	id        string
	principal string        // whose it is
	issued    time.Time     // when it was made, in whatever process
	adopted   bool          // it was made in another process, or is known here again
	gone      chan struct{} // closed at its end

	mu       sync.Mutex
	over     bool
	busy     int       // requests and streams
	idle     time.Time // since when busy is 0
	noted    time.Time // the use that was noted for other processes
	posts    int       // cancels that were written for other processes, since
	postsIn  time.Time // this time
	flights  map[string][]*flight
	leaving  []*flight   // cancels that are heeded here now
	calls    []*call     // whose answer may be wanted again, oldest first
	given    recent      // calls that were cancelled
	ended    recent      // requests that were answered
	listener *listener   // the stream for what belongs to no request
	spare    []*listener // streams that came back with nothing left to say
	ear      *ear

	asks asks
}

// A listener is a GET stream; replaced tells it to end.
type listener struct {
	st       *stream
	replaced chan struct{}
	spare    bool // another one is for what belongs to no request
}

// A call is a request that waits for a run, as far as the session keeps it: its
// answer is made from the run store when a client comes back for it.
type call struct {
	id     json.RawMessage
	method string
	name   json.RawMessage // nil if it is not known
	token  json.RawMessage // of its progress; nil for none

	// Guarded by the session.
	run      string
	n        int64                         // event that the client was last told of
	final    int64                         // event of the answer once that was written, or -1
	unread   func(context.Context, string) // what Reply.Unread of that is
	replayed bool                          // the answer was written again
	by       *flight                       // what answers it now, or nil
}

// recent are the last requests of a kind, at most maxCalls, by idKey, oldest first.
type recent []string

func (r *recent) add(id json.RawMessage) {
	if len(id) > 0 && len(id) <= maxCallID {
		*r = append((*r)[max(len(*r)-maxCalls+1, 0):], idKey(id))
	}
}

func (r *recent) drop(id json.RawMessage) {
	key := idKey(id)
	*r = slices.DeleteFunc(*r, func(other string) bool { return other == key })
}

func (r *recent) has(id json.RawMessage) bool { return len(id) > 0 && slices.Contains(*r, idKey(id)) }

func newSession(principal string) *httpSession {
	now := time.Now()
	return &httpSession{principal: principal, issued: now, noted: now, gone: make(chan struct{}), idle: now, flights: map[string][]*flight{}, ear: newEar()}
}

// add makes a session known and returns it, or the one of its id that is known
// already: two requests may bring the same from another process. If there are too many
// the one that is idle longest has to go; it is nil when none is. A principal that has
// more than its share makes way for itself.
func (e *endpoint) add(s *httpSession) *httpSession {
	most := cmp.Or(e.http.MaxSessions, DefaultMaxSessions)
	e.mu.Lock()
	if known := e.sessions[s.id]; known != nil {
		e.mu.Unlock()
		return known
	}
	own := 0
	if e.http.Admit != nil {
		for _, other := range e.sessions {
			if other.principal == s.principal {
				own++
			}
		}
	}
	greedy := own >= max(most/callerShare, 1)
	var out *httpSession
	if greedy || len(e.sessions) >= most {
		var since time.Time
		for _, other := range e.sessions {
			if greedy && other.principal != s.principal {
				continue
			}
			if idle, ok := other.idleSince(); ok && (out == nil || idle.Before(since)) {
				out, since = other, idle
			}
		}
		if out == nil {
			e.mu.Unlock()
			return nil
		}
		delete(e.sessions, out.id)
	}
	e.sessions[s.id] = s
	e.mu.Unlock()
	if out != nil {
		e.ended(out)
	}
	return s
}

// session finds the session of a request, which the caller must leave; when it
// returns nil the answer is written. "Servers that require a session ID SHOULD
// respond to requests without an Mcp-Session-Id header (other than
// initialization) with HTTP 400 Bad Request", and after the end of a session
// "with HTTP 404 Not Found" (MCP 2025-11-25, Session Management). That of another
// principal does not exist for the caller.
func (e *endpoint) session(w http.ResponseWriter, r *http.Request, c *Caller) *httpSession {
	id := r.Header.Get(mcp.HeaderSessionID)
	if id == "" {
		failed(w, http.StatusBadRequest, nil, invalid("no "+mcp.HeaderSessionID+": initialize first"))
		return nil
	}
	e.mu.Lock()
	s := e.sessions[id]
	e.mu.Unlock()
	if s != nil && e.tooOld(s) {
		e.forget(s)
		s = nil
	}
	if s == nil {
		var err error
		if s, err = e.adopt(r.Context(), id, c); err != nil {
			e.http.Logger.WarnContext(r.Context(), "look for a session", "error", err)
			w.Header().Set("Retry-After", "1")
			failed(w, http.StatusServiceUnavailable, nil, &Error{Code: CodeInternal, Message: "the session cannot be looked for now"})
			return nil
		}
	}
	if s == nil || s.principal != c.Principal || !s.enter() {
		failed(w, http.StatusNotFound, nil, &Error{Code: codeSession, Message: "session not found: initialize again"})
		return nil
	}
	return s
}

// delete ends a session, in all processes; what it waits for goes on without it.
func (e *endpoint) delete(w http.ResponseWriter, r *http.Request, c *Caller) {
	if refusedModern(w, r) {
		return
	}
	s := e.session(w, r, c)
	if s == nil {
		return
	}
	defer s.leave()
	if s.key != "" {
		if err := e.http.Shared.End(context.WithoutCancel(r.Context()), s.key); err != nil {
			e.http.Logger.WarnContext(r.Context(), "end a session", "error", err)
			w.Header().Set("Retry-After", "1")
			failed(w, http.StatusServiceUnavailable, nil, &Error{Code: CodeInternal, Message: "the session cannot be ended now"})
			return
		}
	}
	e.forget(s)
	w.WriteHeader(http.StatusOK)
}

func (e *endpoint) forget(s *httpSession) {
	e.mu.Lock()
	if e.sessions[s.id] == s {
		delete(e.sessions, s.id)
	}
	e.mu.Unlock()
	e.ended(s)
}

// ended lets go of a session that is not known any more.
func (e *endpoint) ended(s *httpSession) {
	s.end()
	e.http.Notices.leave(s.ear)
}

// joined lets a session hear notices, on the streams that it opens by GET.
func (e *endpoint) joined(s *httpSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		e.http.Notices.join(s.ear)
	}
}

// endSessions ends all of them, with the questions that are open.
func (e *endpoint) endSessions() {
	e.mu.Lock()
	all := slices.Collect(maps.Values(e.sessions))
	clear(e.sessions)
	e.mu.Unlock()
	for _, s := range all {
		e.ended(s)
	}
}

// refusedModern answers GET and DELETE of 2026-07-28, which has neither.
func refusedModern(w http.ResponseWriter, r *http.Request) bool {
	version := r.Header.Get(mcp.HeaderProtocolVersion)
	if mcp.IsModernProtocol(version) {
		w.Header().Set("Allow", http.MethodPost)
		failed(w, http.StatusMethodNotAllowed, nil, invalid(r.Method+" is not part of this revision"))
		return true
	}
	return !knownVersion(w, version)
}

// get opens the stream of a session, or one that carries the answer of a call
// whose own stream broke.
func (e *endpoint) get(w http.ResponseWriter, r *http.Request, c *Caller) {
	if refusedModern(w, r) {
		return
	}
	s := e.session(w, r, c)
	if s == nil {
		return
	}
	defer s.leave()
	if f, _ := accepted(r.Header); !f.events && !f.any {
		failed(w, http.StatusNotAcceptable, nil, invalid("GET is answered by text/event-stream, which Accept does not take"))
		return
	}
	st := &stream{w: w, flush: http.NewResponseController(w), events: true, ids: true}
	defer st.drop()
	st.keep(0, cmp.Or(e.http.Heartbeat, DefaultHeartbeat)) // the header at once
	last := r.Header.Get(mcp.HeaderLastEventID)
	if at, ok := place(last); ok && at.mark != endMark && !s.gaveUp(&at) {
		calls := s.again(at.run, at.n)
		if marked := s.marked(&at); marked != nil {
			calls = append(calls, marked)
		}
		if len(calls) > 0 {
			e.resume(r, c, s, st, calls, at)
			return
		}
	}
	if s.adopted { // it has said so in another process
		e.joined(s)
	}
	l := s.listen(st, last != "")
	defer s.unlisten(l)
	expired, stop := c.expiry()
	defer stop()
	lines := s.ear.lines
	if l.spare {
		lines = nil
	}
	for {
		select {
		case <-r.Context().Done():
		case <-s.gone:
		case <-l.replaced:
		case <-expired:
		case line := <-lines:
			if s.told(l, line) {
				continue
			}
		}
		return
	}
}

// told writes a notice on the session's stream; one that another stream has
// taken the place of, or that has broken, leaves it to the next.
func (s *httpSession) told(l *listener, line []byte) bool {
	select {
	case <-l.replaced:
	default:
		if l.st.notify(line) == nil {
			return true
		}
	}
	s.ear.put(line)
	return false
}

// resume answers calls again, each once, from the run store: what the client was
// told of before the place is not repeated.
func (e *endpoint) resume(r *http.Request, by *Caller, s *httpSession, st *stream, calls []*call, at eventID) {
	ctx, end := requestContext(r.Context(), ErrClosed)
	defer end(nil)
	for _, c := range calls {
		fl := s.begin(c.id, end)
		s.takeOver(ctx, c, fl)
		req := e.again(by, c, s, func(method string, params json.RawMessage) error {
			return st.notify(notificationLine(method, params))
		})
		s.asking(req, st)
		req.Track = s.tracks(c, st, at.n)
		reply := e.http.Resume(ctx, req, at.run, at.n)
		line := replyLine(c.id, reply)
		written := line != nil && !silenced(ctx)
		if written {
			s.answering(c, fl, true, reply.Unread)
			st.last()
			written = st.more(line) == nil
		}
		switch { // before it counts as done, which a cancel waits for
		case !written:
			lost(reply)
		case reply.Delivered != nil:
			reply.Delivered()
		}
		s.settled(c, fl, written)
		s.finish(c.id, fl)
		if !written {
			return
		}
	}
}

// reap ends sessions that were idle for too long.
func (e *endpoint) reap(ctx context.Context) {
	limit := cmp.Or(e.http.SessionIdle, DefaultSessionIdle)
	t := time.NewTicker(min(max(limit/noteParts, 10*time.Millisecond), time.Minute))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		e.mu.Lock()
		all := slices.Collect(maps.Values(e.sessions))
		e.mu.Unlock()
		e.note(ctx, all, limit)
		for _, s := range all {
			if since, ok := s.idleSince(); !ok || time.Since(since) < limit {
				continue
			}
			if e.http.Waiting != nil && slices.ContainsFunc(s.unanswered(), func(run string) bool { return e.http.Waiting(ctx, run) }) {
				s.touch()
				continue
			}
			if s.close(limit) {
				e.forget(s)
			}
		}
	}
}

// enter counts a request or stream of the session; false when it has ended.
func (s *httpSession) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return false
	}
	s.busy++
	return true
}

func (s *httpSession) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	s.idle = time.Now()
}

func (s *httpSession) touch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = time.Now()
}

func (s *httpSession) idleSince() (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.idle, s.busy == 0
}

// close ends the session if it is idle still.
func (s *httpSession) close(limit time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy > 0 || time.Since(s.idle) < limit {
		return false
	}
	s.over = true
	return true
}

// end lets go of everything that the session holds.
func (s *httpSession) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	select {
	case <-s.gone:
	default:
		close(s.gone)
	}
	for _, flights := range s.flights {
		for _, f := range flights {
			f.cancel(ErrClosed)
		}
	}
}

// begin makes a request known by its id, which a client may use again while the
// server has not seen that the connection of the first is gone.
func (s *httpSession) begin(id json.RawMessage, cancel context.CancelCauseFunc) *flight {
	f := &flight{began: time.Now(), cancel: cancel, done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := idKey(id)
	s.flights[key] = append(s.flights[key], f)
	s.ended.drop(id)
	if s.over {
		cancel(ErrClosed)
	}
	return f
}

func (s *httpSession) finish(id json.RawMessage, f *flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := idKey(id)
	s.flights[key] = slices.DeleteFunc(s.flights[key], func(other *flight) bool { return other == f })
	if len(s.flights[key]) == 0 {
		delete(s.flights, key)
		s.ended.add(id)
	}
	select {
	case <-f.done:
	default:
		close(f.done)
	}
}

// finished reports whether the request of that id was one of the last answered here.
func (s *httpSession) finished(id json.RawMessage) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended.has(id)
}

// heed notes that a cancel is being heeded, until the returned func is called.
func (s *httpSession) heed() func() {
	f := &flight{done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving = append(s.leaving, f)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.leaving = slices.DeleteFunc(s.leaving, func(other *flight) bool { return other == f })
		close(f.done)
	}
}

// heeding are the cancels that came before and are being heeded: the same call, made
// again, goes another way and may be here before they are done.
func (s *httpSession) heeding() []*flight {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.leaving)
}

func (s *httpSession) flying(id json.RawMessage) []*flight {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.flights[idKey(id)])
}

// track notes which run a call waits for and how much of it was told.
func (s *httpSession) track(c *call, run string, n int64) {
	if len(c.id) > maxCallID || len(c.name) > maxCallName {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c.n = n
	if c.run != "" {
		return
	}
	c.run = run
	if len(s.calls) >= maxCalls {
		oldest := max(slices.IndexFunc(s.calls, func(c *call) bool { return c.final >= 0 }), 0)
		s.calls = slices.Delete(s.calls, oldest, oldest+1)
	}
	s.calls = append(s.calls, c)
}

// answering notes that f is about to write the answer of the call. It comes
// before the writing, since the client may be back before that returns.
func (s *httpSession) answering(c *call, f *flight, again bool, unread func(context.Context, string)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.by == f {
		c.final, c.replayed, c.unread = c.n, again, unread
	}
}

// crossed is Reply.Unread of the request if its answer was written, else nil. It is so
// once.
func (s *httpSession) crossed(id json.RawMessage) func(context.Context, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range slices.Backward(s.calls) {
		if idKey(c.id) != idKey(id) {
			continue
		}
		unread := c.unread
		if c.final < 0 || c.by != nil {
			return nil
		}
		c.unread = nil
		return unread
	}
	return nil
}

// settled notes that f has done with the call.
func (s *httpSession) settled(c *call, f *flight, written bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.by != f {
		return
	}
	c.by = nil
	if !written {
		c.final, c.replayed = -1, false
	}
}

// takeOver makes f what answers the call, and ends what did before.
func (s *httpSession) takeOver(ctx context.Context, c *call, f *flight) {
	s.mu.Lock()
	before := c.by
	c.by = f
	s.mu.Unlock()
	if before != nil {
		before.cancel(ErrClosed)
		settle(ctx, []*flight{before}, cancelGrace) // so that its question is left before it is asked again
	}
}

// giveUp notes that the client wants no answer of the call. Its stream ends without
// one, for which libraries come back by themselves: it must not wait for the run again.
func (s *httpSession) giveUp(id json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given.add(id)
}

// gaveUp reports whether the event id names a call that was given up: another one that
// waits for the same run has a stream of its own.
func (s *httpSession) gaveUp(at *eventID) bool {
	name, _, _ := strings.Cut(strings.TrimPrefix(at.mark, "."), ".")
	id, err := base64.RawURLEncoding.DecodeString(name)
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.given.has(id)
}

// want is for a call that begins, by an id that may have been of another.
func (s *httpSession) want(id json.RawMessage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given.drop(id)
}

// again returns the calls of a run whose answer a client lacks that was told of
// event n, and wants.
func (s *httpSession) again(run string, n int64) []*call {
	s.mu.Lock()
	defer s.mu.Unlock()
	var calls []*call
	for _, c := range s.calls {
		if c.run == run && run != "" && !c.replayed && (c.final < 0 || n < c.final) && !s.given.has(c.id) {
			calls = append(calls, c)
		}
	}
	return calls
}

// dropped returns the call of that id whose answer was never written, the run that
// it waited for and the event that its client was told of.
func (s *httpSession) dropped(id json.RawMessage) (c *call, run string, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range slices.Backward(s.calls) {
		if idKey(c.id) == idKey(id) {
			if c.final >= 0 || c.by != nil {
				return nil, "", 0
			}
			return c, c.run, c.n
		}
	}
	return nil, "", 0
}

// unanswered lists the runs whose answer was never written.
func (s *httpSession) unanswered() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var runs []string
	for _, c := range s.calls {
		if c.final < 0 {
			runs = append(runs, c.run)
		}
	}
	return runs
}

// listen makes a stream of the session's and returns what tells it to end: of
// streams for whatever the server says there is one, the newest. One that came
// back for an answer which it had leaves that one alone.
func (s *httpSession) listen(st *stream, back bool) *listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := &listener{st: st, replaced: make(chan struct{})}
	if back {
		l.spare = s.listener != nil
		if len(s.spare) >= maxStreams-1 {
			close(s.spare[0].replaced)
			s.spare = s.spare[1:]
		}
		s.spare = append(s.spare, l)
		return l
	}
	if s.listener != nil {
		close(s.listener.replaced)
	}
	s.listener = l
	return l
}

func (s *httpSession) unlisten(l *listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listener == l {
		s.listener = nil
	}
	s.spare = slices.DeleteFunc(s.spare, func(other *listener) bool { return other == l })
}

// asking gives a request the means to ask its client.
func (s *httpSession) asking(req *Request, st *stream) {
	req.Ask = s.ask(st)
}

// ask is how the client is asked something on the stream of its call, or nil if
// it takes no stream. A question that is open keeps the session alive.
func (s *httpSession) ask(st *stream) AskFunc {
	if !st.events {
		return nil
	}
	return func(ctx context.Context, id, method string, params json.RawMessage) (Answer, error) {
		if !s.enter() {
			return Answer{}, ErrClosed
		}
		defer s.leave()
		return s.asks.ask(ctx, s.gone, id, method, params, func(line []byte) error { return s.say(st, line) })
	}
}

// say writes a message on the stream of a call, or when that has ended on the
// one that the client keeps for what belongs to no request.
func (s *httpSession) say(st *stream, line []byte) error {
	err := st.notify(line)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	l := s.listener
	s.mu.Unlock()
	if l == nil {
		return err
	}
	return l.st.notify(line)
}
