package gates

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/mcp"

	"github.com/relavium/relavium-serve/engine"
)

// params writes a question as a client reads it.
func paramsOf(tb testing.TB, f form, version string) string {
	tb.Helper()
	raw, err := json.Marshal(f.params(version, "nonce-1", printable))
	if err != nil {
		tb.Fatal(err)
	}
	return string(raw)
}

func TestFormOfEachGate(t *testing.T) {
	t.Parallel()
	const approval = `"requestedSchema":{"type":"object","properties":{"decision":{"type":"string","title":"Decision","enum":["approve","reject"]},"comment":{"type":"string","title":"Comment"}},"required":["decision"]}`
	gate := func(kind string) engine.Gate {
		return engine.Gate{ID: "g1", Node: "ask", Type: kind, Message: "Proceed?"}
	}
	for _, c := range []struct {
		name, version string
		gate          engine.Gate
		as            Name
		url           string
		want          string
	}{
		{"approval of 2025-06-18 has no mode", "2025-06-18", gate("approval"), Name{}, "", `{"message":"Proceed?",` + approval + `}`},
		{"approval of 2025-11-25", "2025-11-25", gate("approval"), Name{}, "", `{"mode":"form","message":"Proceed?",` + approval + `}`},
		{"review of 2026-07-28", "2026-07-28", gate("review"), Name{}, "", `{"mode":"form","message":"Proceed?",` + approval + `}`},
		{"a field's name is an input gate's", "2026-07-28", gate("review"), Name{Field: "name"}, "", `{"mode":"form","message":"Proceed?",` + approval + `}`},
		{
			"input", "2025-11-25", gate("input"),
			Name{},
			"",
			`{"mode":"form","message":"Proceed?","requestedSchema":{"type":"object","properties":{"value":{"type":"string","title":"Answer"},"comment":{"type":"string","title":"Comment"}},"required":["value"]}}`,
		},
		{
			"input with a renamed field", "2026-07-28", gate("input"),
			Name{Key: "user_name", Field: "name"},
			"",
			`{"mode":"form","message":"Proceed?","requestedSchema":{"type":"object","properties":{"name":{"type":"string","title":"Answer"},"comment":{"type":"string","title":"Comment"}},"required":["name"]}}`,
		},
		{
			"input whose field is the comment", "2026-07-28", gate("input"),
			Name{Field: "comment"},
			"",
			`{"mode":"form","message":"Proceed?","requestedSchema":{"type":"object","properties":{"comment":{"type":"string","title":"Answer"}},"required":["comment"]}}`,
		},
		{
			"what became of a call", "2025-11-25",
			engine.Gate{ID: "g1", Node: "ask", Type: "input", Reason: "outcome_unknown", Message: "Proceed?"},
			Name{},
			"",
			`{"mode":"form","message":"Proceed?","requestedSchema":{"type":"object","properties":{"value":{"type":"string","title":"What to do","enum":["repeat","skip","fail"]},"comment":{"type":"string","title":"Comment"}},"required":["value"]}}`,
		},
		{
			"page of 2025-11-25", "2025-11-25", gate("approval"),
			Name{},
			"http://127.0.0.1:1/g1",
			`{"mode":"url","message":"Proceed?","elicitationId":"nonce-1","url":"http://127.0.0.1:1/g1"}`,
		},
		{
			"page of 2026-07-28 has no id", "2026-07-28", gate("approval"),
			Name{},
			"http://127.0.0.1:1/g1",
			`{"mode":"url","message":"Proceed?","url":"http://127.0.0.1:1/g1"}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newForm(&c.gate, c.as, c.url)
			if diff := cmp.Diff(c.want, paramsOf(t, f, c.version)); diff != "" {
				t.Errorf("params (-want +got):\n%s", diff)
			}
			if want := c.as.Key; want != "" && f.key != want {
				t.Errorf("key = %q, want %q", f.key, want)
			}
			if c.as.Key == "" && f.key != "ask" {
				t.Errorf("key = %q, want the node's id", f.key)
			}
		})
	}
}

// TestFormIsFlat holds every form to "flat objects with primitive properties only".
func TestFormIsFlat(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"approval", "review", "input"} {
		f := newForm(&engine.Gate{Type: kind}, Name{}, "")
		var schema struct {
			Type       string
			Properties map[string]map[string]any
			Required   []string
		}
		if err := json.Unmarshal(f.schema(), &schema); err != nil {
			t.Fatal(err)
		}
		if schema.Type != "object" || len(schema.Required) != 1 {
			t.Errorf("%s: schema %s, want an object with one required member", kind, f.schema())
		}
		for name, p := range schema.Properties {
			if p["type"] != "string" {
				t.Errorf("%s: property %s is of type %v, want a primitive", kind, name, p["type"])
			}
		}
		if schema.Properties[schema.Required[0]] == nil {
			t.Errorf("%s: the required %q is no property", kind, schema.Required[0])
		}
	}
}

func TestMessageIsInertAndBounded(t *testing.T) {
	t.Parallel()
	expires := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	f := newForm(&engine.Gate{
		Type: "approval", Node: "ask", Workflow: "deploy", Assignee: "ops\nteam\u202e",
		Message: "Deploy \x1b[31mnow\u202e?\r\n\u200bline 2", Expires: expires,
	}, Name{}, "")
	want := "Deploy  [31mnow? \nline 2\n\nFor: ops team\n\nAnswer by 2026-11-30T12:00:00Z."
	if got := f.message(printable); got != want {
		t.Errorf("message = %q, want %q", got, want)
	}
	long := newForm(&engine.Gate{Type: "approval", Message: strings.Repeat("é", maxQuestion)}, Name{}, "")
	if got := long.message(printable); len(got) > maxQuestion+4 || !strings.HasSuffix(got, "é…") {
		t.Errorf("a long message has %d bytes and ends in %q, want at most %d and a whole character", len(got), got[len(got)-6:], maxQuestion)
	}
	empty := newForm(&engine.Gate{Type: "approval", Node: "ask", Workflow: "deploy", Message: " \n"}, Name{}, "")
	if got, want := empty.message(printable), "The workflow deploy waits at ask."; got != want {
		t.Errorf("message of an empty gate = %q, want %q", got, want)
	}
}

func TestRungIsWhatTheRequestDeclares(t *testing.T) {
	t.Parallel()
	all := []string{AcceptElicitation, AcceptConsole, AcceptCLI}
	formOnly, urlOnly := &struct{}{}, &struct{}{}
	ask := func() AskFunc { return noAsk }
	for _, c := range []struct {
		name    string
		version string
		declare *mcp.ElicitationCapability
		accept  []string
		strict  bool
		ask     AskFunc
		page    bool
		want    rung
	}{
		{"nothing declared", "2026-07-28", nil, all, false, nil, true, noRung},
		{"empty means form", "2026-07-28", &mcp.ElicitationCapability{}, all, false, nil, false, formRung},
		{"form", "2026-07-28", &mcp.ElicitationCapability{Form: formOnly}, all, false, nil, true, formRung},
		{"form and url", "2026-07-28", &mcp.ElicitationCapability{Form: formOnly, URL: urlOnly}, all, false, nil, true, formRung},
		{"url with a console", "2026-07-28", &mcp.ElicitationCapability{URL: urlOnly}, all, false, nil, true, pageRung},
		{"url without a console", "2026-07-28", &mcp.ElicitationCapability{URL: urlOnly}, all, false, nil, false, noRung},
		{"url, console not accepted", "2026-07-28", &mcp.ElicitationCapability{URL: urlOnly}, []string{AcceptElicitation, AcceptCLI}, false, nil, true, noRung},
		{"url before 2025-11-25", "2025-06-18", &mcp.ElicitationCapability{URL: urlOnly}, all, false, ask(), true, noRung},
		{"url of 2025-11-25", "2025-11-25", &mcp.ElicitationCapability{URL: urlOnly}, all, false, ask(), true, pageRung},
		{"2025-06-18", "2025-06-18", &mcp.ElicitationCapability{}, all, false, ask(), true, formRung},
		{"before elicitation was", "2025-03-26", &mcp.ElicitationCapability{}, all, false, ask(), true, noRung},
		{"no way to ask", "2025-11-25", &mcp.ElicitationCapability{}, all, false, nil, true, noRung},
		{"elicitation not accepted", "2026-07-28", &mcp.ElicitationCapability{}, []string{AcceptConsole, AcceptCLI}, false, nil, true, noRung},
		{"whoever asked may not answer", "2026-07-28", &mcp.ElicitationCapability{}, all, true, nil, true, noRung},
	} {
		client := Client{Version: c.version, Capabilities: mcp.ClientCapabilities{Elicitation: c.declare}, Ask: c.ask}
		policy := Policy{Accept: c.accept, NotRequester: c.strict}
		if got := rungOf(&client, &policy, func() bool { return c.page }); got != c.want {
			t.Errorf("%s: rungOf = %d, want %d", c.name, got, c.want)
		}
	}
}

func TestReachable(t *testing.T) {
	t.Parallel()
	able := Client{Version: "2026-07-28", Capabilities: mcp.ClientCapabilities{Elicitation: &mcp.ElicitationCapability{}}}
	unable := Client{Version: "2026-07-28"}
	for _, c := range []struct {
		client Client
		accept []string
		want   bool
	}{
		{able, []string{AcceptElicitation}, true},
		{unable, []string{AcceptElicitation}, false},
		{unable, []string{AcceptElicitation, AcceptConsole}, true},
		{unable, []string{AcceptCLI}, true},
		{unable, []string{AcceptCLINonInteractive}, true},
		{able, nil, false},
	} {
		if got := Reachable(&c.client, &Policy{Accept: c.accept}); got != c.want {
			t.Errorf("Reachable(%v, %v) = %t, want %t", c.client.Capabilities.Elicitation, c.accept, got, c.want)
		}
	}
}
