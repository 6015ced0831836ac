//go:build unix

package integration

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relavium/relavium-serve/integration/fakemodel"
)

// canary is a provider key that nothing but the provider may see. It has characters
// that JSON and URLs write in another way.
const canary = `sk-canary/7f3a"9b+c=zz&41`

// spellings are the ways in which a model or a tool may give the key away.
func spellings() map[string]string {
	out := map[string]string{
		"as it is": canary,
		"JSON":     strings.Trim(string(marshal(canary)), `"`),
		"percent":  url.QueryEscape(canary),
		"hex":      hex.EncodeToString([]byte(canary)),
		"HEX":      strings.ToUpper(hex.EncodeToString([]byte(canary))),
	}
	for shift, before := range []string{"", "x", "xy"} {
		out[fmt.Sprint("base64 after ", shift)] = base64.StdEncoding.EncodeToString([]byte(before + canary + "tail"))
		out[fmt.Sprint("base64url after ", shift)] = base64.RawURLEncoding.EncodeToString([]byte(before + canary + "tail"))
	}
	return out
}

// needles are parts of the spellings that no text of ours holds by chance. Of base64
// the middle is left whatever stands around the key.
func needles() map[string]string {
	out := spellings()
	for name, text := range out {
		if strings.HasPrefix(name, "base64") {
			out[name] = text[8 : len(text)-12]
		}
	}
	return out
}

func marshal(v any) []byte {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

// TestCanary has the model say its own key in every spelling, find it in a file and
// get it from a command. It is in no event, log, error or file that we write.
func TestCanary(t *testing.T) {
	t.Parallel()
	var all []string
	for name, text := range spellings() {
		all = append(all, name+": "+text)
	}
	leak := strings.Join(all, "\n")
	fake := fakemodel.New(fakemodel.Options{Key: canary, Script: fakemodel.Script{Conversations: []fakemodel.Conversation{{Turns: []fakemodel.Turn{
		{Text: leak, Reasoning: leak, Calls: []fakemodel.Call{
			{Name: "read_file", Arguments: json.RawMessage(`{"path":"leak.txt"}`)},
			{Name: "run_command", Arguments: json.RawMessage(`{"command":"sh","args":["leak.sh"]}`)},
			{Name: "write_file", Arguments: marshal(map[string]string{"path": "out/told.txt", "content": canary})},
			{Name: "read_file", Arguments: marshal(map[string]string{"path": canary})},
		}},
		{Text: "I found " + canary + " and this: " + leak},
	}}}}})
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	in := install(t, fmt.Sprintf("[providers.anthropic]\nbase_url = %q\nallow_local_endpoint = true\n", fakemodel.URL(server.URL, "anthropic")))
	in.env = []string{"RELAVIUM_ANTHROPIC_API_KEY=" + canary}
	text := strings.NewReplacer("sh note.sh one", "sh leak.sh", "run_command, read_file", "run_command, read_file, write_file").Replace(toolUser)
	p := in.project(t, "agents", map[string]string{"tool-user": text})
	write(t, filepath.Join(p.dir, "leak.txt"), leak)
	write(t, filepath.Join(p.dir, "leak.sh"), "cat leak.txt; cat leak.txt >&2; env\n")

	stdout, stderr, _ := p.cli(t, "run", "tool-user", "--json", "--log-level", "debug")
	if n := strings.Count(stdout, "[secret:provider/anthropic]"); n < 20 {
		t.Fatalf("the key was taken out at %d places, want every spelling of it: %s%s", n, stdout, stderr)
	}
	_, human, _ := p.cli(t, "run", "tool-user", "--log-level", "debug")
	id := p.runs(t)[0].ID
	show := p.ok(t, "runs", "show", id, "--json")
	for where, said := range map[string]string{"stdout": stdout, "stderr": stderr, "the view": human, "runs show": show} {
		clean(t, where, []byte(said))
	}
	err := filepath.WalkDir(p.home, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		raw, err := os.ReadFile(path)
		clean(t, filepath.Base(path), raw)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	// The provider is sent its own key as such, and nothing of it in what was said.
	for _, e := range fake.Entries() {
		if e.Event == "request" && e.Turn > 0 {
			clean(t, "the next request", e.Body)
		}
	}
	if len(fake.Entries()) < 4 {
		t.Errorf("the model was asked %d times, want two turns of two runs: %s", len(fake.Entries())/2, stdout)
	}
}

func clean(t *testing.T, where string, raw []byte) {
	t.Helper()
	for name, text := range needles() {
		if at := bytes.Index(raw, []byte(text)); at >= 0 {
			t.Errorf("%s holds the key (%s): …%s…", where, name, raw[max(0, at-80):min(len(raw), at+40)])
		}
	}
}
