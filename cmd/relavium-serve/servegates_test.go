package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relavium/relavium-serve/gates"
)

// projectWith is a project with one workflow, ship, in a folder where the home may
// be made.
func projectWith(t *testing.T, workflow string) string {
	t.Helper()
	project := filepath.Join(t.TempDir(), "p")
	writeFile(t, filepath.Join(project, ".relavium", "ship.relavium.yaml"), workflow)
	return project
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A peer is a client at a server that this process runs.
type peer struct {
	t     *testing.T
	in    *io.PipeWriter
	lines *bufio.Scanner
	code  chan int
	diag  *bytes.Buffer
}

// peerOf starts serve for a project with one workflow, ship, and the given
// configuration of the user.
func peerOf(t *testing.T, workflow, config string) (p *peer, home string) {
	t.Helper()
	project := projectWith(t, workflow)
	home = filepath.Join(filepath.Dir(project), "home")
	writeFile(t, filepath.Join(home, "config.toml"), config)
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	p = &peer{t: t, in: inW, lines: bufio.NewScanner(outR), code: make(chan int, 1), diag: new(bytes.Buffer)}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() {
		environ := []string{"HOME=" + filepath.Dir(project), "RELAVIUM_HOME=" + home}
		p.code <- run(ctx, []string{"serve", "--publish", "ship", "--cwd", project}, inR, outW, p.diag, environ)
		_ = outW.Close()
	}()
	t.Cleanup(func() {
		_ = inW.Close()
		for p.lines.Scan() { // until the server has ended
			continue
		}
		stop()
		<-p.code
		if t.Failed() {
			t.Log(p.diag)
		}
	})
	return p, home
}

func (p *peer) send(format string, args ...any) {
	p.t.Helper()
	if _, err := fmt.Fprintf(p.in, format+"\n", args...); err != nil {
		p.t.Fatal(err)
	}
}

// message is what a server writes.
type message struct {
	ID     json.RawMessage
	Method string
	Params struct{ Message string }
	Result struct {
		InputRequests     json.RawMessage
		StructuredContent json.RawMessage
	}
	raw string
}

// until reads up to the first message that matches.
func (p *peer) until(match func(m *message) bool) *message {
	p.t.Helper()
	for p.lines.Scan() {
		m := message{raw: p.lines.Text()}
		if err := json.Unmarshal(p.lines.Bytes(), &m); err != nil {
			p.t.Fatalf("the server wrote %q: %v", m.raw, err)
		}
		if match(&m) {
			return &m
		}
	}
	p.t.Fatal("the server has ended")
	return nil
}

const shipOnce = `schema_version: '1.0'
workflow:
  id: ship
  nodes:
    - {id: in, type: input}
    - {id: ask, type: human_gate, gate_type: approval, message_template: 'Ship it?'}
    - {id: out, type: output}
  edges: [{from: in, to: ask}, {from: ask, to: out}]
`

// The time below which an answer is a reflex comes from the configuration, of the
// workflow too, where it is longer.
func TestMinHumanOfTheConfiguration(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, config string
		decided      bool
	}{
		{"none", "[gates]\nmin_human_ms = 0\n", true},
		{"an hour", "[gates]\nmin_human_ms = 3600000\n", false},
		{"an hour of the workflow", "[gates]\nmin_human_ms = 0\n[serve.workflow.ship]\nmin_human_ms = 3600000\n", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, home := peerOf(t, shipOnce, tt.config)
			p.send(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"elicitation":{}},"clientInfo":{"name":"probe","version":"0"}}}`)
			p.until(func(m *message) bool { return string(m.ID) == "1" })
			p.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
			p.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"relavium_ship","_meta":{"progressToken":2}}}`)
			asked := p.until(func(m *message) bool { return m.Method == "elicitation/create" })
			p.send(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{"decision":"approve"}}}`, asked.ID)
			got := p.until(func(m *message) bool { return string(m.ID) == "2" || strings.Contains(m.Params.Message, "sooner than") })
			if decided := string(got.ID) == "2"; decided != tt.decided {
				t.Errorf("after an answer at once the server wrote %s, want decided %t", got.raw, tt.decided)
			}
			if about, err := os.Stat(filepath.Join(home, gates.KeyFile)); err != nil || about.Mode().Perm() != 0o600 {
				t.Errorf("%s = %v, %v, want a private file", gates.KeyFile, about, err)
			}
		})
	}
}

// The names of a gate's question and of its answer come from the configuration.
func TestGateNamesOfTheConfiguration(t *testing.T) {
	t.Parallel()
	workflow := strings.Replace(shipOnce, "gate_type: approval", "gate_type: input", 1)
	p, _ := peerOf(t, workflow, "[serve.workflow.ship.gate.ask]\nkey = \"user_name\"\nfield = \"name\"\n[serve.workflow.ship.gate.nobody]\nkey = \"x\"\n")
	p.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"relavium_ship","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"probe","version":"0"},"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}}}}}}`)
	got := p.until(func(m *message) bool { return string(m.ID) == "1" })
	var asked map[string]struct {
		Params struct {
			RequestedSchema struct{ Properties map[string]json.RawMessage }
		}
	}
	if err := json.Unmarshal(got.Result.InputRequests, &asked); err != nil {
		t.Fatalf("the server wrote %s: %v", got.raw, err)
	}
	if len(asked) != 1 || asked["user_name"].Params.RequestedSchema.Properties["name"] == nil {
		t.Errorf("inputRequests = %s, want user_name that asks for name", got.Result.InputRequests)
	}
	_ = p.in.Close()
	for p.lines.Scan() { // the log is whole when the server has ended
		continue
	}
	if want := `key=serve.workflow.ship.gate.nobody`; !strings.Contains(p.diag.String(), want) {
		t.Errorf("log = %s, want a warning with %s", p.diag, want)
	}
}

// Two gates that a client could not tell apart stop the start.
func TestGateKeysAreUnique(t *testing.T) {
	t.Parallel()
	workflow := strings.Replace(strings.Replace(shipOnce, "    - {id: out,", "    - {id: more, type: human_gate, gate_type: review, message_template: 'More?'}\n    - {id: out,", 1),
		"{from: ask, to: out}", "{from: ask, to: more}, {from: more, to: out}", 1)
	p, _ := peerOf(t, workflow, "[serve.workflow.ship.gate.more]\nkey = \"ask\"\n")
	for p.lines.Scan() {
		t.Errorf("the server wrote %s", p.lines.Text())
	}
	code := <-p.code
	p.code <- code
	if want := `the gates "ask" and "more" have the key "ask" both`; code != exitFault || !strings.Contains(p.diag.String(), want) {
		t.Errorf("serve = exit %d, %s, want 2 and %s", code, p.diag, want)
	}
}
