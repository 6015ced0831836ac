package consent

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode"
)

// clean drops what a terminal would act on; line breaks and tabs stay.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r)) {
			return -1
		}
		return r
	}, text)
}

func TestQuestionShow(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, name := range []string{"package.json", ".npmrc", ".yarnrc.yml", ".pnp.cjs", "README.md", "yarnrc"} {
		mustWriteFile(t, filepath.Join(folder, name))
	}
	if err := os.Mkdir(filepath.Join(folder, "node_modules"), 0o700); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("é", maxShownBytes)
	q := &Question{
		Server: "git\x1b[2Jhub",
		Declaration: Declaration{
			Command: "/usr/bin/npx",
			Args:    []string{"-y", "@acme/server", "two words", "a\nb", "", "\u202etxt", long},
			Env: map[string]string{
				"TOKEN": "{{ secrets.github_token }}", "MODE": "fast\r", "AUTH": "Bearer {{secrets.x}}", "KUBECONFIG": "/k",
			},
			Cwd: folder,
		},
		Earlier: &Grant{
			Command: "/usr/bin/npx", Args: []string{"-y"}, EnvNames: []string{"AUTH", "KUBECONFIG", "MODE", "TOKEN"}, Cwd: folder,
			Granted: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		},
		Clean: clean,
	}
	var b strings.Builder
	if err := q.Show(&b); err != nil {
		t.Fatal(err)
	}
	digest, _ := q.Declaration.Digest()
	got := b.String()
	for _, want := range []string{
		`MCP server: "git[2Jhub" (holds characters that cannot be shown; 10 bytes, sha256 `,
		"\n  command    \"/usr/bin/npx\"\n",
		"\n  folder     \"" + folder + "\"\n",
		"\n  arguments  7\n      1  \"-y\"\n      2  \"@acme/server\"\n      3  \"two words\"\n      4  \"a\\nb\"\n      5  \"\"\n      6  \"txt\" (holds characters that cannot be shown; 6 bytes, sha256 ",
		"\n      7  \"" + long[:maxShownBytes] + "…\" (cut; 4000 bytes, " + sum([]byte(long)) + ")\n",
		"\n  variables  4\n    AUTH = \"Bearer {{secrets.x}}\"\n      warning: text around a secret reference",
		"\n    KUBECONFIG = \"/k\"\n      note: names a configuration file",
		"\n    MODE = \"fast\" (holds characters",
		"\n    TOKEN ← secret github_token\n",
		"\n  warning    in its folder .npmrc, .pnp.cjs, .yarnrc.yml, node_modules, package.json may change what runs\n",
		"\n  warning    package \"@acme/server\" has no fixed version: whatever is newest runs\n",
		"\n  earlier    granted 2026-01-02; different now: arguments\n",
		"\n  digest     " + digest + "\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.ContainsFunc(got, func(r rune) bool { return r != '\n' && r < ' ' || r == '\u202e' }) {
		t.Errorf("a control character is shown in %q", got)
	}
}

func mustWriteFile(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Nothing is left out without saying how much and which.
func TestQuestionShowMany(t *testing.T) {
	t.Parallel()
	d := Declaration{Command: "/" + strings.Repeat("c", 3*maxShownBytes), Cwd: "/w", Env: map[string]string{}}
	for i := range maxShown + 5 {
		d.Args = append(d.Args, fmt.Sprint("arg", i))
		d.Env[fmt.Sprintf("V%03d", i)] = ""
	}
	var b strings.Builder
	if err := (&Question{Declaration: d, Clean: clean}).Show(&b); err != nil {
		t.Fatal(err)
	}
	got := b.String()
	for _, want := range []string{
		"\"" + d.Command + "\"\n", "  arguments  205\n", "    200  \"arg199\"\n    and 5 more, not shown (all arguments: " + sum(appendList(nil, d.Args)) + ")\n",
		"  variables  205\n", "    V199 = \"\"\n    and 5 more, not shown (all names: sha256 ",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %.80q in\n%.200s", want, got)
		}
	}
	if strings.Contains(got, "warning") || strings.Contains(got, "earlier") || strings.Contains(got, "arg200") {
		t.Errorf("too much is shown: %s", got)
	}
	if err := (&Question{Declaration: d}).Show(io.Discard); err == nil {
		t.Error("Show without a cleaner: want an error")
	}
	b.Reset()
	if err := (&Question{Declaration: Declaration{Command: "/x", Cwd: "/w"}, Clean: clean}).Show(&b); err != nil || !strings.Contains(b.String(), "arguments  none\n  variables  none\n") {
		t.Errorf("Show = %v, %s", err, b.String())
	}
}

func TestQuestionEarlier(t *testing.T) {
	t.Parallel()
	d := Declaration{Command: "/x", Args: []string{"a"}, Env: map[string]string{"A": "2"}, Cwd: "/w"}
	for want, g := range map[string]*Grant{
		"a value that was not kept":                      {Command: "/x", Args: []string{"a"}, EnvNames: []string{"A"}, Cwd: "/w"},
		"command, folder, arguments, names of variables": {},
		"names of variables":                             {Command: "/x", Args: []string{"a"}, EnvNames: []string{"B"}, Cwd: "/w"},
		"folder":                                         {Command: "/x", Args: []string{"a"}, EnvNames: []string{"A"}, Cwd: "/v"},
	} {
		var b strings.Builder
		if err := (&Question{Declaration: d, Earlier: g, Clean: clean}).Show(&b); err != nil || !strings.Contains(b.String(), "different now: "+want+"\n") {
			t.Errorf("Show = %v, %s, want %s", err, b.String(), want)
		}
	}
}

func TestQuestionAsk(t *testing.T) {
	t.Parallel()
	q := &Question{Declaration: Declaration{Command: "/x", Cwd: "/w"}, Clean: clean}
	met := Conditions{TTYIn: true, TTYOut: true}
	for answer, want := range map[string]bool{
		"yes\n": true, " YES \r\n": true, "y\n": false, "\n": false, "": false, "no\nyes\n": false, "yes": false, "yes please\n": false,
		strings.Repeat(" ", maxAnswer) + "yes\n": false,
	} {
		in := strings.NewReader(answer)
		var out strings.Builder
		got, err := q.Ask(in, &out, met)
		if got != want || err != nil || !strings.Contains(out.String(), "Type yes") {
			t.Errorf("Ask with %.20q = %v, %v, want %v", answer, got, err, want)
		}
		if rest, _ := io.ReadAll(in); answer == "no\nyes\n" && string(rest) != "yes\n" {
			t.Errorf("Ask left %q, want the next line whole", rest)
		}
	}
	broken := errors.New("unplugged")
	if got, err := q.Ask(iotest.ErrReader(broken), io.Discard, met); got || !errors.Is(err, broken) {
		t.Errorf("Ask with a broken input = %v, %v", got, err)
	}

	digest, _ := q.Declaration.Digest()
	for _, test := range []struct {
		c    Conditions
		want []string
	}{
		{Conditions{TTYOut: true}, []string{"the standard input is no terminal"}},
		{Conditions{TTYIn: true}, []string{"the standard output is no terminal"}},
		{Conditions{TTYIn: true, TTYOut: true, JSON: true}, []string{"--json is given"}},
		{Conditions{TTYIn: true, TTYOut: true, CI: true}, []string{"CI is set"}},
	} {
		in := strings.NewReader("yes\n")
		var out strings.Builder
		got, err := q.Ask(in, &out, test.c)
		unasked, ok := errors.AsType[*UnaskedError](err)
		if got || !ok || unasked.Digest != digest || !slices.Equal(unasked.Unmet, test.want) || out.Len() > 0 || in.Len() != 4 {
			t.Errorf("Ask under %+v = %v, %v, want unasked: %s", test.c, got, err, test.want)
		}
	}
}

func TestCI(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]bool{"": false, "0": false, "false": false, "False": false, "1": true, "true": true, "no": true, " ": true} {
		if got := CI(value); got != want {
			t.Errorf("CI(%q) = %v, want %v", value, got, want)
		}
	}
}

// The marked variables are those of the list, and no others of it.
func TestMarked(t *testing.T) {
	t.Parallel()
	list := readDenylist(t)
	for _, name := range list.Warn.Exact {
		if !marked(name) || !marked(strings.ToLower(name)) {
			t.Errorf("marked(%s) = false, want true", name)
		}
	}
	if marked("GITHUB_TOKEN") || marked("") {
		t.Error("marked of an ordinary name = true")
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	for _, test := range []struct {
		command string // with its arguments
		want    string // the package
	}{
		{"npx -y x", "x"},
		{"npx -y x@1.2.3", ""},
		{"npx -y x@1.2.3-rc.1 --port 3", ""},
		{"npx x@latest", "x@latest"},
		{"npx x@1", "x@1"},
		{"npx x@^1.2.3", "x@^1.2.3"},
		{"npx x@1.2.x", "x@1.2.x"},
		{"npx @acme/x", "@acme/x"},
		{"npx @acme/x@0.4.0", ""},
		{"npx --yes --package=@acme/x x-server", "@acme/x"},
		{"npx -p x@1.2.3 x-server", ""},
		{"npx -p x@1.2.3 -p z x-server", "z"},
		{"npx --registry https://r.example x@1.2.3", ""},
		{"npx ./server", ""},
		{"npx", ""},
		{"NPX.CMD -y x", "x"},
		{"npm exec -- x", "x"},
		{"npm install x", ""},
		{"pnpm dlx x@1.0.0", ""},
		{"pnpm --silent dlx x", "x"},
		{"yarn dlx x", "x"},
		{"bunx x", "x"},
		{"uvx mcp-server-git", "mcp-server-git"},
		{"uvx mcp-server-git==1.2", ""},
		{"uvx mcp-server-git==1.*", "mcp-server-git==1.*"},
		{"uvx --from git+https://h.example/r server", "git+https://h.example/r"},
		{"uv tool run x", "x"},
		{"pipx run --spec x==1 x", ""},
		{"deno run -A npm:@acme/x", "npm:@acme/x"},
		{"deno run -A npm:@acme/x@1.2.3/bin", ""},
		{"deno run main.ts", ""},
		{"node server.js", ""},
		{"python3.12 -m server", ""},
		{"wren x", ""},
	} {
		words := strings.Fields(test.command)
		d := Declaration{Command: "/usr/bin/" + words[0], Args: words[1:], Cwd: empty}
		var want []string
		if test.want != "" {
			want = []string{"package \"" + test.want + "\" has no fixed version: whatever is newest runs"}
		}
		if got := d.Warnings(); !slices.Equal(got, want) {
			t.Errorf("Warnings of %s = %q, want %q", test.command, got, want)
		}
	}
	full := t.TempDir()
	mustWriteFile(t, filepath.Join(full, "pyproject.toml"))
	for command, want := range map[string]int{"python": 1, "python3": 1, "nodejs": 1, "pythonista": 0, "wren": 0} {
		d := Declaration{Command: "/bin/" + command, Cwd: full}
		if got := d.Warnings(); len(got) != want {
			t.Errorf("Warnings of %s = %q, want %d", command, got, want)
		}
	}
}
