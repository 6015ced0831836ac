package secrets

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ text, env, account, credential string }{
		{"provider/openai", "RELAVIUM_OPENAI_API_KEY", "openai:default", "provider.openai"},
		{"provider/deepseek", "RELAVIUM_DEEPSEEK_API_KEY", "deepseek:default", "provider.deepseek"},
		{"mcp/github_token", "RELAVIUM_MCP_GITHUB_TOKEN", "mcp-secret:github_token", "mcp.github_token"},
		{"mcp/owl.key-2", "RELAVIUM_MCP_OWL_KEY_2", "mcp-secret:owl.key-2", "mcp.owl.key-2"},
		{"input/deploy-web/api_Token", "RELAVIUM_INPUT_DEPLOY_WEB_API_TOKEN", "input:deploy-web/api_Token", "input.deploy-web.api_Token"},
		{"search", "RELAVIUM_SEARCH_API_KEY", "search-provider", "search"},
	} {
		name, err := ParseName(tt.text)
		if err != nil {
			t.Errorf("ParseName(%q) = %v", tt.text, err)
			continue
		}
		got := []string{name.String(), name.Env(), name.account(), name.credential()}
		if diff := cmp.Diff([]string{tt.text, tt.env, tt.account, tt.credential}, got); diff != "" {
			t.Errorf("ParseName(%q) (-want +got):\n%s", tt.text, diff)
		}
	}
}

func TestParseNameRefuses(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "/", "openai", "provider", "provider/", "provider/OpenAI", "provider/mcp-secret", "provider/openai/default", "provider/openai:x",
		"mcp", "mcp/", "mcp/a/b", "mcp/a:b", "mcp/a b", "mcp/../x", "mcp/é", "mcp/" + strings.Repeat("a", 257), "Mcp/a",
		"input/a", "input/a/", "input//b", "input/a/b/c", "input/a.b/c", "input/a/b.c", "search/", "search/x", "other/x", "provider/openai\n",
	} {
		name, err := ParseName(text)
		if refused := (*NameError)(nil); !errors.As(err, &refused) {
			t.Errorf("ParseName(%q) = %v, %v, want a NameError", text, name, err)
		}
	}
}

func names(t *testing.T, texts ...string) []Name {
	t.Helper()
	var out []Name
	for _, text := range texts {
		name, err := ParseName(text)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, name)
	}
	return out
}

func TestClashes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		names []string
		want  []string
	}{
		{[]string{"mcp/a", "mcp/b", "mcp/a", "provider/openai", "search", "input/w/a"}, nil},
		{[]string{"mcp/owl-key", "mcp/owl.key"}, []string{
			"mcp/owl-key and mcp/owl.key are both read from RELAVIUM_MCP_OWL_KEY",
		}},
		{[]string{"mcp/Token", "mcp/token", "mcp/token"}, []string{
			"mcp/Token and mcp/token are both read from RELAVIUM_MCP_TOKEN",
		}},
		{[]string{"input/a-b/c", "input/a/b_c"}, []string{
			"input/a-b/c and input/a/b_c are both read from RELAVIUM_INPUT_A_B_C",
		}},
		// One is the path of the other's file.
		{[]string{"mcp/key", "mcp/key_file"}, []string{"mcp/key and mcp/key_file are both read from RELAVIUM_MCP_KEY_FILE"}},
	} {
		var got []string
		for _, c := range Clashes(names(t, tt.names...)) {
			got = append(got, c.String())
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("Clashes(%v) (-want +got):\n%s", tt.names, diff)
		}
	}
}
