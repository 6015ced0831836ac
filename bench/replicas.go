package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/relavium/relavium-serve/engine/durable/durabletest"
)

// database makes an empty database for a folder.
func database(ctx context.Context, dir string) (string, error) {
	return durabletest.Database(ctx, os.Getenv(durabletest.Variable), dir)
}

// replica starts the binary on a database, in the n-th home of a folder.
func (b *bench) replica(ctx context.Context, dir, place string, n int, env ...string) (*server, string, error) {
	return b.serveHTTP(ctx, dir, append(env, "RELAVIUM_HOME="+filepath.Join(dir, fmt.Sprintf("home%d", n)), "RELAVIUM_DATABASE_URL="+place)...)
}

// home lays out the n-th home: settings that every replica shares.
func home(dir string, n int, settings string) error {
	at := filepath.Join(dir, fmt.Sprintf("home%d", n))
	if err := os.MkdirAll(at, 0o700); err != nil {
		return err
	}
	text := "[serve]\nworkspace_id = \"" + project + "\"\n[serve.limits]\nruns = 0\n" + settings
	return os.WriteFile(filepath.Join(at, "config.toml"), []byte(text), 0o600)
}

// replicas is the pure run of three nodes over HTTP, by built binaries on one database,
// each call at the next of them.
func (b *bench) replicas(count int) system {
	return system{
		name: fmt.Sprintf("3 nodes, %d on PostgreSQL", count),
		open: func(ctx context.Context, dir string) (*opened, error) {
			place, err := database(ctx, dir)
			if err != nil {
				return nil, err
			}
			if err := layOut(dir, unexpressed, 1); err != nil {
				return nil, err
			}
			var servers []*server
			var callers []*caller
			end := func() error {
				var errs []error
				for _, s := range servers {
					errs = append(errs, s.interrupt())
				}
				return errors.Join(errs...)
			}
			for n := range count {
				if err := home(dir, n, ""); err != nil {
					return nil, errors.Join(err, end())
				}
				s, url, err := b.replica(ctx, dir, place, n)
				if err != nil {
					return nil, errors.Join(err, end())
				}
				servers = append(servers, s)
				callers = append(callers, &caller{client: newClient(), url: url, era: stateless, tool: "relavium_flow-000"})
			}
			var next atomic.Int64
			once := func(ctx context.Context) error {
				c := callers[int(next.Add(1))%count]
				resp, err := c.call(ctx)
				if err != nil {
					return err
				}
				body, err := io.ReadAll(resp.Body)
				if err = errors.Join(err, resp.Body.Close()); err != nil {
					return err
				}
				if !strings.Contains(string(body), "structuredContent") {
					return fmt.Errorf("no result: %.300s", body)
				}
				return nil
			}
			return &opened{once: once, close: end}, nil
		},
	}
}

const oneTurn = `  agents: [{id: a, provider: anthropic, model: claude-sonnet-4-6, system_prompt: 'Be brief.', max_tokens: 100}]
  nodes:
    - {id: in, type: input}
    - {id: work, type: agent, agent_ref: a, prompt_template: 'go'}
    - {id: out, type: output}
  edges: [{from: in, to: work}, {from: work, to: out}]
`

// takeover measures from the kill -9 of a replica to when another asks the model again
// for a run that it took over, and for the last of many.
func (b *bench) takeover(ctx context.Context, dir string) (first, last time.Duration, err error) {
	const under = 20
	asked := make(chan struct{}, 4*under)
	model := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		asked <- struct{}{}
		<-r.Context().Done() // the model thinks for ever
	}))
	defer model.Close()
	place, err := database(ctx, dir)
	if err != nil {
		return 0, 0, err
	}
	if err := layOut(dir, oneTurn, 1); err != nil {
		return 0, 0, err
	}
	settings := fmt.Sprintf("[providers.anthropic]\nbase_url = %q\nallow_local_endpoint = true\n", model.URL)
	var servers []*server
	var urls []string
	defer func() {
		for _, s := range servers {
			_ = s.cmd.Process.Kill()
			_ = s.end()
		}
	}()
	for n := range 2 {
		if err := home(dir, n, settings); err != nil {
			return 0, 0, err
		}
		s, at, err := b.replica(ctx, dir, place, n, "RELAVIUM_ANTHROPIC_API_KEY=stand-in-key")
		if err != nil {
			return 0, 0, err
		}
		servers, urls = append(servers, s), append(urls, at)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	c := &caller{client: newClient(), url: urls[0], era: stateless, tool: "relavium_flow-000"}
	for range under {
		go func() { // it ends when its server is killed
			if resp, err := c.call(ctx); err == nil {
				_ = resp.Body.Close()
			}
		}()
	}
	wait := func() error {
		select {
		case <-asked:
			return nil
		case <-ctx.Done():
			return errors.New("the model was not asked")
		}
	}
	for range under {
		if err := wait(); err != nil {
			return 0, 0, err
		}
	}
	if err := servers[0].cmd.Process.Kill(); err != nil {
		return 0, 0, err
	}
	killed := time.Now()
	for n := range under {
		if err := wait(); err != nil {
			return 0, 0, err
		}
		if n == 0 {
			first = time.Since(killed)
		}
	}
	return first, time.Since(killed), nil
}

// replicaRows measures what replicas bring and cost.
func (b *bench) replicaRows(ctx context.Context, dir string) ([]row, error) {
	if os.Getenv(durabletest.Variable) == "" {
		return nil, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	systems := []system{b.replicas(1), b.replicas(2)}
	results, err := b.turns(ctx, dir, systems)
	if err != nil {
		return nil, err
	}
	_, _ = fmt.Fprintf(b.w, "on PostgreSQL, HTTP %s, p50 and calls a second at %d: one replica %.2f ms, %.0f; two %.2f ms, %.0f\n",
		stateless, parallel, ms(results[0].p50), results[0].rate, ms(results[1].p50), results[1].rate)
	at := filepath.Join(dir, "takeover")
	if err := os.Mkdir(at, 0o700); err != nil {
		return nil, err
	}
	first, last, err := b.takeover(ctx, at)
	if err != nil {
		return nil, fmt.Errorf("takeover: %w", err)
	}
	return []row{
		{what: "two replicas on PostgreSQL against one, throughput", unit: "x", got: results[1].rate / results[0].rate},
		{what: "first run of a killed replica goes on at another after", unit: "s", got: first.Seconds()},
		{what: "the last of 20 runs", unit: "s", got: last.Seconds()},
	}, nil
}
