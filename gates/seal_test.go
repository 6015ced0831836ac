package gates

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func anyKeys(tb testing.TB) *Keys {
	tb.Helper()
	k, err := NewKeys(slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

// What is sealed for one purpose opens for that alone, under the keys that sealed it.
func TestSealAs(t *testing.T) {
	t.Parallel()
	k, other := anyKeys(t), anyKeys(t)
	sealed := k.SealAs("session", []byte("secret"))
	if plain, err := k.OpenAs("session", sealed); err != nil || string(plain) != "secret" {
		t.Errorf("OpenAs = %q, %v, want the secret", plain, err)
	}
	if again := k.SealAs("session", []byte("secret")); again == sealed {
		t.Error("the same is sealed alike twice")
	}
	if plain, err := k.OpenAs("other", sealed); err == nil {
		t.Errorf("OpenAs for another purpose = %q, want an error", plain)
	}
	if plain, err := other.OpenAs("session", sealed); err == nil {
		t.Errorf("OpenAs under other keys = %q, want an error", plain)
	}
	state, err := k.Seal(&State{Principal: "local"})
	if err != nil {
		t.Fatal(err)
	}
	if plain, err := k.OpenAs("session", strings.TrimPrefix(state, stateVersion+".")); err == nil {
		t.Errorf("OpenAs of a state = %q, want an error", plain)
	}
}

// A key's id may be any word; what it seals is visible ASCII still.
func TestSealAsASCII(t *testing.T) {
	t.Parallel()
	_, line, err := drawKey(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(line, " ")
	path := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(path, []byte("schlüssel-№1 "+rest), 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := OpenKeyFile(t.Context(), path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	sealed := k.SealAs("session", []byte("x"))
	if strings.ContainsFunc(sealed, func(r rune) bool { return r < 0x21 || r > 0x7e }) {
		t.Errorf("SealAs = %q, want visible ASCII", sealed)
	}
	if _, err := k.OpenAs("session", sealed); err != nil {
		t.Errorf("OpenAs = %v", err)
	}
}

// FuzzOpenAs opens what nobody sealed.
func FuzzOpenAs(f *testing.F) {
	k := anyKeys(f)
	plain := []byte(`{"p":"local"}`)
	sealed := k.SealAs("session", plain)
	for _, seed := range []string{sealed, sealed[:len(sealed)-1], sealed + "A", "", ".", "..", "v1.x.y", strings.ToUpper(sealed), strings.Repeat("A.", 99), sealed + "\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := k.OpenAs("session", text)
		if text == sealed {
			if err != nil || !bytes.Equal(got, plain) {
				t.Errorf("OpenAs = %q, %v, want %q", got, err, plain)
			}
			return
		}
		if err == nil {
			t.Errorf("OpenAs(%q) = %q, want an error", text, got)
		}
	})
}
