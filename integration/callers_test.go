package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// patient is a workflow that waits for a person.
const patient = `schema_version: '1.0'
workflow:
  id: patient
  version: '1.0.0'
  name: Patient
  description: Waits for a person.
  trigger: {type: mcp_call}
  inputs:
    - {name: who, type: string, required: true}
  nodes:
    - {id: start, type: input}
    - {id: ask, type: human_gate, gate_type: approval, message_template: 'Go on?'}
    - {id: say, type: transform, transform: 'inputs.who + " " + run.outputs["ask"].decision'}
    - {id: result, type: output}
  edges:
    - {from: start, to: ask}
    - {from: ask, to: say}
    - {from: say, to: result}
`

// A caller is an HTTP client that makes the same call until it is answered.
type caller struct {
	t      *testing.T
	client *http.Client
	url    string
	who    string
	modern bool

	session string
}

// post sends one message. The body of what it returns is the caller's to close.
func (c *caller) post(ctx context.Context, method, params string) (*http.Response, error) {
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s}}`, method, params)
	if c.modern {
		const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
		body = fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s,%s}}`, method, params, meta)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	switch {
	case c.modern:
		req.Header.Set("MCP-Protocol-Version", "2026-07-28")
		req.Header.Set("Mcp-Method", method)
		req.Header.Set("Mcp-Name", "relavium_patient")
	case c.session != "":
		req.Header.Set("Mcp-Session-Id", c.session)
	}
	return c.client.Do(req)
}

// initialize gets a session, which clients of 2026-07-28 have not.
func (c *caller) initialize(ctx context.Context) error {
	if c.modern {
		return nil
	}
	c.session = ""
	resp, err := c.post(ctx, "initialize", `"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"caller","version":"1"}`)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	c.session = resp.Header.Get("Mcp-Session-Id")
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// call makes the call; waiting is told once the server has told of the gate. An
// error says that the connection broke first.
func (c *caller) call(ctx context.Context, waiting func()) (json.RawMessage, error) {
	resp, err := c.post(ctx, "tools/call", fmt.Sprintf(`"name":"relavium_patient","arguments":{"who":%q}`, c.who))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", resp.StatusCode)
	}
	lines := bufio.NewReader(resp.Body)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return nil, err
		}
		text, ok := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		if !ok {
			text = strings.TrimSpace(line)
		}
		var m struct {
			Method string
			Result json.RawMessage
		}
		switch {
		case !strings.HasPrefix(text, "{"):
		case json.Unmarshal([]byte(text), &m) != nil:
			return nil, errors.New("half a message")
		case m.Method == "notifications/relavium/human_gate":
			waiting()
		case m.Result != nil:
			return m.Result, nil
		}
	}
}

// TestFiftyCallersThroughKillNine kills the server while 50 clients of both eras
// wait, and starts it again: each calls again, is answered once, with what it
// asked for, and there are 50 runs.
func TestFiftyCallersThroughKillNine(t *testing.T) {
	t.Parallel()
	p := install(t, anyAnswer).project(t, "project", map[string]string{"patient": patient})
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	server := p.serveHTTP(t, "--publish", "patient")
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 50}}
	defer client.CloseIdleConnections()
	callers := make([]*caller, 50)
	for i := range callers {
		callers[i] = &caller{t: t, client: client, url: server.url, who: fmt.Sprintf("caller %d", i), modern: i%2 == 0}
	}
	var waiting, lost sync.WaitGroup
	waiting.Add(len(callers))
	for _, c := range callers {
		lost.Go(func() {
			waits := sync.OnceFunc(waiting.Done)
			defer waits()
			if err := c.initialize(ctx); err != nil {
				t.Error(err)
			}
			if result, err := c.call(ctx, waits); err == nil {
				t.Errorf("%s was answered by a server that was killed: %s", c.who, result)
			}
		})
	}
	waiting.Wait()
	server.end(os.Kill)
	lost.Wait()
	client.CloseIdleConnections()

	server = p.serveHTTP(t, "--publish", "patient")
	var answered sync.WaitGroup
	waiting.Add(len(callers))
	for _, c := range callers {
		answered.Go(func() {
			c.url = server.url
			waits := sync.OnceFunc(waiting.Done)
			defer waits()
			if err := c.initialize(ctx); err != nil {
				t.Error(err)
			}
			raw, err := c.call(ctx, waits)
			if err != nil {
				t.Errorf("%s, again: %v", c.who, err)
				return
			}
			var got struct {
				Meta              map[string]any `json:"_meta"`
				StructuredContent map[string]string
			}
			decode(t, raw, &got)
			if want := c.who + " approved"; got.StructuredContent["result"] != want || got.Meta["relavium/joined"] != true {
				t.Errorf("%s, again: %s, want %q joined", c.who, raw, want)
			}
		})
	}
	waiting.Wait()
	for _, r := range p.runs(t) {
		p.approve(t, r.ID)
	}
	answered.Wait()
	runs := p.runs(t)
	for i := range runs {
		if runs[i].State != "completed" {
			t.Errorf("run %s is %s, want completed", runs[i].ID, runs[i].State)
		}
	}
	if len(runs) != len(callers) {
		t.Errorf("%d runs for %d callers", len(runs), len(callers))
	}
}

// TestStopWithCallers asks a server to stop while 20 calls wait and 100 streams
// are open: each call is told, each stream ends, and each run goes on in the next
// process.
func TestStopWithCallers(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no signal that asks a process to stop")
	}
	t.Parallel()
	p := install(t, anyAnswer).project(t, "project", map[string]string{"patient": patient})
	ctx, cancel := context.WithTimeout(t.Context(), 5*patience)
	defer cancel()
	server := p.serveHTTP(t, "--publish", "patient")
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	var open, ended, calls, told sync.WaitGroup
	for i := range 100 {
		open.Add(1)
		ended.Go(func() {
			c := &caller{t: t, client: client, url: server.url, modern: i%2 == 0}
			resp, err := c.stream(ctx)
			open.Done()
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if _, err := io.Copy(io.Discard, resp.Body); err != nil {
				t.Errorf("a stream ended with %v, want its end", err)
			}
		})
	}
	open.Wait()
	for i := range 20 {
		calls.Add(1)
		told.Go(func() {
			c := &caller{t: t, client: client, url: server.url, who: fmt.Sprintf("caller %d", i), modern: i%2 == 0}
			waits := sync.OnceFunc(calls.Done)
			defer waits()
			if err := c.initialize(ctx); err != nil {
				t.Error(err)
			}
			raw, err := c.call(ctx, waits)
			if err != nil || !strings.Contains(string(raw), "server is stopping") || !strings.Contains(string(raw), `"isError":true`) {
				t.Errorf("%s was told %s, %v, want that the server is stopping", c.who, raw, err)
			}
		})
	}
	calls.Wait()
	server.end(os.Interrupt)
	told.Wait()
	ended.Wait()

	p.serveHTTP(t, "--publish", "patient")
	for _, r := range p.runs(t) {
		if r.State != "waiting" {
			t.Errorf("run %s is %s after the restart, want waiting", r.ID, r.State)
		}
		p.approve(t, r.ID)
		p.await(t, r.ID, "completed")
	}
}

// stream opens a stream for what belongs to no call, in the way of the caller's era.
func (c *caller) stream(ctx context.Context) (*http.Response, error) {
	if c.modern {
		return c.post(ctx, "subscriptions/listen", `"notifications":{"toolsListChanged":true}`)
	}
	if err := c.initialize(ctx); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Mcp-Session-Id", c.session)
	return c.client.Do(req)
}
