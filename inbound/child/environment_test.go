package child

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Report T13: a small set of the host's variables and what was declared.
func TestNewEnvironment(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("the host's names are another set")
	}
	host := []string{
		"PATH=/bin:.:relative:/usr/bin", "HOME=/home/x", "USER=x", "LOGNAME=x", "SHELL=/bin/sh", "LANG=C.UTF-8",
		"LC_ALL=C", "LC_TIME=de", "TZ=UTC", "TERM=xterm", "TMPDIR=/tmp",
		"SSH_AUTH_SOCK=/s", "AWS_SECRET_ACCESS_KEY=k", "NODE_OPTIONS=-r x", "RELAVIUM_ANTHROPIC_API_KEY=k",
		"LD_PRELOAD=/x.so", "HTTPS_PROXY=http://p", "https_proxy=http://q", "SSL_CERT_FILE=/c", "=odd", "odd", "PWD=/w", "LC=x", "TMP=/t",
	}
	base := "PATH=/bin:/usr/bin HOME=/home/x USER=x LOGNAME=x SHELL=/bin/sh LANG=C.UTF-8 LC_ALL=C LC_TIME=de TZ=UTC TERM=xterm TMPDIR=/tmp"
	for _, tc := range []struct {
		name string
		v    Variables
		want string
		err  string
	}{
		{name: "nothing", want: ""},
		{name: "the host's", v: Variables{Host: host}, want: base},
		{
			name: "proxies that the user lets through", v: Variables{Host: host, Pass: []string{"HTTPS_PROXY", "SSL_CERT_FILE", "NO_PROXY"}},
			want: base + " HTTPS_PROXY=http://p SSL_CERT_FILE=/c",
		},
		{name: "not just anything is let through", v: Variables{Host: host, Pass: []string{"SSH_AUTH_SOCK"}}, err: `"SSH_AUTH_SOCK": no proxy or CA variable`},
		{
			name: "declared wins over the host's", v: Variables{Host: []string{"LANG=C"}, Declared: []Variable{{"LANG", []byte("de")}, {"TOKEN", []byte("a=b c")}}},
			want: "LANG=de TOKEN=a=b c",
		},
		{name: "a later declaration wins", v: Variables{Declared: []Variable{{"A", []byte("1")}, {"A", []byte("2")}}}, want: "A=2"},
		{name: "denied", v: Variables{Declared: []Variable{{"LD_PRELOAD", []byte("/x")}}}, err: `"LD_PRELOAD": `},
		{name: "denied whatever the case", v: Variables{Declared: []Variable{{"Node_Options", []byte("/x")}}}, err: `"Node_Options": `},
		{name: "PATH is denied", v: Variables{Host: host, Declared: []Variable{{"PATH", []byte("/x")}}}, err: `"PATH": `},
		{name: "a proxy is denied", v: Variables{Host: host, Declared: []Variable{{"https_proxy", []byte("/x")}}}, err: `"https_proxy": `},
		{name: "no identifier", v: Variables{Declared: []Variable{{"A=B", []byte("x")}}}, err: `"A=B": `},
		{name: "a NUL", v: Variables{Declared: []Variable{{"A", []byte("canary\x00")}}}, err: `"A": its value holds a NUL`},
		{
			name: "the product's own", v: Variables{Host: host[:1], Own: []Variable{{"GIT_CONFIG_NOSYSTEM", []byte("1")}, {"PATH", []byte("/only")}}},
			want: "PATH=/only GIT_CONFIG_NOSYSTEM=1",
		},
		{name: "own needs a name", v: Variables{Own: []Variable{{"", nil}}}, err: `"": not a variable name`},
		{name: "at the bound", v: Variables{Own: []Variable{{"A", []byte(strings.Repeat("canary", 1<<20)[:maxValueBytes-3])}}}, want: "A=" + strings.Repeat("canary", 1<<20)[:maxValueBytes-3]},
		{name: "over the bound", v: Variables{Own: []Variable{{"A", []byte(strings.Repeat("canary", 1<<20)[:maxValueBytes-2])}}}, err: `"A": over 131072 bytes`},
	} {
		env, err := NewEnvironment(tc.v)
		if tc.err != "" {
			var refused *EnvironmentError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: NewEnvironment = %v, want %s", tc.name, err, tc.err)
			} else if strings.Contains(err.Error(), "canary") {
				t.Errorf("%s: the error holds a value: %v", tc.name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: NewEnvironment = %v", tc.name, err)
			continue
		}
		var entries []string
		for _, entry := range env.entries {
			entries = append(entries, string(entry))
		}
		if diff := cmp.Diff(tc.want, strings.Join(entries, " ")); diff != "" {
			t.Errorf("%s: -want +got\n%s", tc.name, diff)
		}
	}
}

func TestEnvironmentBound(t *testing.T) {
	t.Parallel()
	var own []Variable
	for i := range 9 {
		own = append(own, Variable{fmt.Sprintf("V%d", i), make([]byte, 120<<10)})
		for j := range own[i].Value {
			own[i].Value[j] = 'x'
		}
	}
	if _, err := NewEnvironment(Variables{Own: own[:8]}); err != nil {
		t.Errorf("960 KiB: %v", err)
	}
	if _, err := NewEnvironment(Variables{Own: own}); err == nil || !strings.Contains(err.Error(), `"V8": all variables together`) {
		t.Errorf("1080 KiB: %v", err)
	}
}

// TestEnvironmentIsSecret prints an environment in every way and clears it.
func TestEnvironmentIsSecret(t *testing.T) {
	t.Parallel()
	env, err := NewEnvironment(Variables{Declared: []Variable{{"TOKEN", []byte("canary-value")}}})
	if err != nil {
		t.Fatal(err)
	}
	spec := Spec{Path: "/p", Env: env}
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if s := fmt.Sprintf(format+" "+format, env, spec); strings.Contains(s, "canary") {
			t.Errorf("%s prints %s", format, s)
		}
	}
	entry := env.entries[0]
	table := NewTable(TableOptions{})
	if _, err := table.Start(t.Context(), spec); err == nil {
		t.Error("Start without a folder succeeded")
	}
	if strings.Contains(string(entry), "canary") {
		t.Errorf("a start left %q", entry)
	}
	if diff := cmp.Diff([]string{"TOKEN"}, mustEnvironment(t, "TOKEN").Names()); diff != "" {
		t.Error(diff)
	}
}

func mustEnvironment(t *testing.T, names ...string) Environment {
	t.Helper()
	var v Variables
	for _, name := range names {
		v.Declared = append(v.Declared, Variable{name, []byte("value")})
	}
	env, err := NewEnvironment(v)
	if err != nil {
		t.Fatal(err)
	}
	return env
}
