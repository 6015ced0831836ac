package engine_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
)

// TestOlderStore opens a store of schema 1, with a run that waits at a gate, and lets
// the run go on.
func TestOlderStore(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "serve.db") // no database ever had that schema
	w := parse(t, `
		nodes:
		  - {id: in, type: input}
		  - {id: ask, type: human_gate, gate_type: approval, message_template: 'Go?'}
		  - {id: out, type: output}
		edges: [{from: in, to: ask}, {from: ask, to: out}]`)
	schema, err := os.ReadFile("testdata/schema1.sql")
	if err != nil {
		t.Fatal(err)
	}
	db := durabletest.Open(t, path)
	for _, query := range []string{string(schema), `insert into meta(schema) values(1)`} {
		if _, err := db.ExecContext(t.Context(), query); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := db.ExecContext(t.Context(), `insert into definitions(digest, json) values(?, ?)`, w.Digest(), string(w.Snapshot())); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `insert into runs(id, project, root, workflow, digest, principal, source, client, args_digest, inputs, ctx,
		state, seg, settled, created, started, last_event) values('r1', ?, '/', ?, ?, 'local', 'mcp', '', '', '{}', '{}', 'waiting', 0,
		'[{"id":"in","s":"completed","out":{}}]', 1, 1, -1)`, project, w.ID, w.Digest()); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), `insert into gates(id, run, node, key, reason, type, message, assignee, opened, timeout_action)
		values('g1', 'r1', 'ask', 'ask', '', 'approval', 'Go?', '', 1, '')`); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	e := open(t, path, nil)
	decide(t, e, "g1", engine.Decision{Decision: engine.Approved})
	events := follow(t, e, "r1")
	if got, want := string(last(events).Outputs), `{"out":{"decision":"approved","decidedBy":"local"}}`; got != want {
		t.Errorf("outputs = %s, want %s (%s)", got, want, brief(events))
	}
	var version int
	if err := durabletest.Open(t, path).QueryRowContext(t.Context(), `select schema from meta`).Scan(&version); err != nil || version != 3 {
		t.Errorf("schema %d, %v; want 3", version, err)
	}
}
