package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A call is one call of a workflow's tool under an idempotency key, which is made
// again, at whichever replica lives, until its result is there.
type call struct {
	workflow string
	key      string
	input    string // the workflow's one input, label
	token    string
	result   string // the text of the result
	failed   bool
	attempts int
}

// make calls the replicas in turn, beginning with the first, until one answers.
func (c *call) make(ctx context.Context, t *testing.T, replicas ...replica) error {
	t.Helper()
	web := client(t)
	var last error
	for ctx.Err() == nil {
		r := replicas[c.attempts%len(replicas)]
		c.attempts++
		if last = c.once(ctx, web, r); last == nil {
			return nil
		}
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return fmt.Errorf("call %s: %w", c.key, last)
}

// once makes the call as a client of 2025-06-18 and later revisions does who holds it open.
func (c *call) once(ctx context.Context, web *http.Client, r replica) error {
	base, err := r.base(ctx)
	if err != nil {
		return err
	}
	req, err := c.request(ctx, base)
	if err != nil {
		return err
	}
	return c.send(web, req)
}

func (c *call) send(web *http.Client, req *http.Request) error {
	resp, err := web.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	return c.take(resp.StatusCode, string(raw))
}

// request is the call for the server at base.
func (c *call) request(ctx context.Context, base string) (*http.Request, error) {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"relavium_%s","arguments":{"label":%q},"_meta":{`+
		`"relavium/idempotencyKey":%q,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"load","version":"0"},"io.modelcontextprotocol/clientCapabilities":{}}}}`,
		c.workflow, c.input, c.key)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/mcp", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Host = "flows.example"
	for key, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + c.token,
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "relavium_" + c.workflow,
		"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "https",
	} {
		req.Header.Set(key, value)
	}
	return req, nil
}

// take reads the result from a body, be it JSON or a stream of events.
func (c *call) take(status int, body string) error {
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "data:"))
		var message struct {
			Result *struct {
				Content []struct{ Text string }
				IsError bool
			}
		}
		if json.Unmarshal([]byte(line), &message) != nil || message.Result == nil {
			continue
		}
		var text strings.Builder
		for _, content := range message.Result.Content {
			text.WriteString(content.Text)
		}
		if message.Result.IsError && strings.Contains(text.String(), "has lost its database for now and started nothing") {
			return errors.New(text.String()) // whoever calls again comes to the other
		}
		c.result, c.failed = text.String(), message.Result.IsError
		return nil
	}
	return fmt.Errorf("%d %.300s", status, body)
}
