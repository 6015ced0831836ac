package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/workflows"
)

// forbidden are the keys that a file of the project may not hold, each with a
// value that config.toml takes.
func forbidden() []string {
	return []string{
		"serve.transport = 'stdio'", "serve.listen = 'a'", "serve.close_grace = '1m'", "serve.join_window = '1m'",
		"serve.session_idle = '1m'", "serve.tasks = 'never'", "serve.public_url = 'https://h.example'", "serve.tls_cert = 'a'",
		"serve.tls_key = 'a'", "serve.behind_proxy = true", "serve.allow_origins = []", "serve.allow_hosts = []",
		"serve.metrics_listen = 'a'", "serve.trace_endpoint = 'a'", "serve.workspace_id = 'a'", "serve.limits.runs = 1", "gates.key_file = 'a'",
		"serve.limits.calls_per_minute = 1", "serve.limits.concurrent = 1", "serve.limits.cost_per_day_microcents = 1",
		"runs.keep = '1d'", "providers.openai.base_url = 'https://h.example'", "providers.anthropic.allow_local_endpoint = true",
		"providers.gemini.base_url = 'https://h.example'", "providers.deepseek.base_url = 'https://h.example'",
		"database.url = 'postgres://h.example'", "database.durability = 'full'", "host.pin = 'off'", "git.name = 'Birds'", "git.email = 'birds@example.com'", "host.keep_parked = '1m'",
		"host.max_children = 1", "host.repeatable = []", "prices.m = {input = 1, output = 2}", "auth.issuer = 'a'", "auth.audience = 'a'",
		"auth.jwks_url = 'a'", "auth.token_types = []", "auth.allow_local_endpoint = true", "secrets.age_file = 'a'",
		"secrets.age_identity = 'a'",
	}
}

// loosening are settings of the project that say more than config.toml and the
// defaults; the first part is config.toml's.
func loosening() [][2]string {
	return [][2]string{
		{"", "gates.accept = ['cli', 'cli-noninteractive']"},
		{"gates.accept = ['console']", "gates.accept = ['console', 'cli']"},
		{"", "gates.min_human_ms = 499"},
		{"gates.min_human_ms = 900", "gates.min_human_ms = 899"},
		{"", "defaults.fs_scope = 'project'"},
		{"defaults.fs_scope = 'project'", "defaults.fs_scope = 'full'"},
		{"", "serve.workflow.w.reach = ['files']"},
		{"serve.workflow.w.reach = ['files']", "serve.workflow.w.reach = ['files', 'spawn']"},
		{"", "serve.workflow.w.writes = 'project'"},
		{"", "serve.workflow.w.accept = ['cli-noninteractive']"},
		{"serve.workflow.w.accept = ['cli']", "serve.workflow.w.accept = ['cli', 'console']"},
		{"", "serve.workflow.w.min_human_ms = 0"},
		{"serve.workflow.w.min_human_ms = 700", "serve.workflow.w.min_human_ms = 600"},
		{"serve.workflow.w.approver_not_requester = true", "serve.workflow.w.approver_not_requester = false"},
		{"serve.workflow.w.visible_to = ['ann']", "serve.workflow.w.visible_to = ['ann', 'bob']"},
	}
}

// tightening are settings of the project that are taken.
func tightening() [][2]string {
	return [][2]string{
		{"", "gates.accept = ['cli']"},
		{"", "gates.accept = []"},
		{"gates.accept = ['cli', 'cli-noninteractive']", "gates.accept = ['cli-noninteractive']"},
		{"", "gates.min_human_ms = 500"},
		{"gates.min_human_ms = 0", "gates.min_human_ms = 1"},
		{"defaults.fs_scope = 'full'", "defaults.fs_scope = 'project'"},
		{"serve.workflow.w.reach = ['files', 'spawn']", "serve.workflow.w.reach = ['spawn']"},
		{"serve.workflow.w.writes = 'project'", "serve.workflow.w.writes = 'project'"},
		{"", "serve.workflow.w.accept = ['cli']"},
		{"", "serve.workflow.w.approver_not_requester = true"},
		{"", "serve.workflow.w.visible_to = ['ann']"},
		{"", "serve.workflow.w.tool = 'deploy'\nserve.workflow.w.gate.g.key = 'sign'\nserve.workflow.w.gate.g.field = 'name'"},
		{"", "serve.publish = ['w']\nserve.tool_prefix = ''\nserve.orphan_grace = '1m'\nserve.handover.x = '50s'"},
		{"", "variables.team = 'birds'\ndefaults.model = 'm-1'\ndefaults.max_tokens_estimate = 4096"},
		{"", "update_channel = 'beta'\npreferences.theme = 'dark'\nchat.max_turns = 3\nmedia_x = 1\ndefaults.media_gc_grace_days = 3"},
	}
}

// layered loads config.toml and project.toml with these texts.
func layered(t *testing.T, user, project string) (*settings, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"home/config.toml": user, "p/.relavium/project.toml": project} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := newShell(strings.NewReader(""), nil, nil, []string{"RELAVIUM_HOME=" + filepath.Join(dir, "home"), "HOME=" + dir})
	p, err := s.findPlace(filepath.Join(dir, "p"))
	if err != nil {
		t.Fatal(err)
	}
	return s.loadSettings(p, "", p.root)
}

func TestProjectMayNotSet(t *testing.T) {
	t.Parallel()
	for _, line := range forbidden() {
		key, _, _ := strings.Cut(line, " =")
		if _, err := layered(t, line, ""); err != nil {
			t.Errorf("%s in config.toml = %v, want it taken", line, err)
		}
		_, err := layered(t, "", "\n"+line)
		if exitCode(err) != exitFault || err == nil || !strings.HasPrefix(err.Error(), "project.toml:2: "+key+": ") {
			t.Errorf("%s in project.toml = %v, want exit 2 that names the key and its line", line, err)
		}
		var f *fault
		if errors.As(err, &f) && !strings.Contains(f.hint, "config.toml") {
			t.Errorf("hint for %s = %q, want one that names config.toml", line, f.hint)
		}
	}
	for _, line := range []string{"allow_mcp_stdio = true", "insecure_no_auth = true", "serve.allow_mcp_stdio = true", "serve.insecure_no_auth = true"} {
		for _, texts := range [][2]string{{line, ""}, {"", line}} {
			if _, err := layered(t, texts[0], texts[1]); exitCode(err) != exitFault {
				t.Errorf("%s in a file = %v, want exit 2: it has no key", line, err)
			}
		}
	}
}

func TestProjectMayOnlyTighten(t *testing.T) {
	t.Parallel()
	for _, texts := range loosening() {
		_, err := layered(t, texts[0], texts[1])
		if exitCode(err) != exitFault || err == nil || !strings.Contains(err.Error(), "may only tighten") {
			t.Errorf("%q over %q = %v, want exit 2", texts[1], texts[0], err)
		}
	}
	for _, texts := range tightening() {
		if _, err := layered(t, texts[0], texts[1]); err != nil {
			t.Errorf("%q over %q = %v, want it taken", texts[1], texts[0], err)
		}
	}
}

func TestLayers(t *testing.T) {
	t.Parallel()
	got, err := layered(t,
		"variables = {a = '1', b = '1'}\n[gates]\naccept = ['cli', 'cli-noninteractive']\n[serve]\npublish = ['x', 'y']\norphan_grace = '1d12h'\n"+
			"[serve.handover]\nclaude = '3m45s'\nother = 0\n[serve.workflow.w]\ntool = 'user'\nmin_human_ms = 600\n[[mcp_servers]]\nname = 'one'\ntransport = 'stdio'\ncommand = 'x'",
		"variables = {b = '2', c = '2'}\n[serve]\npublish = ['z']\n[serve.handover]\nclaude = '1m'\n[serve.workflow.w]\naccept = ['cli']\n[[mcp_servers]]\nname = 'two'\ntransport = 'http'\nurl = 'https://h.example'")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"a": "1", "b": "2", "c": "2"}, got.Variables); diff != "" {
		t.Errorf("variables (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"z"}, got.Serve.Publish); diff != "" {
		t.Errorf("publish (-want +got):\n%s", diff)
	}
	if d := got.Serve.OrphanGrace.value(0); d != 36*time.Hour {
		t.Errorf("orphan_grace = %v, want 36h", d)
	}
	if d := got.Serve.CloseGrace.value(time.Minute); d != time.Minute {
		t.Errorf("close_grace = %v, want the fallback", d)
	}
	want := map[string]duration{"claude": duration(time.Minute), "other": 0}
	if diff := cmp.Diff(want, got.Serve.Handover); diff != "" {
		t.Errorf("handover (-want +got):\n%s", diff)
	}
	w := got.Serve.Workflow["w"]
	if *w.Tool != "user" || *w.MinHumanMS != 600 {
		t.Errorf("workflow w = %q, %d, want what config.toml says", *w.Tool, *w.MinHumanMS)
	}
	if diff := cmp.Diff([]string{"cli"}, got.accept("w")); diff != "" {
		t.Errorf("accept(w) (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"cli", "cli-noninteractive"}, got.accept("other")); diff != "" {
		t.Errorf("accept(other) (-want +got):\n%s", diff)
	}
	if len(got.Servers) != 2 {
		t.Errorf("servers = %d, want those of both files", len(got.Servers))
	}
}

// providersWith loads config.toml and the environment.
func providersWith(t *testing.T, user string, environ ...string) (*settings, error) {
	t.Helper()
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, "config.toml"), []byte(user), 0o600); err != nil {
		t.Fatal(err)
	}
	s := newShell(strings.NewReader(""), nil, nil, append(environ, "RELAVIUM_HOME="+home, "HOME="+home))
	p, err := s.findPlace(home)
	if err != nil {
		t.Fatal(err)
	}
	return s.loadSettings(p, "", "")
}

func TestProviders(t *testing.T) {
	t.Parallel()
	const local = "providers.openai = {base_url = 'http://127.0.0.1:11434/v1', allow_local_endpoint = true}\n"
	for _, test := range []struct {
		user    string
		environ []string
		base    string // of openai; "" means none
		want    string // of the error
	}{
		{},
		{user: local, base: "http://127.0.0.1:11434/v1"},
		{user: local, environ: []string{"RELAVIUM_OPENAI_BASE_URL=http://127.0.0.1:9/v1"}, base: "http://127.0.0.1:9/v1"},
		{environ: []string{"RELAVIUM_OPENAI_BASE_URL=https://h.example/v1"}, base: "https://h.example/v1"},
		{environ: []string{"RELAVIUM_OPENAI_BASE_URL=http://[::1]:1", "RELAVIUM_OPENAI_ALLOW_LOCAL_ENDPOINT=1"}, base: "http://[::1]:1"},
		{user: local, environ: []string{"RELAVIUM_OPENAI_ALLOW_LOCAL_ENDPOINT=false"}, want: "providers.openai.base_url: "},
		{environ: []string{"RELAVIUM_GEMINI_BASE_URL=http://10.0.0.1"}, want: "providers.gemini.base_url: "},
		{user: "providers.deepseek.base_url = 'http://h.example'", want: "providers.deepseek.base_url: "},
		{user: "providers.deepseek.base_url = 'https://u:canary@h.example'", want: "providers.deepseek.base_url: "},
		{user: "providers.anthropic = {base_url = 'http://169.254.169.254', allow_local_endpoint = true}", want: "providers.anthropic.base_url: "},
		{environ: []string{"RELAVIUM_OPENAI_ALLOW_LOCAL_ENDPOINT=canary"}, want: "RELAVIUM_OPENAI_ALLOW_LOCAL_ENDPOINT: expected true or false"},
		{user: "providers.acme.base_url = 'https://h.example'", want: "config.toml:1: unknown key providers.acme"},
		{user: "providers.openai.api_key = 'canary'", want: "config.toml:1: unknown key providers.openai.api_key"},
	} {
		got, err := providersWith(t, test.user, test.environ...)
		if test.want != "" {
			if exitCode(err) != exitFault || !strings.HasPrefix(err.Error(), test.want) || strings.Contains(err.Error(), "canary") {
				t.Errorf("%q, %q = %v, want exit 2 and %q", test.user, test.environ, err, test.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q, %q = %v", test.user, test.environ, err)
			continue
		}
		base := ""
		if set := got.Providers.OpenAI.BaseURL; set != nil {
			base = *set
		}
		if base != test.base {
			t.Errorf("%q, %q: base_url = %q, want %q", test.user, test.environ, base, test.base)
		}
	}
}

func TestValuesOfAgents(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"prices.m-1 = {input = 1, output = 2, cache_read = 0, cache_write = 3}": "",
		"prices.'m/1:x' = {input = 0, output = 0}":                              "",
		"prices.m.input = 1":                             "prices.m: input and output are required",
		"prices.m = {input = 1, output = -1}":            "prices.m.output: expected 0 or more",
		"prices.m.input = 1.5":                           "prices.m.input: expected a whole number",
		"prices.m = {input = 1, output = 1, cached = 1}": "unknown key prices.m.cached",
		"host = {pin = 'warn', keep_parked = '5m', max_children = 1, repeatable = ['mcp_gh_search']}": "",
		"host.repeatable = ['read_file']":                "host.repeatable: expected tools of MCP servers",
		"host.max_children = 0":                          "host.max_children: expected 1 or more",
		"host.keep_parked = 'long'":                      "host.keep_parked: expected a duration",
		"host.pin = 'never'":                             "host.pin: expected one of ask, warn, off",
		"secrets = {age_file = 'a', age_identity = 'b'}": "",
		"secrets.passphrase = 'canary'":                  "unknown key secrets.passphrase",
	} {
		_, err := layered(t, line, "")
		switch {
		case want == "" && err != nil:
			t.Errorf("%s = %v, want it taken", line, err)
		case want != "" && (exitCode(err) != exitFault || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "canary")):
			t.Errorf("%s = %v, want exit 2 and %q", line, err, want)
		}
	}
}

// The home never marks a project, whatever it is called, and a root that would
// put a machine or a home in reach is refused.
func TestFindPlace(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"user/.relavium", "user/work/.relavium", "user/work/a/b", "user/plain", "other/.relavium", "other/x"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	user := filepath.Join(dir, "user")
	tests := []struct{ home, cwd, root string }{
		{"", "user/work/a/b", "user/work"},
		{"", "user/work", "user/work"},
		{"", "user/plain", ""},
		{"", "user", ""},
		{filepath.Join(dir, "elsewhere"), "user/plain", ""}, // ~/.relavium does not count either
		{filepath.Join(dir, "other", ".relavium"), "other/x", ""},
		{filepath.Join(dir, "elsewhere"), "other/x", "other"},
	}
	for _, test := range tests {
		s := newShell(strings.NewReader(""), nil, nil, []string{"HOME=" + user, "RELAVIUM_HOME=" + test.home})
		got, err := s.findPlace(filepath.Join(dir, test.cwd))
		want := test.root
		if want != "" {
			want = filepath.Join(dir, test.root)
		}
		if err != nil || got.root != want {
			t.Errorf("findPlace(%s) with home %q = root %q, %v, want %q", test.cwd, test.home, got.root, err, want)
		}
	}
	s := newShell(strings.NewReader(""), nil, nil, []string{"HOME=" + filepath.Join(dir, "other"), "RELAVIUM_HOME=" + filepath.Join(dir, "elsewhere")})
	if err := os.MkdirAll(filepath.Join(dir, "other", "real", ".relavium"), 0o700); err != nil {
		t.Fatal(err)
	}
	p, err := s.findPlace(filepath.Join(dir, "other", "real"))
	if err != nil {
		t.Fatal(err)
	}
	for _, root := range []string{"/", filepath.Join(dir, "other")} {
		if err := p.checkRoot(root); exitCode(err) != exitFault {
			t.Errorf("checkRoot(%s) = %v, want exit 2", root, err)
		}
	}
}

func TestDuration(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"10m": 10 * time.Minute, "3m45s": 225 * time.Second, "30d": 720 * time.Hour, "1d12h": 36 * time.Hour, "0": 0, "0s": 0,
	} {
		var got duration
		if err := got.UnmarshalText([]byte(text)); err != nil || time.Duration(got) != want {
			t.Errorf("duration %q = %v, %v, want %v", text, time.Duration(got), err, want)
		}
	}
	for _, text := range []string{"", "10", "-1m", "d", "1d-2h", "1.5d", "99999999d", "canary", "1h1d"} {
		var got duration
		if err := got.UnmarshalText([]byte(text)); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("duration %q = %v, %v, want an error without the text", text, time.Duration(got), err)
		}
	}
}

func TestPlain(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"two\nlines":               "two\nlines",
		"\x1b[31mred\x1b[0m":       "red",
		"a\tb\u202Ec\u2066d\u200B": "a bcd",
		"\u2028x\u009b1mé":         "\nxé",
	} {
		if got := plain(text); got != want {
			t.Errorf("plain(%q) = %q, want %q", text, got, want)
		}
	}
	if got := oneLine("a\n b\t c", 4); got != "a b…" {
		t.Errorf("oneLine = %q, want %q", got, "a b…")
	}
}

// Whatever the bytes are, reading ends, and keys stand on lines that exist.
func FuzzParseConfig(f *testing.F) {
	for _, line := range forbidden() {
		f.Add(line)
	}
	for _, texts := range append(tightening(), loosening()...) {
		f.Add(texts[0] + "\n" + texts[1])
	}
	f.Add("a = [[{b = {c = 1}}, 2], {'' = {}}]\n[x.\"y.z\"]\n[[x.q]]\n")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseConfig("config.toml", []byte(text))
		if err != nil {
			if exitCode(err) != exitFault {
				t.Fatalf("parseConfig(%q) = %v, want exit 2", text, err)
			}
			return
		}
		lines := strings.Count(text, "\n") + 1
		for _, key := range got.keys {
			if len(key.path) == 0 || key.line < 1 || key.line > lines {
				t.Fatalf("parseConfig(%q): key %q on line %d of %d", text, key.path, key.line, lines)
			}
		}
		if err := checkValues(got); err == nil {
			base := builtinSettings()
			_ = checkProject(got, &base)
			_ = overlay(base, got.settings)
			_ = checkServers([]*configFile{got})
		}
	})
}

func TestNearest(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"serve.publsh":         "serve.publish",
		"serve.limits.run":     "serve.limits.runs",
		"provider":             "providers",
		"orphan_grace":         "serve.orphan_grace",
		"serve.workflow.w.tol": "serve.workflow.w.tool",
	} {
		if got := nearest(strings.Split(key, ".")); !strings.Contains(got, want) {
			t.Errorf("nearest(%s) = %q, want it to name %s", key, got, want)
		}
	}
}

// The schema for editors and the strict reader know the same keys.
func TestSchemaKnowsEveryKey(t *testing.T) {
	t.Parallel()
	raw, err := workflows.Schema("config")
	if err != nil {
		t.Fatal(err)
	}
	var schema schemaNode
	if err := json.Unmarshal(raw, &schema); err != nil {
		t.Fatal(err)
	}
	got, want := map[string]bool{}, map[string]bool{}
	schema.keys(schema.Defs, "", got)
	settingKeys(reflect.TypeFor[settings](), "", want)
	for _, keys := range []map[string]bool{got, want} {
		for key := range keys {
			if path := strings.Split(key, "."); foreign(path) {
				delete(keys, key)
			}
		}
	}
	if !want["serve.workflow.*.gate.*.field"] {
		t.Errorf("the reader's keys lack those of nested tables: %v", want)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("keys (-of the reader +of the schema):\n%s", diff)
	}
}

type schemaNode struct {
	Ref        string                `json:"$ref"`
	Defs       map[string]schemaNode `json:"$defs"`
	Properties map[string]schemaNode `json:"properties"`
	Items      *schemaNode           `json:"items"`
	Additional json.RawMessage       `json:"additionalProperties"`
}

func (n schemaNode) keys(defs map[string]schemaNode, at string, into map[string]bool) {
	if n.Ref != "" {
		defs[strings.TrimPrefix(n.Ref, "#/$defs/")].keys(defs, at, into)
		return
	}
	for name, child := range n.Properties {
		into[at+name] = true
		child.keys(defs, at+name+".", into)
	}
	if n.Items != nil {
		n.Items.keys(defs, at, into)
	}
	var more schemaNode
	if json.Unmarshal(n.Additional, &more) == nil {
		more.keys(defs, at+"*.", into)
	}
}

func settingKeys(table reflect.Type, at string, into map[string]bool) {
	switch table = element(table); table.Kind() { //nolint:exhaustive // only tables have keys
	case reflect.Map:
		settingKeys(table.Elem(), at+"*.", into)
	case reflect.Struct:
		for field := range table.Fields() {
			if name := field.Tag.Get("toml"); name != "" {
				into[at+name] = true
				settingKeys(field.Type, at+name+".", into)
			}
		}
	}
}
