package transport

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
)

const (
	// maxSessionID bounds a session id that is looked at; ours have less than 400
	// bytes, well below what proxies take as a header.
	maxSessionID = 1 << 10
	// maxClientName bounds what is kept of a client's name, in bytes.
	maxClientName = 128
	// maxMark bounds the ids and tokens that event ids carry, in bytes of JSON.
	maxMark = 256
	// maxReason bounds what is passed on of why a request was cancelled, in bytes.
	maxReason = 256

	// hearEvery is how often it is asked what other processes wrote, where there are
	// sessions.
	hearEvery = 250 * time.Millisecond
	// heardKept is how long it is known that a cancel was heard. News reach back less.
	heardKept = 5 * time.Minute
	// forgetEvery is how often what is too old is deleted.
	forgetEvery = 10 * time.Minute

	// The use of a session is noted for other processes when so much of the idle limit
	// has passed since the last note; what is not noted yet is less than noteSlack.
	noteParts = 8
	noteSlack = 4

	// maxPosts bounds the cancels of a session that are written for other processes,
	// in postsPer.
	maxPosts = 120
	postsPer = time.Minute
)

// Shared is how several processes serve the same sessions, whichever of them a
// request reaches: ids are sealed by keys that all have, and what happens to a
// session is written where all read. Session keys are Session.Key. Everything but
// Seal and Open may wait for a store, and all is required.
type Shared struct {
	// Seal encrypts what a session id says; Open reads it again, and false is for what
	// these keys did not seal. Sealed text is visible ASCII.
	Seal func(plain []byte) string
	Open func(sealed string) ([]byte, bool)

	// Seen tells when See last noted a use of the session, zero for never, and whether
	// it was ended.
	Seen func(ctx context.Context, key string) (used time.Time, ended bool, err error)
	// See notes when sessions were last used.
	See func(ctx context.Context, used map[string]time.Time) error
	// End ends the session in all processes.
	End func(ctx context.Context, key string) error
	// Cancel tells all processes that a request of the session is cancelled, which done
	// says that one of them has heeded; id is that of the Cancel that News has.
	Cancel func(ctx context.Context, key, call, reason string, done bool) (id string, err error)
	// Cancelled notes that a cancel was heeded, and Cancelling tells whether one of the
	// session was not yet that was sent since a time.
	Cancelled  func(ctx context.Context, id string) error
	Cancelling func(ctx context.Context, key string, since time.Time) (bool, error)
	// News tells what was written lately, in part again.
	News func(ctx context.Context) (News, error)
	// Forget deletes what was written of sessions before a time.
	Forget func(ctx context.Context, before time.Time) error

	// Reply takes a response to a question that another process asked the session, or
	// nobody. req has the caller and the session alone.
	Reply func(ctx context.Context, req *Request, id string, a Answer)
}

// News is what processes wrote of sessions.
type News struct {
	Ended   []string // keys
	Cancels []Cancel
}

// A Cancel is a request of a session that its client cancelled.
type Cancel struct {
	ID           string
	Session      string // its key
	Call, Reason string // Call is a JSON-RPC id as sent
	Sent         time.Time
}

// sealedSession is what a session id says.
type sealedSession struct {
	Principal string `json:"p"` // digest
	Version   string `json:"v"`
	Client    string `json:"n,omitempty"`
	Asks      string `json:"e,omitempty"` // how the client may be asked: "-", and f for forms, u for pages
	Issued    int64  `json:"t"`           // Unix milliseconds
}

// name gives the session its id.
func (e *endpoint) name(s *httpSession) error {
	shared := e.http.Shared
	if shared == nil {
		s.id = rand.Text()
		return nil
	}
	version, client, capabilities := s.Settled()
	said := sealedSession{Principal: digest(s.principal), Version: version, Client: clipped(client.Name, maxClientName), Issued: s.issued.UnixMilli()}
	if asked := capabilities.Elicitation; asked != nil {
		said.Asks = "-"
		if asked.Form != nil {
			said.Asks += "f"
		}
		if asked.URL != nil {
			said.Asks += "u"
		}
	}
	plain, err := json.Marshal(said)
	if err != nil {
		return err
	}
	s.id = shared.Seal(plain)
	s.key = digest(s.id)
	return nil
}

// digest names something without saying what.
func digest(of string) string {
	sum := sha256.Sum256([]byte(of))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

func clipped(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "")
}

// opened is the session of an id that these keys sealed for the principal, or nil.
func (shared *Shared) opened(id, principal string) *httpSession {
	if len(id) > maxSessionID {
		return nil
	}
	plain, ok := shared.Open(id)
	if !ok {
		return nil
	}
	var said sealedSession
	if json.Unmarshal(plain, &said) != nil || said.Version == "" {
		return nil
	}
	if subtle.ConstantTimeCompare([]byte(said.Principal), []byte(digest(principal))) == 0 {
		return nil
	}
	s := newSession(principal)
	s.id, s.key, s.adopted, s.issued = id, digest(id), true, time.UnixMilli(said.Issued)
	var capabilities mcp.ClientCapabilities
	if said.Asks != "" {
		capabilities.Elicitation = &mcp.ElicitationCapability{}
		if strings.Contains(said.Asks, "f") {
			capabilities.Elicitation.Form = &struct{}{}
		}
		if strings.Contains(said.Asks, "u") {
			capabilities.Elicitation.URL = &struct{}{}
		}
	}
	s.Settle(said.Version, mcp.Implementation{Name: said.Client}, capabilities)
	return s
}

// adopt makes a session known here that another process made, or that was forgotten
// here since; nil if it is none of the caller's, or over.
func (e *endpoint) adopt(ctx context.Context, id string, c *Caller) (*httpSession, error) {
	shared := e.http.Shared
	if shared == nil {
		return nil, nil //nolint:nilnil // no session is no error
	}
	s := shared.opened(id, c.Principal)
	if s == nil || e.tooOld(s) {
		return nil, nil //nolint:nilnil // no session is no error
	}
	used, ended, err := shared.Seen(ctx, s.key)
	if err != nil {
		return nil, err
	}
	idle := cmp.Or(e.http.SessionIdle, DefaultSessionIdle)
	if s.issued.After(used) {
		used = s.issued
	}
	if ended || time.Since(used) > idle+idle/noteSlack {
		return nil, nil //nolint:nilnil // no session is no error
	}
	s.noted = used
	if s = e.add(s); s == nil {
		return nil, errFull
	}
	return s, nil
}

// tooOld reports whether a shared session has reached its age.
func (e *endpoint) tooOld(s *httpSession) bool {
	return e.http.Shared != nil && time.Since(s.issued) > cmp.Or(e.http.SessionAge, DefaultSessionAge)
}

// note tells other processes of sessions that are used.
func (e *endpoint) note(ctx context.Context, all []*httpSession, limit time.Duration) {
	if e.http.Shared == nil {
		return
	}
	used := map[string]time.Time{}
	var noted []*httpSession
	now := time.Now()
	for _, s := range all {
		at, idle := s.idleSince()
		if !idle {
			at = now
		}
		if at.Sub(s.noted) >= limit/noteParts {
			used[s.key] = at
			noted = append(noted, s)
		}
	}
	if len(used) == 0 {
		return
	}
	if err := e.http.Shared.See(ctx, used); err != nil {
		e.http.Logger.WarnContext(ctx, "note the use of sessions", "error", err)
		return
	}
	for _, s := range noted {
		s.noted = used[s.key]
	}
}

// hearOthers does in this process what others wrote of its sessions.
func (e *endpoint) hearOthers(ctx context.Context) {
	if e.http.Shared == nil {
		return
	}
	t := time.NewTicker(hearEvery)
	defer t.Stop()
	defer e.heeding.Wait()
	var cleared time.Time
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		e.mu.Lock()
		idle := len(e.sessions) == 0
		e.mu.Unlock()
		if idle {
			continue
		}
		news, err := e.http.Shared.News(ctx)
		if err != nil {
			if !failing && ctx.Err() == nil {
				e.http.Logger.WarnContext(ctx, "hear of sessions", "error", err)
			}
			failing = true
			continue
		}
		failing = false
		e.heard(ctx, &news)
		if now := time.Now(); now.Sub(cleared) > forgetEvery {
			cleared = now
			if err := e.http.Shared.Forget(ctx, now.Add(-cmp.Or(e.http.SessionAge, DefaultSessionAge))); err != nil {
				e.http.Logger.WarnContext(ctx, "forget sessions", "error", err)
			}
		}
	}
}

func (e *endpoint) heard(ctx context.Context, news *News) {
	if len(news.Ended)+len(news.Cancels) == 0 {
		return
	}
	byKey := map[string]*httpSession{}
	e.mu.Lock()
	for _, s := range e.sessions {
		byKey[s.key] = s
	}
	maps.DeleteFunc(e.posted, func(_ string, at time.Time) bool { return time.Since(at) > heardKept })
	e.mu.Unlock()
	for _, key := range news.Ended {
		if s := byKey[key]; s != nil {
			e.forget(s)
		}
	}
	for _, c := range news.Cancels {
		if s := byKey[c.Session]; s != nil && e.first(c.ID) {
			e.heeding.Go(func() { e.heed(ctx, s, &c) }) // a call that lets go late holds up no other
		}
	}
}

// heed does what a cancel wants that another process wrote.
func (e *endpoint) heed(ctx context.Context, s *httpSession, c *Cancel) {
	if !e.cancelled(ctx, &Caller{Principal: s.principal}, s, json.RawMessage(c.Call), c.Reason, c.Sent) {
		return
	}
	if err := e.http.Shared.Cancelled(ctx, c.ID); err != nil {
		e.http.Logger.WarnContext(ctx, "heed a cancel", "error", err)
	}
}

// first reports whether a cancel is new here, once.
func (e *endpoint) first(cancel string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, heard := e.posted[cancel]
	e.posted[cancel] = time.Now()
	return !heard
}

// passCancel writes a cancel for the process that answers the request, which may be
// another, or another too: it may not know yet that its stream broke.
func (e *endpoint) passCancel(ctx context.Context, s *httpSession, call json.RawMessage, reason string, done bool) {
	if s.key == "" || len(call) == 0 || len(call) > maxCallID || !s.mayPost() {
		return
	}
	id, err := e.http.Shared.Cancel(context.WithoutCancel(ctx), s.key, string(call), clipped(reason, maxReason), done)
	if err != nil {
		e.http.Logger.WarnContext(ctx, "pass on a cancel", "error", err)
		return
	}
	e.first(id)
}

// afterCancels lets the requests of the session that were cancelled before this one
// was sent end first, wherever they are answered, so that it finds what that did.
func (e *endpoint) afterCancels(ctx context.Context, s *httpSession) {
	if s.key == "" {
		return
	}
	since := time.Now()
	t := time.NewTicker(hearEvery / 5)
	defer t.Stop()
	for time.Since(since) < cancelGrace {
		pending, err := e.http.Shared.Cancelling(ctx, s.key, since.Add(-cancelGrace))
		if err != nil || !pending {
			return // a store that is gone is met by whoever starts the run
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (s *httpSession) mayPost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.postsIn) > postsPer {
		s.postsIn, s.posts = now, 0
	}
	s.posts++
	return s.posts <= maxPosts
}

// passReply gives a response on which nobody waits here to whoever knows the question.
func (e *endpoint) passReply(ctx context.Context, by *Caller, s *httpSession, r *reply, at time.Time) {
	if s.key == "" {
		return
	}
	req := &Request{Principal: by.Principal, Grant: by.Grant, Session: &s.Session}
	e.http.Shared.Reply(context.WithoutCancel(ctx), req, r.id, r.answer(at))
}

// endMark is in the event id of an answer.
const endMark = ".end"

// An eventID is where a client's stream of a call stood: "<run>.<n>", in a shared
// session with ".<call>.<token>.<seal>" behind it, by which a process that does not
// know the call can answer it again, and ".end" in place of that at the answer.
type eventID struct {
	run  string
	n    int64
	mark string // from the second dot on, or ""
}

func place(id string) (at eventID, ok bool) {
	run, rest, _ := strings.Cut(id, ".")
	number, _, marked := strings.Cut(rest, ".")
	n, err := strconv.ParseInt(number, 10, 64)
	if run == "" || err != nil || n < 0 {
		return eventID{}, false
	}
	at = eventID{run: run, n: n}
	if marked {
		at.mark = rest[len(number):]
	}
	return at, true
}

// mark names a call in event ids of its session; it is "" where that would be long.
// The session's id is the key of its seal: only who has it can use it.
func (s *httpSession) mark(run string, c *call) string {
	if s.key == "" || len(c.id)+len(c.token) > maxMark {
		return ""
	}
	said := "." + base64.RawURLEncoding.EncodeToString(c.id) + "." + base64.RawURLEncoding.EncodeToString(c.token)
	return said + "." + s.seal(run, said)
}

func (s *httpSession) seal(run, said string) string {
	h := hmac.New(sha256.New, []byte(s.id))
	_, _ = h.Write([]byte(run + said)) // a hash takes everything
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:12])
}

// marked is the call that the event id names, if the session does not know it here.
func (s *httpSession) marked(at *eventID) *call {
	end := strings.LastIndexByte(at.mark, '.')
	if s.key == "" || end < 1 || len(at.mark) > 2*maxMark {
		return nil
	}
	said := at.mark[:end]
	if subtle.ConstantTimeCompare([]byte(at.mark[end+1:]), []byte(s.seal(at.run, said))) == 0 {
		return nil
	}
	id, token, _ := strings.Cut(said[1:], ".")
	c := &call{method: string(mcp.MethodToolsCall), final: -1}
	var err error
	if c.id, err = base64.RawURLEncoding.DecodeString(id); err != nil {
		return nil
	}
	if c.token, err = base64.RawURLEncoding.DecodeString(token); err != nil || len(c.token) == 0 {
		c.token = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.given, idKey(c.id)) || slices.ContainsFunc(s.calls, func(known *call) bool { return known.run == at.run && idKey(known.id) == idKey(c.id) }) {
		return nil
	}
	return c
}

// tracks is how the answering of the call tells what its stream told. A stream that
// goes on after event told does not go back.
func (s *httpSession) tracks(c *call, st *stream, told int64) func(run string, n int64) {
	mark := ""
	return func(run string, n int64) {
		n = max(n, told)
		s.track(c, run, n)
		if mark == "" {
			mark = s.mark(run, c)
		}
		st.at(run, n, mark)
	}
}

// errFull says that there is no room to know one more session.
var errFull = errors.New("too many sessions")
