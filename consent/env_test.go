package consent

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

type denylist struct {
	Grammar  string `json:"name_grammar"`
	Families []struct {
		Family     string
		Exact      []string
		Prefix     []string
		Exceptions []string
	}
	Warn struct{ Exact []string } `json:"warn_in_prompt"`
}

func readDenylist(t *testing.T) denylist {
	t.Helper()
	src, err := os.ReadFile("testdata/env_denylist.json")
	if err != nil {
		t.Fatal(err)
	}
	var list denylist
	if err := json.Unmarshal(src, &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Families) < 19 || len(list.Warn.Exact) != 23 {
		t.Fatalf("testdata has %d families and %d warnings", len(list.Families), len(list.Warn.Exact))
	}
	return list
}

// mixed writes every other letter in lower case.
func mixed(name string) string {
	out := []byte(name)
	for i := range out {
		if i%2 == 1 {
			out[i] = strings.ToLower(name)[i]
		}
	}
	return string(out)
}

func TestEnvDeniedList(t *testing.T) {
	t.Parallel()
	list := readDenylist(t)
	for _, f := range list.Families {
		var names []string
		names = append(names, f.Exact...)
		for _, p := range f.Prefix {
			names = append(names, p, p+"X", p+"ANY_THING_9")
		}
		for _, name := range names {
			for _, spelled := range []string{name, strings.ToLower(name), mixed(name)} {
				if reason, denied := EnvDenied(spelled); !denied || reason == "" {
					t.Errorf("%s: EnvDenied(%s) = %q, %v, want a reason", f.Family, spelled, reason, denied)
				}
			}
		}
		for _, name := range f.Exceptions {
			for _, spelled := range []string{name, strings.ToLower(name)} {
				if reason, denied := EnvDenied(spelled); denied {
					t.Errorf("%s: EnvDenied(%s) = %s, want an exception", f.Family, spelled, reason)
				}
			}
		}
	}
	for _, name := range list.Warn.Exact {
		if reason, denied := EnvDenied(name); denied {
			t.Errorf("EnvDenied(%s) = %s, want a warning only", name, reason)
		}
	}
}

// The table in the code holds nothing that the list does not.
func TestEnvDeniedListIsWhole(t *testing.T) {
	t.Parallel()
	list := readDenylist(t)
	table := families()
	if len(table) != len(list.Families) {
		t.Fatalf("%d families, want %d", len(table), len(list.Families))
	}
	for i, f := range list.Families {
		for _, pair := range [][2][]string{{table[i].exact, f.Exact}, {table[i].prefixes, f.Prefix}, {table[i].exceptions, f.Exceptions}} {
			if got, want := strings.Join(pair[0], " "), strings.Join(pair[1], " "); got != want {
				t.Errorf("%s: got %s, want %s", f.Family, got, want)
			}
		}
	}
}

func TestEnvDeniedPasses(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"GITHUB_TOKEN", "NPM_TOKEN", "GIT_TOKEN", "GHCR_TOKEN", "JUPYTER_TOKEN", "DATABASE_URL", "NODE_ENV", "PYTHONUNBUFFERED",
		"OPENAI_API_KEY", "X", "_", "LDX", "PATHS", "HOME_DIR", "MY_LD_PRELOAD", "RELAVIUM", "ENVIRONMENT", "GIT_AUTHOR_NAME", "DEBUG", "PORT",
		strings.Repeat("A", 128),
	} {
		if reason, denied := EnvDenied(name); denied {
			t.Errorf("EnvDenied(%.20s) = %s, want none", name, reason)
		}
	}
}

func TestEnvDeniedNames(t *testing.T) {
	t.Parallel()
	grammar := regexp.MustCompile(readDenylist(t).Grammar)
	for _, name := range []string{
		"", "1A", "A B", "A-B", "A.B", "A=B", "A\n", "É", "A\x00", "Ａ", strings.Repeat("A", 129), "LD_PRELOAD ", " LD_PRELOAD",
	} {
		if grammar.MatchString(name) {
			t.Fatalf("%q is a name by the grammar", name)
		}
		if reason, denied := EnvDenied(name); !denied || !strings.HasPrefix(reason, "not a variable name") {
			t.Errorf("EnvDenied(%.20q) = %q, %v, want not a variable name", name, reason, denied)
		}
	}
}
