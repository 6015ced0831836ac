package models

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/relavium/relavium-serve/egress"
	"github.com/relavium/relavium-serve/engine/agent"
)

// maxRetryAfter bounds what a provider may ask to wait for.
const maxRetryAfter = time.Hour

// errCut says that a stream ended before its last event.
var errCut = errors.New("the stream ended before the turn did")

// A failure is a turn that failed.
type failure struct {
	ctx context.Context //nolint:containedctx // of the one turn
	x   *exchange
	a   *assembly
}

// told is an error with the text of another, bounded and without the key. It unwraps
// to what is safe to match.
type told struct {
	text  string
	cause error
}

func (t *told) Error() string { return t.text }
func (t *told) Unwrap() error { return t.cause }

// said makes an error of what a provider or an SDK said.
func (f failure) said(text string, cause error) error {
	if f.x.key != "" {
		text = strings.ReplaceAll(text, f.x.key, "[key]")
	}
	if len(text) > maxText {
		text = text[:maxText]
	}
	return &told{text: strings.ToValidUTF8(text, "\uFFFD"), cause: cause}
}

// cancelled tells whether the caller ended the turn, or its time was up.
func (f failure) cancelled() bool { return f.ctx.Err() != nil }

// tell makes the error of the turn. What the caller did comes first, then what the
// policy or the network did, then what the provider said.
func (f failure) tell(req *agent.Request, err error) *agent.ModelError {
	e := f.kind(err)
	e.Provider, e.Model = req.Provider, req.Model
	e.Streamed, e.Usage = f.a.streamed, f.a.usage
	f.x.mu.Lock()
	e.Status = f.x.status
	f.x.mu.Unlock()
	if e.Status == http.StatusOK {
		e.Status = 0
	}
	return e
}

func (f failure) kind(err error) *agent.ModelError {
	if f.cancelled() {
		return f.ended()
	}
	f.x.mu.Lock()
	broken, status, said, after := f.x.broken, f.x.status, f.x.said, f.x.after
	f.x.mu.Unlock()
	if e, ok := errors.AsType[*agent.ModelError](err); ok {
		if e.Err != nil {
			e.Err = f.said(e.Err.Error(), nil)
		}
		if e.RetryAfter == 0 {
			e.RetryAfter = after
		}
		return e
	}
	switch {
	case status >= http.StatusBadRequest:
		return f.status(status, said, after)
	case errors.Is(broken, errStalled):
		return &agent.ModelError{Kind: agent.Timeout, Message: fmt.Sprintf("the stream was silent for %v", f.x.idle), Err: errStalled}
	case errors.Is(broken, context.DeadlineExceeded):
		return &agent.ModelError{Kind: agent.Timeout, Message: "no answer within the time limit of the connection", Err: f.said(broken.Error(), context.DeadlineExceeded)}
	case broken != nil:
		return f.network(broken)
	case errors.Is(err, errCut):
		return &agent.ModelError{Kind: agent.Transport, Message: errCut.Error(), Err: errCut}
	}
	return &agent.ModelError{Kind: agent.Transport, Message: "the answer is not what this API sends", Err: f.said(err.Error(), nil)}
}

// ended tells a deadline from a cancel by the cause.
func (f failure) ended() *agent.ModelError {
	cause := context.Cause(f.ctx)
	deadline := errors.Is(cause, context.DeadlineExceeded) ||
		errors.Is(f.ctx.Err(), context.DeadlineExceeded) && !errors.Is(cause, context.Canceled)
	if deadline {
		return &agent.ModelError{Kind: agent.Timeout, Message: "the time for the turn was up", Err: cause}
	}
	return &agent.ModelError{Kind: agent.Cancelled, Message: "the turn was cancelled", Err: cause}
}

// network tells what egress refused from what the network did.
func (f failure) network(err error) *agent.ModelError {
	e := &agent.ModelError{Kind: agent.Transport, Message: "the connection was lost", Err: f.said(err.Error(), err)}
	denied, isDenied := errors.AsType[*egress.DeniedError](err)
	redirect, isRedirect := errors.AsType[*egress.RedirectError](err)
	large, isLarge := errors.AsType[*egress.TooLargeError](err)
	connect, isConnect := errors.AsType[*egress.ConnectError](err)
	resolve, isResolve := errors.AsType[*egress.ResolveError](err)
	switch {
	case isDenied:
		e.Kind, e.Message = agent.BadRequest, denied.Error()
	case isRedirect:
		e.Kind = agent.BadRequest
		e.Message = fmt.Sprintf("answered with a redirect (%d), which is not followed: set base_url to the final address", redirect.Status)
	case isLarge:
		e.Kind, e.Message = agent.Unknown, large.Error()
	case isConnect:
		e.Message = connect.Error()
	case isResolve:
		e.Message = resolve.Error()
	}
	return e
}

// status tells what an HTTP status means.
func (f failure) status(status int, said string, after time.Duration) *agent.ModelError {
	e := &agent.ModelError{Status: status, RetryAfter: after, Err: f.said(strconv.Itoa(status)+": "+said, nil)}
	code := errorCode([]byte(said))
	switch {
	case code.is("content_filter", "content_policy_violation", "content_policy"):
		e.Kind, e.Message = agent.ContentFilter, "the provider's content filter refused the request"
	case code.is("API_KEY_INVALID", "invalid_api_key", "authentication_error", "UNAUTHENTICATED"):
		e.Kind, e.Message = agent.Auth, "the provider does not accept the key"
	case code.is("context_length_exceeded"):
		e.Kind, e.Message = agent.BadRequest, "the conversation is longer than the model takes"
	default:
		e.Kind, e.Message = byStatus(status)
	}
	if e.RetryAfter == 0 {
		e.RetryAfter = code.delay
	}
	return e
}

func byStatus(status int) (agent.ErrorKind, string) {
	switch status {
	case http.StatusUnauthorized:
		return agent.Auth, "the provider does not accept the key (401)"
	case http.StatusPaymentRequired:
		return agent.Auth, "the provider asks for payment (402)"
	case http.StatusForbidden:
		return agent.Auth, "the key may not use this model (403)"
	case http.StatusNotFound:
		return agent.BadRequest, "the provider has no such model, or the base URL is not its API's (404)"
	case http.StatusRequestTimeout, http.StatusGatewayTimeout:
		return agent.Timeout, fmt.Sprintf("the provider took too long (%d)", status)
	case http.StatusRequestEntityTooLarge:
		return agent.BadRequest, "the conversation is larger than the provider takes (413)"
	case http.StatusTooManyRequests:
		return agent.RateLimit, "the provider's rate limit is reached (429)"
	}
	if status >= http.StatusInternalServerError {
		return agent.Overloaded, fmt.Sprintf("the provider cannot answer now (%d)", status)
	}
	return agent.BadRequest, fmt.Sprintf("the provider refuses the request (%d)", status)
}

// event tells what an error event in a stream means. Its text is the event's data.
func event(said string) *agent.ModelError {
	e := &agent.ModelError{Err: errors.New(said)}
	code := errorCode([]byte(said))
	switch {
	case code.status >= http.StatusBadRequest:
		e.Kind, e.Message = byStatus(code.status)
	case code.is("rate_limit_error", "rate_limit_exceeded", "requests", "tokens", "RESOURCE_EXHAUSTED", "insufficient_quota"):
		e.Kind, e.Message = byStatus(http.StatusTooManyRequests)
	case code.is("authentication_error", "invalid_api_key", "permission_error", "billing_error"):
		e.Kind, e.Message = agent.Auth, "the provider does not accept the key"
	case code.is("content_filter", "content_policy_violation"):
		e.Kind, e.Message = agent.ContentFilter, "the provider's content filter stopped the answer"
	case code.is("invalid_request_error", "not_found_error", "request_too_large"):
		e.Kind, e.Message = agent.BadRequest, "the provider refuses the request"
	case code.is("timeout_error"):
		e.Kind, e.Message = agent.Timeout, "the provider took too long"
	default: // overloaded_error, api_error, server_error and what is new
		e.Kind, e.Message = agent.Overloaded, "the provider broke off the answer"
	}
	e.RetryAfter = code.delay
	return e
}

// A saidCode is what is machine-readable in an error body.
type saidCode struct {
	names  []string
	status int
	delay  time.Duration
}

func (c saidCode) is(names ...string) bool {
	for _, have := range c.names {
		if slices.Contains(names, have) {
			return true
		}
	}
	return false
}

// errorCode reads the error bodies of the three APIs, which agree in having an object
// named error (Gemini also sends it in a list of one).
func errorCode(body []byte) saidCode {
	type failed struct {
		Type    string          `json:"type"`
		Code    json.RawMessage `json:"code"`
		Status  string          `json:"status"`
		Details json.RawMessage `json:"details"`
	}
	type envelope struct {
		Error failed `json:"error"`
	}
	var one envelope
	if json.Unmarshal(body, &one) != nil {
		var list []envelope
		if json.Unmarshal(body, &list) != nil || len(list) == 0 {
			return saidCode{}
		}
		one = list[0]
	}
	e := one.Error
	var details []struct { // Gemini's; Anthropic's is an object and says nothing more
		Reason     string `json:"reason"`
		RetryDelay string `json:"retryDelay"`
	}
	if json.Unmarshal(e.Details, &details) != nil {
		details = nil
	}
	c := saidCode{names: []string{e.Type, e.Status}}
	var text string
	switch {
	case json.Unmarshal(e.Code, &text) == nil:
		c.names = append(c.names, text)
	case json.Unmarshal(e.Code, &c.status) != nil:
		c.status = 0
	}
	for _, d := range details {
		c.names = append(c.names, d.Reason)
		if v, err := time.ParseDuration(d.RetryDelay); err == nil && v > 0 {
			c.delay = min(v, maxRetryAfter)
		}
	}
	return c
}

// retryAfter reads Retry-After (RFC 9110 10.2.3) and the finer form of it that
// providers send.
func retryAfter(h http.Header, now time.Time) time.Duration {
	if ms, err := strconv.ParseFloat(h.Get("Retry-After-Ms"), 64); err == nil && ms > 0 && ms < 1e12 {
		return min(time.Duration(ms*float64(time.Millisecond)), maxRetryAfter)
	}
	v := strings.TrimSpace(h.Get("Retry-After"))
	if s, err := strconv.ParseFloat(v, 64); err == nil {
		if s <= 0 || s > 1e9 {
			return 0
		}
		return min(time.Duration(s*float64(time.Second)), maxRetryAfter)
	}
	if at, err := http.ParseTime(v); err == nil && at.After(now) {
		return min(at.Sub(now), maxRetryAfter)
	}
	return 0
}
