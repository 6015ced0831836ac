package secrets

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"filippo.io/age"
)

// seal encrypts as the age command does.
func seal(t *testing.T, content string, recipients ...age.Recipient) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := age.Encrypt(&out, recipients...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func newIdentity(t *testing.T) *age.X25519Identity {
	t.Helper()
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

func value(t *testing.T, s *Store, id string) string {
	t.Helper()
	secret, err := s.MCPSecrets().Resolve(t.Context(), id)
	if err != nil {
		return err.Error()
	}
	return secret.Reveal()
}

func TestAgeFileByHand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	identity := newIdentity(t)
	write(t, dir, "mine.key", "# my key\n"+identity.String()+"\n")
	write(t, dir, "mine.age", string(seal(t, `{"mcp/token": "from the age command"}`, identity.Recipient())))
	store := open(t, Options{AgeFile: filepath.Join(dir, "mine.age"), AgeIdentity: filepath.Join(dir, "mine.key")})
	if got := value(t, store, "token"); got != "from the age command" {
		t.Errorf("Resolve = %q", got)
	}
	// What changed on the disk is read anew.
	write(t, dir, "mine.age", string(seal(t, `{"mcp/token": "another"+""}`, identity.Recipient())))
	if got := value(t, store, "token"); !strings.HasSuffix(got, "age file: holds no JSON object of names and texts") {
		t.Errorf("Resolve = %q", got)
	}
	write(t, dir, "mine.age", string(seal(t, `{"mcp/token": "another value"}`, identity.Recipient())))
	if got := value(t, store, "token"); got != "another value" {
		t.Errorf("Resolve = %q", got)
	}
}

func TestAgeFileMakesItsKey(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	store := open(t, Options{Home: home})
	where, err := store.Set(t.Context(), names(t, "mcp/token")[0], []byte(canary), "")
	if err != nil || where != AgeFile {
		t.Fatalf("Set = %q, %v, want %q", where, err, AgeFile)
	}
	if _, err := store.Set(t.Context(), names(t, "search")[0], []byte("another one"), ""); err != nil {
		t.Fatal(err)
	}
	if got := value(t, open(t, Options{Home: home}), "token"); got != canary {
		t.Errorf("Resolve in another process = %q", got)
	}
	for _, name := range []string{"secrets.age", "age.key", lockFile} {
		about, err := os.Stat(filepath.Join(home, name))
		if err != nil {
			t.Fatal(err)
		}
		if about.Mode().Perm()&0o077 != 0 {
			t.Errorf("mode of %s = %v", name, about.Mode())
		}
		content, err := os.ReadFile(filepath.Join(home, name))
		if err != nil || bytes.Contains(content, []byte("canary")) {
			t.Errorf("%s = %q, %v", name, content, err)
		}
	}
	// The age command could read it.
	src, err := os.ReadFile(filepath.Join(home, "age.key"))
	if err != nil {
		t.Fatal(err)
	}
	identities, err := age.ParseIdentities(bytes.NewReader(src))
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := os.Open(filepath.Join(home, "secrets.age"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sealed.Close() }()
	plain, err := age.Decrypt(sealed, identities...)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(plain)
	if want := `{"mcp/token":"` + canary + `","search":"another one"}`; err != nil || string(got) != want {
		t.Errorf("the file holds %s, %v, want %s", got, err, want)
	}
}

func TestAgeFileWithPassphrase(t *testing.T) {
	t.Parallel()
	const phrase = "correct horse battery staple"
	home := t.TempDir()
	recipient, err := age.NewScryptRecipient(phrase)
	if err != nil {
		t.Fatal(err)
	}
	recipient.SetWorkFactor(10)
	write(t, home, "secrets.age", string(seal(t, `{"mcp/token": "behind a passphrase"}`, recipient)))
	if got := value(t, open(t, Options{Home: home}), "token"); !strings.Contains(got, "needs a passphrase, which is asked for on a terminal only") {
		t.Errorf("without a terminal: %q", got)
	}
	typed := []string{"wrong", "", phrase}
	asked := 0
	store := open(t, Options{Home: home, Passphrase: func(context.Context) ([]byte, error) {
		asked++
		return []byte(typed[min(asked, len(typed))-1]), nil
	}})
	if got := value(t, store, "token"); !strings.Contains(got, "not the one it was encrypted with") {
		t.Errorf("with a wrong passphrase: %q", got)
	}
	if got := value(t, store, "token"); !strings.Contains(got, "none was given") {
		t.Errorf("with an empty passphrase: %q", got)
	}
	for range 3 {
		if got := value(t, store, "token"); got != "behind a passphrase" {
			t.Errorf("with the passphrase: %q", got)
		}
	}
	// A change keeps the passphrase, and asks for it no second time.
	if _, err := store.Set(t.Context(), names(t, "mcp/more")[0], []byte(canary), AgeFile); err != nil {
		t.Fatal(err)
	}
	if asked != 3 {
		t.Errorf("asked %d times, want 3", asked)
	}
	again := open(t, Options{Home: home, Passphrase: func(context.Context) ([]byte, error) { return []byte(phrase), nil }})
	if got := value(t, again, "more") + "+" + value(t, again, "token"); got != canary+"+behind a passphrase" {
		t.Errorf("after the change: %q", got)
	}
	if _, err := os.Stat(filepath.Join(home, "age.key")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a key file was made: %v", err)
	}
	refusing := open(t, Options{Home: home, Passphrase: func(context.Context) ([]byte, error) { return nil, io.EOF }})
	if got := value(t, refusing, "token"); !strings.Contains(got, "none was given") {
		t.Errorf("without an answer: %q", got)
	}
}

func TestAgeFileRefuses(t *testing.T) {
	t.Parallel()
	identity, other := newIdentity(t), newIdentity(t)
	good := string(seal(t, `{"mcp/token": "a good value"}`, identity.Recipient()))
	hard, err := age.NewScryptRecipient("phrase")
	if err != nil {
		t.Fatal(err)
	}
	hard.SetWorkFactor(10)
	for _, tt := range []struct {
		name, file, key string
		want            string
	}{
		{"good", good, identity.String(), "a good value"},
		{"other key", good, other.String(), "the key or passphrase is not the one it was encrypted with"},
		{"no key", good, "", "its key file is not there"},
		{"empty key", good, "# nothing\n", "its key file holds no age identities"},
		{"garbage", "garbage", identity.String(), "not an age file that can be read"},
		{"cut", good[:len(good)-5], identity.String(), "damaged"},
		{"changed", good[:len(good)-1] + "x", identity.String(), "damaged"},
		{"no object", string(seal(t, `["x"]`, identity.Recipient())), identity.String(), "holds no JSON object"},
		{"null", string(seal(t, `null`, identity.Recipient())), identity.String(), "holds no JSON object"},
		{"number", string(seal(t, `{"mcp/token": 12345678}`, identity.Recipient())), identity.String(), "holds no JSON object"},
		{"short", string(seal(t, `{"mcp/token": "1234567"}`, identity.Recipient())), identity.String(), "the value is shorter than 8 bytes"},
		{"large", strings.Repeat("x", maxAgeFileBytes+1), identity.String(), "is too large"},
	} {
		home := t.TempDir()
		write(t, home, "secrets.age", tt.file)
		if tt.key != "" {
			write(t, home, "age.key", tt.key)
		}
		if got := value(t, open(t, Options{Home: home}), "token"); !strings.Contains(got, tt.want) {
			t.Errorf("%s: Resolve = %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestAgeFileForOthersIsNotWritten(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	mine, team := newIdentity(t), newIdentity(t)
	sealed := string(seal(t, `{"mcp/token": "of the team"}`, mine.Recipient(), team.Recipient()))
	write(t, home, "secrets.age", sealed)
	write(t, home, "age.key", mine.String())
	store := open(t, Options{Home: home})
	if got := value(t, store, "token"); got != "of the team" {
		t.Errorf("Resolve = %q", got)
	}
	_, err := store.Set(t.Context(), names(t, "mcp/token")[0], []byte(canary), AgeFile)
	if err == nil || !strings.Contains(err.Error(), "several recipients") {
		t.Errorf("Set = %v, want a refusal", err)
	}
	if now, err := os.ReadFile(filepath.Join(home, "secrets.age")); err != nil || string(now) != sealed {
		t.Errorf("the file was changed: %v", err)
	}
}

func TestAgeFileIsChangedByOneAtATime(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			store := open(t, Options{Home: home}) // as another process
			if _, err := store.Set(t.Context(), names(t, fmt.Sprintf("mcp/n%d", i))[0], fmt.Appendf(nil, "value-%d-of-eight", i), ""); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	store := open(t, Options{Home: home})
	for i := range 8 {
		if got, want := value(t, store, fmt.Sprintf("n%d", i)), fmt.Sprintf("value-%d-of-eight", i); got != want {
			t.Errorf("n%d = %q, want %q", i, got, want)
		}
	}
	left, err := filepath.Glob(filepath.Join(home, ".secrets-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestSetRefuses(t *testing.T) {
	t.Parallel()
	name := names(t, "mcp/token")[0]
	store := open(t, Options{})
	for _, v := range []string{"", "1234567", "nul\x00nul\x00", strings.Repeat("x", MaxBytes+1)} {
		if where, err := store.Set(t.Context(), name, []byte(v), ""); err == nil {
			t.Errorf("Set(%d bytes) = %q, want a refusal", len(v), where)
		}
	}
	for _, where := range []Source{Variable, File, Credential, Keychain, "elsewhere"} {
		if _, err := store.Set(t.Context(), name, []byte(canary), where); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("Set in %q = %v, want a refusal", where, err)
		}
	}
	if _, err := open(t, Options{Home: filepath.Join(t.TempDir(), "none")}).Set(t.Context(), name, []byte(canary), ""); err == nil {
		t.Error("Set made its folder")
	}
}
