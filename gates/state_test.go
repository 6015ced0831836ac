package gates

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/engine"
)

func newKeys(tb testing.TB, log *logged) *Keys {
	tb.Helper()
	k, err := NewKeys(log.logger())
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

// why is the reason of a refusal, or "" for none.
func why(err error) string {
	if refused, ok := errors.AsType[*StateError](err); ok {
		return refused.Why
	}
	if err != nil {
		return "another error: " + err.Error()
	}
	return ""
}

func digestOf(tb testing.TB, method, tool, arguments string) string {
	tb.Helper()
	var raw json.RawMessage
	if arguments != "" {
		raw = json.RawMessage(arguments)
	}
	d, err := RequestDigest(method, tool, raw)
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

func aState(tb testing.TB) *State {
	tb.Helper()
	return &State{
		Run: "run-1", Nonce: "nonce-1", Principal: "local", Definition: "def-1", Round: 3,
		Asked:   []Asked{{Gate: "g1", Key: "ask"}, {Gate: "g2", Key: "user_name", Field: "name", Again: true}},
		Request: digestOf(tb, "tools/call", "relavium_deploy", `{"env":"prod"}`),
		At:      time.Date(2026, 11, 30, 12, 0, 0, 123456789, time.UTC),
		Ends:    time.Date(2026, 11, 30, 13, 0, 0, 0, time.UTC),
	}
}

func TestStateComesBackWhole(t *testing.T) {
	t.Parallel()
	k := newKeys(t, &logged{})
	want := aState(t)
	sealed, err := k.Seal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := k.Open(sealed, engine.Local)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("state (-sealed +opened):\n%s", diff)
	}
	for _, secret := range []string{"run-1", "nonce-1", "user_name", "local", "def-1"} {
		body, err := base64.RawURLEncoding.DecodeString(sealed[strings.LastIndexByte(sealed, '.')+1:])
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(body), secret) {
			t.Errorf("the sealed state shows %q", secret)
		}
	}
	if again, err := k.Seal(want); err != nil || again == sealed {
		t.Errorf("Seal of the same state = %q, %v, want another text", again, err)
	}
	if err := got.Of(want.Request, "def-1"); err != nil {
		t.Errorf("Of its own request = %v", err)
	}
	if got.Over(want.Ends) || !got.Over(want.Ends.Add(time.Second)) {
		t.Errorf("Over at and after %s = %t, %t, want false, true", want.Ends, got.Over(want.Ends), got.Over(want.Ends.Add(time.Second)))
	}
	if endless := (&State{}); endless.Over(time.Now()) {
		t.Error("a state without end is over")
	}
}

func TestStateIsRefused(t *testing.T) {
	t.Parallel()
	log := &logged{}
	k := newKeys(t, log)
	sealed, err := k.Seal(aState(t))
	if err != nil {
		t.Fatal(err)
	}
	head, body, _ := strings.Cut(strings.TrimPrefix(sealed, "v1."), ".")
	raw, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	other, err := newKeys(t, log).Seal(aState(t))
	if err != nil {
		t.Fatal(err)
	}
	_, otherBody, _ := strings.Cut(strings.TrimPrefix(other, "v1."), ".")
	plain, err := json.Marshal(aState(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, forged := range map[string]string{
		"empty":                     "",
		"no parts":                  "v1",
		"two parts":                 "v1." + head,
		"no version":                head + "." + body,
		"another version":           "v2." + head + "." + body,
		"plain text":                "v1." + head + "." + encode(plain),
		"another key":               other,
		"another key under our id":  "v1." + head + "." + otherBody,
		"our body under another id": "v1.00000000." + body,
		"cut":                       sealed[:len(sealed)-4],
		"empty body":                "v1." + head + ".",
		"padded":                    sealed + "==",
		"white space":               " " + sealed,
		"a line more":               sealed + "\n",
		"twice":                     sealed + sealed,
		"too long":                  sealed + strings.Repeat("A", maxState),
	} {
		_, err := k.Open(forged, engine.Local)
		if got := why(err); got != NotGenuine {
			t.Errorf("%s: Open = %q, want %q", name, got, NotGenuine)
		}
	}
	for i := range raw {
		for _, bit := range []byte{1, 0x80} {
			changed := append([]byte(nil), raw...)
			changed[i] ^= bit
			if _, err := k.Open("v1."+head+"."+encode(changed), engine.Local); why(err) != NotGenuine {
				t.Fatalf("with byte %d changed: Open = %q, want %q", i, why(err), NotGenuine)
			}
		}
	}
	for _, p := range []engine.Principal{"", "Local", "token:local", "oauth:https://issuer#local"} {
		if _, err := k.Open(sealed, p); why(err) != OtherPrincipal {
			t.Errorf("Open for %q = %q, want %q", p, why(err), OtherPrincipal)
		}
	}
	s, err := k.Open(sealed, engine.Local)
	if err != nil {
		t.Fatal(err)
	}
	same := digestOf(t, "tools/call", "relavium_deploy", `{"env":"prod"}`)
	for _, c := range []struct{ request, definition, want string }{
		{same, "def-1", ""},
		{digestOf(t, "tools/call", "relavium_deploy", ` { "env" : "prod" } `), "def-1", ""},
		{digestOf(t, "tools/call", "relavium_deploy", `{"env":"test"}`), "def-1", OtherRequest},
		{digestOf(t, "tools/call", "relavium_deploy", `{"env":"prod","force":true}`), "def-1", OtherRequest},
		{digestOf(t, "tools/call", "relavium_deploy", ""), "def-1", OtherRequest},
		{digestOf(t, "tools/call", "relavium_deploy2", `{"env":"prod"}`), "def-1", OtherRequest},
		{digestOf(t, "prompts/get", "relavium_deploy", `{"env":"prod"}`), "def-1", OtherRequest},
		{"", "def-1", OtherRequest},
		{same, "def-2", NotPinned},
		{same, "", NotPinned},
	} {
		err := s.Of(c.request, c.definition)
		if got := why(err); got != c.want {
			t.Errorf("Of(%.8s, %s) = %q, want %q", c.request, c.definition, got, c.want)
		}
		if err != nil {
			k.Refused(s, engine.Local, err)
		}
	}
	for _, reason := range []string{NotGenuine, OtherPrincipal, OtherRequest, NotPinned} {
		if !strings.Contains(log.String(), reason) {
			t.Errorf("the log does not say %q", reason)
		}
	}
	if strings.Contains(log.String(), body) {
		t.Error("the log holds a sealed state")
	}
}

func TestRequestDigest(t *testing.T) {
	t.Parallel()
	a := digestOf(t, "tools/call", "x", `{"a":1,"b":"é"}`)
	for _, c := range []struct {
		method, tool, arguments string
		same                    bool
	}{
		{"tools/call", "x", `{"b":"\u00e9","a":1}`, true},
		{"tools/call", "x", `{"b":"é","a":1.0}`, false}, // numbers as they were sent
		{"tools/call", "x", `{"b":"é","a":"1"}`, false},
		{"tools/cal", "lx", `{"a":1,"b":"é"}`, false},
		{"tools/call", "y", `{"a":1,"b":"é"}`, false},
	} {
		if got := digestOf(t, c.method, c.tool, c.arguments) == a; got != c.same {
			t.Errorf("RequestDigest(%s, %s, %s) is the same: %t, want %t", c.method, c.tool, c.arguments, got, c.same)
		}
	}
	if digestOf(t, "m", "t", "") != digestOf(t, "m", "t", "{}") {
		t.Error("no arguments are not the same as {}")
	}
	if _, err := RequestDigest("m", "t", json.RawMessage(`{"a":1,"a":2}`)); err == nil {
		t.Error("RequestDigest took a repeated member")
	}
}

// FuzzState hands Open what a client may make of a state. Nothing but the state
// itself opens.
func FuzzState(f *testing.F) {
	k, err := NewKeys((&logged{}).logger())
	if err != nil {
		f.Fatal(err)
	}
	sealed, err := k.Seal(aState(f))
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range []string{sealed, sealed[1:], sealed[:len(sealed)-1], strings.ToUpper(sealed), "v1..", "v1.a.b", ""} {
		f.Add(seed, "local", uint16(0), byte(0))
	}
	f.Add(sealed, "token:ann", uint16(0), byte(0))
	f.Add(sealed, "local", uint16(40), byte(1))
	f.Fuzz(func(t *testing.T, text, principal string, at uint16, flip byte) {
		// Change one byte of a genuine state, or take the text as it is.
		if flip != 0 {
			b := []byte(sealed)
			b[int(at)%len(b)] ^= flip
			text = string(b)
		}
		s, err := k.Open(text, engine.Principal(principal))
		switch {
		case err == nil && (text != sealed || principal != "local"):
			t.Errorf("Open(%q, %q) = %v, want a refusal", text, principal, s)
		case err != nil && text == sealed && principal != "local" && why(err) != OtherPrincipal:
			t.Errorf("Open for %q = %v, want %q", principal, err, OtherPrincipal)
		case err != nil && text != sealed && why(err) != NotGenuine:
			t.Errorf("Open(%q) = %v, want %q", text, err, NotGenuine)
		}
	})
}

func TestKeyFileIsMadeOnce(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	const processes = 16
	type made struct {
		keys *Keys
		err  error
	}
	all := make(chan made, processes)
	for range processes {
		go func() {
			k, err := OpenKeys(t.Context(), home, (&logged{}).logger())
			all <- made{k, err}
		}()
	}
	var first *Keys
	var sealed string
	for range processes {
		m := <-all
		if m.err != nil {
			t.Fatal(m.err)
		}
		if first == nil {
			first = m.keys
			var err error
			if sealed, err = first.Seal(aState(t)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if _, err := m.keys.Open(sealed, engine.Local); err != nil {
			t.Fatalf("a process has another key: %v", err)
		}
	}
	files, err := os.ReadDir(home)
	if err != nil || len(files) != 1 || files[0].Name() != KeyFile {
		t.Errorf("files in the home = %v, %v, want %s alone", files, err, KeyFile)
	}
	stat, err := os.Stat(filepath.Join(home, KeyFile))
	if err != nil || stat.Mode().Perm() != 0o600 {
		t.Errorf("mode of the file = %v, %v, want 0600", stat.Mode(), err)
	}
	later, err := OpenKeys(t.Context(), home, (&logged{}).logger())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := later.Open(sealed, engine.Local); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

const (
	oldLine = "k-old AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= 2026-01-01T00:00:00Z\n"
	newLine = "k-new AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE= 2026-06-01T00:00:00Z\n"
)

func writeKeys(tb testing.TB, text string, mode os.FileMode) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), KeyFile)
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		tb.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		tb.Fatal(err)
	}
	return path
}

// TestKeysRotate adds a key to the file under running processes and takes the old
// one away.
func TestKeysRotate(t *testing.T) {
	t.Parallel()
	path := writeKeys(t, oldLine, 0o600)
	open := func() *Keys {
		t.Helper()
		k, err := OpenKeyFile(t.Context(), path, (&logged{}).logger())
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	seal := func(k *Keys) string {
		t.Helper()
		s, err := k.Seal(aState(t))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	running := open()
	before := seal(running)
	if !strings.HasPrefix(before, "v1.k-old.") {
		t.Fatalf("sealed under %.12s, want k-old", before)
	}
	// The order of lines does not matter: the newest seals.
	if err := os.WriteFile(path, []byte("# rotated\n"+newLine+"\n"+oldLine), 0o600); err != nil {
		t.Fatal(err)
	}
	rotated := open()
	after := seal(rotated)
	if !strings.HasPrefix(after, "v1.k-new.") {
		t.Errorf("sealed under %.12s, want k-new", after)
	}
	if _, err := rotated.Open(before, engine.Local); err != nil {
		t.Errorf("the older key does not open: %v", err)
	}
	running.read = time.Time{} // its last reading is long ago
	if _, err := running.Open(after, engine.Local); err != nil {
		t.Errorf("a running process does not find the new key: %v", err)
	}
	if got := seal(running); !strings.HasPrefix(got, "v1.k-new.") {
		t.Errorf("it goes on to seal under %.12s, want k-new", got)
	}
	if _, err := running.Open("v1.k-none.AAAA", engine.Local); why(err) != NotGenuine {
		t.Errorf("an unknown key: %v, want %q", err, NotGenuine)
	}
	if err := os.WriteFile(path, []byte(newLine), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := open().Open(before, engine.Local); why(err) != NotGenuine {
		t.Errorf("under a key that was taken away: %v, want %q", err, NotGenuine)
	}
	// A file that breaks under a running process leaves it with what it has.
	if err := os.WriteFile(path, []byte("broken\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	running.read = time.Time{}
	if _, err := running.Open("v1.k-none.AAAA", engine.Local); why(err) != NotGenuine {
		t.Errorf("an unknown key beside a broken file: %v, want %q", err, NotGenuine)
	}
	if _, err := running.Open(after, engine.Local); err != nil {
		t.Errorf("beside a broken file the known key does not open: %v", err)
	}
}

func TestKeyFileIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, text string
		mode       os.FileMode
		want       string
	}{
		{"too short a key", "k AAAA 2026-01-01T00:00:00Z\n", 0o600, "line 1: the key is not 32 bytes"},
		{"no date", "k AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n", 0o600, "line 1: want an id, a key and a date"},
		{"a date of another kind", "k AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= yesterday\n", 0o600, "line 1: the date"},
		{"an id twice", oldLine + oldLine, 0o600, "line 2: the id"},
		{"an id with a dot", "k." + oldLine, 0o600, "line 1: the id"},
		{"too long", oldLine + strings.Repeat("#\n", maxKeyFile), 0o600, "longer than"},
		{"read by others", oldLine, 0o644, "may read it"},
	} {
		path := writeKeys(t, c.text, c.mode)
		_, err := OpenKeys(t.Context(), filepath.Dir(path), (&logged{}).logger())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: OpenKeys = %v, want %q", c.name, err, c.want)
		}
		if err != nil && (strings.Contains(err.Error(), filepath.Dir(path)) || strings.Contains(err.Error(), "AAAA")) {
			t.Errorf("%s: the error shows a path or a key: %v", c.name, err)
		}
	}
}

// TestKeyFileOfOthers is made by the operator and mounted: a link to it is taken,
// one in the home is not.
func TestKeyFileOfOthers(t *testing.T) {
	t.Parallel()
	mounted := writeKeys(t, oldLine, 0o644)
	home := t.TempDir()
	link := filepath.Join(home, KeyFile)
	if err := os.Symlink(mounted, link); err != nil {
		t.Skipf("no symbolic links here: %v", err)
	}
	if _, err := OpenKeyFile(t.Context(), link, (&logged{}).logger()); err != nil {
		t.Errorf("OpenKeyFile of a link = %v", err)
	}
	if _, err := OpenKeys(t.Context(), home, (&logged{}).logger()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("OpenKeys of a link = %v, want a refusal", err)
	}
	if err := os.Chmod(mounted, 0o664); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenKeyFile(t.Context(), mounted, (&logged{}).logger()); err == nil || !strings.Contains(err.Error(), "may write it") {
		t.Errorf("OpenKeyFile of a file that others may write = %v, want a refusal", err)
	}
	if err := os.Remove(mounted); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenKeyFile(t.Context(), mounted, (&logged{}).logger()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("OpenKeyFile of none = %v, want that it does not exist", err)
	}
	if _, err := OpenKeys(t.Context(), home, (&logged{}).logger()); err == nil {
		t.Error("OpenKeys filled the target of a link")
	}
	if _, err := os.Stat(mounted); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target of the link = %v, want that nothing made it", err)
	}
}
