package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/relavium/relavium-serve/engine/durable/durabletest"
	"github.com/relavium/relavium-serve/inbound/child"
)

func TestMain(m *testing.M) {
	if child.Supervising() {
		os.Exit(child.Supervise()) //nolint:forbidigo // this is main
	}
	testscript.Main(leakChecked{m}, map[string]func(){"relavium-serve": main, "mcp-fixture": mcpFixture})
}

// leakChecked fails a test run that leaves goroutines behind.
type leakChecked struct{ *testing.M }

func (m leakChecked) Run() int {
	code := m.M.Run()
	if code != 0 {
		return code
	}
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// TestScript runs the command as a user does: testdata/script/*.txtar. Each
// script has a home and a project of its own.
func TestScript(t *testing.T) {
	t.Parallel()
	runScripts(t, "script", nil)
}

// TestPostgresScript runs scripts with a database each, whose URL is in $URL:
// testdata/postgres/*.txtar.
func TestPostgresScript(t *testing.T) {
	t.Parallel()
	durabletest.Shared(t) // or skip
	runScripts(t, "postgres", func(env *testscript.Env) { env.Setenv("URL", durabletest.Shared(t)) })
}

func runScripts(t *testing.T, dir string, setup func(*testscript.Env)) {
	t.Helper()
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", dir),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			home := filepath.Join(env.WorkDir, "user")
			env.Setenv("HOME", home)
			env.Setenv("USERPROFILE", home)
			env.Setenv("RELAVIUM_HOME", filepath.Join(home, ".relavium"))
			env.Setenv("NO_COLOR", "1")
			// Where npm has put the servers of the integration tests, if it has.
			if servers, err := filepath.Abs(filepath.Join("..", "..", "integration", "servers", "node_modules", ".bin")); err == nil {
				env.Setenv("SERVERS", servers)
			}
			if setup != nil {
				setup(env)
			}
			return os.MkdirAll(home, 0o700)
		},
		Condition: func(cond string) (bool, error) {
			if cond != "servers" {
				return false, fmt.Errorf("unknown condition %q", cond)
			}
			_, err := os.Stat(filepath.Join("..", "..", "integration", "servers", "node_modules", ".bin", "mcp-server-filesystem"))
			_, noNode := exec.LookPath("node")
			return err == nil && noNode == nil, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":    cmdExits,
			"pick":     cmdPick,
			"template": cmdTemplate,
			"mode":     cmdMode,
			"long":     cmdLong,
		},
	})
}

// cmdExits runs a command that must end with the given exit code:
//
//	exits 2 relavium-serve ...
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE command [args...]")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if err != nil {
		var ok bool
		if got, ok = strings.CutPrefix(err.Error(), "exit status "); !ok {
			ts.Fatalf("%v", err)
		}
	}
	if got != args[0] {
		ts.Fatalf("%s = exit %s, want %s", strings.Join(args[1:], " "), got, args[0])
	}
}

// cmdPick sets a variable to a value of the JSON that the last command printed:
//
//	pick NAME KEY [KEY...]
//
// A key is an object's key, or a list's index.
func cmdPick(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: pick NAME KEY [KEY...]")
	}
	value := json.RawMessage(ts.ReadFile("stdout"))
	if i := bytes.LastIndexByte(bytes.TrimRight(value, "\n"), '\n'); i >= 0 && !json.Valid(value) {
		value = value[i+1:] // NDJSON: the last line
	}
	for _, key := range args[1:] {
		var object map[string]json.RawMessage
		var list []json.RawMessage
		switch {
		case json.Unmarshal(value, &object) == nil:
			value = object[key]
		case json.Unmarshal(value, &list) == nil && len(key) == 1 && int(key[0]-'0') < len(list):
			value = list[key[0]-'0']
		default:
			ts.Fatalf("no %q in %s", key, value)
		}
	}
	var text string
	if json.Unmarshal(value, &text) != nil {
		text = string(value)
	}
	ts.Setenv(args[0], text)
}

// cmdTemplate writes a file with its variables filled in; ${X:4} is the last
// four characters of X:
//
//	template FILE RESULT
func cmdTemplate(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: template FILE RESULT")
	}
	text := os.Expand(ts.ReadFile(args[0]), func(name string) string {
		if name, ok := strings.CutSuffix(name, ":4"); ok {
			return tail(ts.Getenv(name))
		}
		return ts.Getenv(name)
	})
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(text), 0o600))
}

// cmdLong sets LONG to a text of so many characters: long 65537.
func cmdLong(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: long CHARACTERS")
	}
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	ts.Setenv("LONG", strings.Repeat("x", n))
}

// cmdMode compares the permissions of a file: mode 600 FILE.
func cmdMode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: mode OCTAL FILE")
	}
	about, err := os.Lstat(ts.MkAbs(args[1]))
	ts.Check(err)
	if got := strings.TrimLeft(about.Mode().Perm().String(), "-"); got != octal(args[0]) {
		ts.Fatalf("mode of %s = %s, want %s", args[1], got, octal(args[0]))
	}
}

func octal(digits string) string {
	text := ""
	for _, digit := range digits {
		for i, letter := range "rwx" {
			if (digit-'0')&(4>>i) != 0 {
				text += string(letter)
			} else {
				text += "-"
			}
		}
	}
	return strings.TrimLeft(text, "-")
}
