package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

const metadataPath = "/.well-known/oauth-protected-resource"

// errRevoked is the cause when a caller is not admitted any more. What its calls
// wait for goes on without them.
var errRevoked = fmt.Errorf("transport: the caller is not admitted any more: %w", ErrClosed)

// A share is what one principal takes of what there is for all.
type share struct {
	running int // requests
	held    int // bytes of their bodies
}

// callerShare is the part of the whole that one principal may take, so that it
// leaves something to others.
const callerShare = 4

type admittedFunc func(w http.ResponseWriter, r *http.Request, c *Caller)

// admitted lets requests of known callers through, and ends them with their
// caller's admission.
func (e *endpoint) admitted(next admittedFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if e.http.Admit == nil {
			next(w, r, &Caller{Principal: e.http.Principal})
			return
		}
		c, refused := e.http.Admit(r)
		if refused != nil {
			refused.write(w, nil)
			return
		}
		if !e.enter(c.Principal) {
			(&Refusal{Status: http.StatusTooManyRequests, After: time.Second, Text: "too many requests of this caller at once"}).write(w, nil)
			return
		}
		defer e.leave(c.Principal)
		if c.Watch != nil {
			ctx, end := context.WithCancelCause(r.Context())
			defer end(nil)
			stop := c.Watch(func() { end(errRevoked) })
			defer stop()
			r = r.WithContext(ctx)
		}
		next(w, r, &c)
	}
}

// write answers with the refusal.
func (f *Refusal) write(w http.ResponseWriter, id []byte) {
	f.head(w.Header())
	failed(w, f.Status, id, &Error{Code: CodeInvalidRequest, Message: f.Text})
}

// head sets what the refusal has in a header.
func (f *Refusal) head(h http.Header) {
	if f.Challenge != "" {
		h.Set("WWW-Authenticate", f.Challenge)
	}
	if f.After > 0 {
		h.Set("Retry-After", strconv.Itoa(int((f.After+time.Second-1)/time.Second)))
	}
}

// permitted reports whether the request may be answered; if not it was refused.
func (e *endpoint) permitted(w http.ResponseWriter, req *Request) bool {
	if e.http.Permit == nil {
		return true
	}
	fault := e.http.Permit(req)
	if fault == nil {
		return true
	}
	status := http.StatusForbidden
	if f := fault.Refusal; f != nil {
		f.head(w.Header())
		status = f.Status
	}
	failed(w, status, req.ID, fault)
	return false
}

// enter counts a request of a principal, within its share.
func (e *endpoint) enter(principal string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.shares[principal]
	if s == nil {
		s = &share{}
		e.shares[principal] = s
	}
	if s.running >= max(cmp.Or(e.http.MaxRequests, DefaultMaxRequests)/callerShare, 1) {
		return false
	}
	s.running++
	return true
}

func (e *endpoint) leave(principal string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.shares[principal]; s != nil {
		if s.running--; s.running <= 0 {
			delete(e.shares, principal)
		}
	}
}

// hold takes n bytes of the bodies that all requests, and those of the
// principal, may hold.
func (e *endpoint) hold(principal string, n int) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	most := cmp.Or(e.http.MaxHeld, DefaultMaxHeld)
	if e.held+n > most {
		return false
	}
	if s := e.shares[principal]; s != nil {
		if s.held+n > max(most/callerShare, cmp.Or(e.http.MaxBody, DefaultMaxBody)) {
			return false
		}
		s.held += n
	}
	e.held += n
	return true
}

func (e *endpoint) letGo(principal string, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held -= n
	if s := e.shares[principal]; s != nil {
		s.held -= n
	}
}

// expiry fires when a stream of the caller that waits for no call has to end.
func (c *Caller) expiry() (fires <-chan time.Time, stop func()) {
	if c.Expires.IsZero() {
		return nil, func() {}
	}
	t := time.NewTimer(time.Until(c.Expires))
	return t.C, func() { t.Stop() }
}

// hangup is the cause with which the end of a connection ends a request.
func hangup(base context.Context, usual error) error {
	for _, cause := range []error{ErrStopping, errRevoked} {
		if errors.Is(context.Cause(base), cause) {
			return cause
		}
	}
	return usual
}
