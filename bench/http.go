package main

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"          //nolint:depguard // what we are measured against
	mcpgo "github.com/mark3labs/mcp-go/server" //nolint:depguard // the same

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish"
	"github.com/relavium/relavium-serve/publish/access"
)

// The two eras: sessions, and requests that stand alone.
const (
	session   = "2025-11-25"
	stateless = "2026-07-28"
)

const meta = `"io.modelcontextprotocol/protocolVersion":"` + stateless + `",` +
	`"io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}`

// newClient keeps a connection for each of many callers.
func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2 * parallel, DisableCompression: true}}
}

// A caller calls one tool in the way of one era.
type caller struct {
	client  *http.Client
	url     string
	era     string
	tool    string
	bearer  string // token to call with; "" means none
	session string // of session's era, once open did
}

// open shakes hands where the era wants it.
func (c *caller) open(ctx context.Context) error {
	if c.era == stateless {
		return nil
	}
	resp, err := c.post(ctx, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"`+session+`","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`)
	if err != nil {
		return err
	}
	c.session = resp.Header.Get(mcp.HeaderSessionID)
	body, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if c.session == "" {
		return fmt.Errorf("initialize is answered without a session: %.200s", body)
	}
	resp, err = c.post(ctx, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// call asks for the tool; more is the members of _meta that it wants besides. The
// caller closes the body.
func (c *caller) call(ctx context.Context, more ...string) (*http.Response, error) {
	if c.era == stateless {
		more = append(more, meta)
	}
	return c.post(ctx, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"`+c.tool+`","arguments":{},"_meta":{`+strings.Join(more, ",")+`}}}`)
}

// once calls and reads the answer.
func (c *caller) once(ctx context.Context) error {
	resp, err := c.call(ctx)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(resp.Body)
	if err = errors.Join(err, resp.Body.Close()); err != nil {
		return err
	}
	if !bytes.Contains(body, []byte(`"content"`)) || bytes.Contains(body, []byte(`"isError":true`)) {
		return fmt.Errorf("the call is answered with %.200s", body)
	}
	return nil
}

func (c *caller) post(ctx context.Context, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if c.bearer != "" {
		req.Header.Set("Authorization", "Bearer "+c.bearer)
	}
	if c.era == stateless {
		req.Header.Set("Mcp-Protocol-Version", stateless)
		req.Header.Set("Mcp-Method", "tools/call")
		req.Header.Set("Mcp-Name", c.tool)
	} else if c.session != "" {
		req.Header.Set("Mcp-Protocol-Version", session)
		req.Header.Set(mcp.HeaderSessionID, c.session)
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		said, _ := io.ReadAll(io.LimitReader(resp.Body, 200))
		return nil, errors.Join(fmt.Errorf("%s: %s", resp.Status, said), resp.Body.Close())
	}
	return resp, nil
}

// crew is a unit that is done by any of the callers that one turn needs, each with
// a session and a connection of its own, all with one client.
func crew(ctx context.Context, first *caller) (func(context.Context) error, error) {
	free, failed := make(chan *caller, parallel), make(chan error, parallel)
	var work sync.WaitGroup
	for range parallel {
		work.Go(func() {
			c := *first
			err := c.open(ctx)
			if err == nil {
				err = c.once(ctx)
			}
			if err != nil {
				failed <- err
			}
			free <- &c
		})
	}
	work.Wait()
	close(failed)
	if err := <-failed; err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		c := <-free
		defer func() { free <- c }()
		return c.once(ctx)
	}, nil
}

// bareHTTP is a tool that does nothing, by mcp-go on its own transport.
func bareHTTP(era string) system {
	return system{
		name: "mcp-go tool, HTTP " + era,
		open: func(ctx context.Context, _ string) (*opened, error) {
			tools := mcpgo.NewMCPServer("bare", "1", mcpgo.WithToolCapabilities(false))
			tools.AddTool(mcp.NewTool("nothing"), func(context.Context, mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return mcp.NewToolResultText("{}"), nil
			})
			l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
			if err != nil {
				return nil, err
			}
			front := mcpgo.NewStreamableHTTPServer(tools, mcpgo.WithStreamableHTTPLogger(quiet()))
			srv := &http.Server{Handler: front, ReadHeaderTimeout: 10 * time.Second}
			served := make(chan error, 1)
			go func() { served <- srv.Serve(l) }()
			client := newClient()
			end := func() error {
				client.CloseIdleConnections()
				err := errors.Join(front.Shutdown(context.WithoutCancel(ctx)), srv.Close())
				if s := <-served; !errors.Is(s, http.ErrServerClosed) {
					err = errors.Join(err, s)
				}
				return err
			}
			once, err := crew(ctx, &caller{client: client, url: "http://" + l.Addr().String() + "/mcp", era: era, tool: "nothing"})
			if err != nil {
				return nil, errors.Join(err, end())
			}
			return &opened{once: once, close: end}, nil
		},
	}
}

// pureHTTP is the workflow of pure, called over HTTP; guarded, with a token.
func pureHTTP(era string, guarded bool) system {
	name := "3 nodes, HTTP " + era
	if guarded {
		name += ", token"
	}
	return system{
		name: name,
		open: func(ctx context.Context, dir string) (*opened, error) {
			at, err := listen(ctx, dir, unexpressed, guarded)
			if err != nil {
				return nil, err
			}
			client := newClient()
			db, err := sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(dir, "serve.db"))+"?_pragma=query_only(ON)")
			if err != nil {
				return nil, errors.Join(err, at.close())
			}
			end := func() error {
				client.CloseIdleConnections()
				return errors.Join(db.Close(), at.close())
			}
			once, err := crew(ctx, &caller{client: client, url: at.url, era: era, tool: at.tool, bearer: at.bearer})
			if err != nil {
				return nil, errors.Join(err, end())
			}
			return &opened{once: once, close: end, pending: unrecorded(db)}, nil
		},
	}
}

// A listener is one published workflow that answers over HTTP in this process.
type listener struct {
	url, tool, bearer string
	close             func() error
}

func listen(ctx context.Context, dir, fragment string, guarded bool) (*listener, error) {
	e, w, err := openEngine(ctx, dir, "  description: One alone.\n  trigger: {type: mcp_call}"+fragment)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*listener, error) {
		return nil, errors.Join(err, e.Close(context.WithoutCancel(ctx)))
	}
	s, err := publish.New(publish.Options{
		Engine: e, Logger: quiet(), Prefix: "relavium_", StopGrace: time.Second,
		Workflows: []publish.Workflow{{Workflow: w, Project: engine.Project{Key: project, Root: "/"}}},
	})
	if err != nil {
		return fail(err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fail(err)
	}
	sctx, stop := context.WithCancel(ctx)
	var opt publish.HTTPOptions
	var current sync.WaitGroup
	token := ""
	if guarded {
		if opt.Access, token, err = guard(ctx, dir); err != nil {
			stop()
			return fail(errors.Join(err, l.Close()))
		}
		current.Go(func() { opt.Access.Run(sctx, nil) })
	}
	served := make(chan error, 1)
	go func() { served <- s.ServeHTTPOn(sctx, l, opt) }()
	return &listener{
		url: "http://" + l.Addr().String() + "/mcp", tool: s.ToolNames()[w.ID], bearer: token,
		close: func() error {
			stop()
			current.Wait()
			return errors.Join(<-served, e.Close(context.WithoutCancel(ctx)))
		},
	}, nil
}

// guard makes one static token, and what knows it.
func guard(ctx context.Context, dir string) (*access.Access, string, error) {
	store := &access.File{Home: dir}
	_, token, err := access.Create(ctx, store, "bench", []string{access.ScopeRun}, time.Time{}, time.Now())
	if err != nil {
		return nil, "", err
	}
	who, err := access.New(access.Options{Mode: access.ModeToken, Logger: quiet(), Tokens: store})
	return who, token, err
}
