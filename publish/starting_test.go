package publish_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/publish"
)

// What connects before a run exists has deadlines of its own, is ended by the client's
// own cancel, and by no clock of the client's.
func TestCancelWhileServersConnect(t *testing.T) {
	t.Parallel()
	attending, goOn, ended := make(chan context.Context), make(chan struct{}), make(chan error, 2)
	attend := func(ctx context.Context, _ engine.Attendance) (func(bool), error) {
		attending <- ctx
		select {
		case <-ctx.Done():
		case <-goOn:
		}
		ended <- context.Cause(ctx)
		return nil, &engine.RunError{Code: engine.CodeToolUnavailable, Message: "it did not come up"}
	}
	s, _, _ := newServer(t, func(o *publish.Options) {
		o.Engine = openEngine(t, filepath.Join(t.TempDir(), "serve.db"), func(o *engine.Options) { o.Attend = attend })
	}, parse(t, `schema_version: '1.0'
workflow:
  id: wade
  name: Wade
  description: test workflow
  trigger: { type: mcp_call }
  agents:
    - id: wader
      provider: anthropic
      model: m-1
      system_prompt: 'Be brief.'
      mcp_servers: [{ id: pond, transport: stdio, command: pond }]
  nodes:
    - { id: start, type: input }
    - { id: look, type: agent, agent_ref: wader, prompt_template: look }
    - { id: result, type: output }
  edges: [{ from: start, to: look }, { from: look, to: result }]
`))
	c := connect(t, s)
	c.initialize(legacy, "probe")
	for _, test := range []struct {
		id, reason string
		ends       bool
	}{{"1", "MCP error -32001: Request timed out", false}, {"2", "the user pressed a key", true}} {
		c.call(test.id, "relavium_wade", "")
		ctx := <-attending
		if until, has := ctx.Deadline(); has {
			t.Errorf("the connect is to end in %v, want no deadline but its own", time.Until(until))
		}
		c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + test.id + `,"reason":"` + test.reason + `"}}`)
		if !test.ends {
			c.send(`{"jsonrpc":"2.0","id":9,"method":"tools/list"}`) // comes after what the cancel did
			c.response("9")
			goOn <- struct{}{}
		}
		if cause := <-ended; (cause != nil) != test.ends {
			t.Errorf("after %q the connect ended by %v, want that it ends: %t", test.reason, cause, test.ends)
		}
	}
}
