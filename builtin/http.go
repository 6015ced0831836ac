package builtin

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/relavium/relavium-serve/egress"
	"github.com/relavium/relavium-serve/inbound/text"
	"github.com/relavium/relavium-serve/workflows"
)

// Bounds of http_request.
const (
	maxBody        = 1 << 20 // of a request, and of a response as text
	maxURL         = 2048
	maxHTTP        = time.Minute
	idempotencyKey = "Idempotency-Key"
)

// errLate is the cause of a request that took too long.
var errLate = fmt.Errorf("no complete answer in time: %w", context.DeadlineExceeded)

// newHTTPClient is the client of http_request.
func newHTTPClient(opt egress.Options) *http.Client {
	opt.MaxMessage, opt.Timeout, opt.ReturnRedirects = maxBody, maxHTTP, true
	return egress.OpenClient(opt)
}

func (t *Tools) httpRequest() *tool {
	return &tool{
		id: "http_request",
		about: "Sends one HTTPS request to a host that the workflow lists, and only to such; any other host, and http://, ends the run. " +
			"Redirects are not followed: a 3xx is returned with its location. " +
			"Returns status, headers and body; a body that is not text is described in note instead. Text of at most 1 MiB, within 60 seconds.",
		params: []param{
			{name: "method", schema: `{"type":"string","enum":["GET","POST","PUT","DELETE"]}`, about: "what to do", required: true},
			{name: "url", schema: `{"type":"string"}`, about: "absolute https URL, without credentials and fragment", required: true},
			{
				name: "headers", schema: `{"type":"object","additionalProperties":{"type":"string"}}`, secret: isCredential,
				about: "request headers; Host, Cookie, Origin, and what belongs to the connection or to proxies cannot be set",
			},
			{
				name: "body", schema: `{"type":["object","array","string","number","boolean"]}`,
				about: "the body, not for GET: an object or list is sent as JSON, a string as it stands",
			},
		},
		plan: func(_ context.Context, c *workflows.ToolCall, a *arguments) (plan, error) {
			r := &request{method: a.text("method", 16), key: c.Key}
			if a.err == nil && !slices.Contains([]string{"GET", "POST", "PUT", "DELETE"}, r.method) {
				a.wrong("method", "GET, POST, PUT or DELETE")
			}
			rawURL := a.text("url", maxURL)
			if a.err != nil {
				return plan{}, a.err
			}
			var err error
			if r.url, err = allowedURL(c.Workflow, rawURL); err != nil {
				return plan{}, err
			}
			if r.header, err = headersOf(a.values["headers"]); err != nil {
				return plan{}, err
			}
			if err := r.setBody(a.values["body"]); err != nil {
				return plan{}, err
			}
			return plan{
				Admission: workflows.Admission{Repeatable: r.method == http.MethodGet},
				perform:   func(ctx context.Context) (json.RawMessage, error) { return t.send(ctx, r) },
			}, nil
		},
	}
}

// A request is one call of http_request.
type request struct {
	method string
	url    *url.URL // canonical
	header http.Header
	body   []byte // nil is none
	key    string // the call's idempotency key
}

// allowedURL checks a URL against the policy of package egress and the workflow's
// allowedDomains, and returns it in canonical form. Nothing is looked up.
func allowedURL(w *workflows.Workflow, rawURL string) (*url.URL, error) {
	target, err := egress.ParseTarget(rawURL, false)
	if err != nil {
		if scheme, _, _ := strings.Cut(rawURL, ":"); strings.EqualFold(scheme, "http") {
			return nil, denied(reasonInsecure, "only https URLs are requested")
		}
		return nil, refusedURL(err)
	}
	if w == nil || !slices.ContainsFunc(w.Tools.AllowedDomains, func(entry string) bool { return hostPort(entry) == target.HostPort() }) {
		return nil, denied(reasonDomain, "the workflow does not list the host %s", text.Quote(target.HostPort(), 300))
	}
	return target.URL(), nil
}

// hostPort is the canonical host and port of an entry of allowedDomains; the port is
// 443 unless the entry names one. It is empty for an entry that is more than that.
func hostPort(entry string) string {
	if strings.ContainsAny(entry, "/?#@*\\ ") {
		return ""
	}
	target, err := egress.ParseTarget("https://"+entry, false)
	if err != nil {
		return ""
	}
	return target.HostPort()
}

// refusedURL is what a refusal by package egress is to a model: what could be a trick
// is denied, what is merely no URL may be corrected.
func refusedURL(err error) error {
	why := strings.TrimPrefix(err.Error(), "egress: ")
	switch egress.ReasonOf(err) {
	case egress.ReasonURL, egress.ReasonPort:
		return incorrect(`argument "url": %s`, why)
	case egress.ReasonMetadata, egress.ReasonPrivate, egress.ReasonReserved, egress.ReasonLocalPublic, egress.ReasonOrigin:
		return denied(reasonDomain, "%s", why)
	case egress.ReasonScheme, egress.ReasonUserinfo, egress.ReasonFragment, egress.ReasonZone, egress.ReasonNumericHost, egress.ReasonHostname,
		egress.ReasonPlaintext, egress.ReasonTransport, egress.ReasonNoAddress, egress.ReasonLookup, egress.ReasonRedirect, egress.ReasonTooLarge:
	}
	return denied(reasonInsecure, "%s", why)
}

// setBody takes the body as the model gave it.
func (r *request) setBody(raw json.RawMessage) error {
	if raw == nil {
		return nil
	}
	if r.method == http.MethodGet {
		return incorrect(`argument "body": a GET has none`)
	}
	contentType := "application/json"
	r.body = raw
	if raw[0] == '"' {
		var s string
		if json.Unmarshal(raw, &s) != nil {
			return incorrect(`argument "body": want JSON or a string`)
		}
		if r.body = []byte(s); !json.Valid(r.body) {
			contentType = "text/plain; charset=utf-8"
		}
	}
	if len(r.body) > maxBody {
		return incorrect(`argument "body": want at most %d bytes`, maxBody)
	}
	if r.header.Get("Content-Type") == "" {
		r.header.Set("Content-Type", contentType)
	}
	return nil
}

// inTime is a context that ends when a request has taken too long.
func inTime(parent context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(parent, maxHTTP, errLate)
}

// send sends the request, once, on a connection of its own, and reads the answer.
func (t *Tools) send(parent context.Context, r *request) (json.RawMessage, error) {
	ctx, cancel := t.inTime(parent)
	defer cancel()
	var body io.Reader = http.NoBody
	if r.body != nil {
		// A reader that net/http does not know cannot be rewound, and so is never sent twice.
		body = struct{ io.Reader }{bytes.NewReader(r.body)}
	}
	req, err := http.NewRequestWithContext(ctx, r.method, r.url.String(), body)
	if err != nil {
		return nil, fmt.Errorf("builtin: a checked request: %w", err)
	}
	req.Header, req.Close = r.header.Clone(), true
	req.ContentLength = int64(len(r.body))
	if r.method != http.MethodGet && req.Header.Get(idempotencyKey) == "" {
		sum := sha256.Sum256([]byte(r.key))
		req.Header.Set(idempotencyKey, hex.EncodeToString(sum[:16]))
	}
	for name, value := range map[string]string{"User-Agent": "relavium-serve", "Accept-Encoding": "gzip"} {
		if req.Header.Get(name) == "" {
			req.Header.Set(name, value)
		}
	}
	// The transport alone: nothing follows, nothing is remembered.
	resp, err := t.client.Transport.RoundTrip(req)
	if err != nil {
		return nil, httpFault(ctx, err)
	}
	out, err := answer(resp)
	if cause := context.Cause(ctx); err == nil && cause != nil {
		err = cause // a server that saw us leave may have ended the body in good order
	}
	if closeErr := resp.Body.Close(); err == nil && closeErr != nil {
		t.opt.Logger.DebugContext(ctx, "http_request: a body did not close", "error", closeErr)
	}
	if err != nil {
		return nil, httpFault(ctx, err)
	}
	return object(out...)
}

// httpFault says why a request brought no answer.
func httpFault(ctx context.Context, err error) error {
	if fault, ok := errors.AsType[*workflows.ToolError](err); ok {
		return fault
	}
	fault := &workflows.ToolError{
		Fault: workflows.ToolFailed, Reason: "connection", Message: "the connection failed or was lost", Retryable: egress.Unsent(err), Err: err,
	}
	if refusal, ok := errors.AsType[*egress.DeniedError](err); ok && refusal.Reason != egress.ReasonNoAddress {
		return refusedURL(refusal)
	}
	switch reason := egress.ReasonOf(err); {
	case reason == egress.ReasonLookup || reason == egress.ReasonNoAddress:
		fault.Reason, fault.Message = "dns", "the host's name could not be resolved"
	case reason == egress.ReasonTooLarge:
		fault.Reason, fault.Message = "too_large", fmt.Sprintf("the response is larger than %d bytes", maxBody)
	case errors.Is(context.Cause(ctx), errLate) || errors.Is(err, context.DeadlineExceeded):
		fault.Reason, fault.Message, fault.Limit = "deadline", fmt.Sprintf("no complete answer within %s", maxHTTP), maxHTTP
	default:
		if unreachable, ok := errors.AsType[*egress.ConnectError](err); ok {
			fault.Message = strings.TrimPrefix(unreachable.Error(), "egress: ")
		}
	}
	return fault
}
