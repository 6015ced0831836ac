package secrets

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

const canary = "canary-0123456789-yellow"

func TestSecretShowsItsName(t *testing.T) {
	t.Parallel()
	secret := newSecret(names(t, "mcp/token")[0], []byte(canary))
	const shown = "[secret:mcp/token]"
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%T %[1]v", "%30s"} {
		for _, form := range []any{secret, &secret} {
			if got := fmt.Sprintf(verb, form); !strings.Contains(got, shown) {
				t.Errorf("Sprintf(%q, %T) = %s, want %s", verb, form, got, shown)
			}
		}
	}
	type inner struct{ secret Secret }
	for _, holder := range []any{
		inner{secret},
		&inner{secret},
		struct{ Secret Secret }{secret},
		[]Secret{secret},
		map[string]Secret{"a": secret},
		[]any{inner{secret}},
		fmt.Errorf("x: %v", secret),
	} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%p"} {
			if got := fmt.Sprintf(verb, holder); strings.Contains(got, "canary") || strings.Contains(got, "99 97 110") || strings.Contains(got, "0x63, 0x61") || strings.Contains(got, "63616e617279") {
				t.Errorf("Sprintf(%q, %T) = %s", verb, holder, got)
			}
		}
	}
	marshaled, err := json.Marshal(map[string]any{"s": secret, "p": &secret, "l": []Secret{secret}})
	if want := `{"l":["` + shown + `"],"p":"` + shown + `","s":"` + shown + `"}`; err != nil || string(marshaled) != want {
		t.Errorf("json.Marshal = %s, %v, want %s", marshaled, err, want)
	}
	marshaled, err = xml.Marshal(secret)
	if err != nil || !bytes.Contains(marshaled, []byte(shown)) {
		t.Errorf("xml.Marshal = %s, %v, want %s", marshaled, err, shown)
	}
	var text, asJSON bytes.Buffer
	slog.New(slog.NewTextHandler(&text, nil)).Info("m", "s", secret, "g", slog.GroupValue(slog.Any("in", secret)), "h", inner{secret})
	slog.New(slog.NewJSONHandler(&asJSON, nil)).Info("m", "s", secret, "h", inner{secret})
	for _, log := range []string{text.String(), asJSON.String()} {
		if !strings.Contains(log, shown) || strings.Contains(log, "canary") {
			t.Errorf("log = %s", log)
		}
	}
}

func TestSecretReveal(t *testing.T) {
	t.Parallel()
	secret := newSecret(names(t, "search")[0], []byte(canary))
	shared := secret
	if got := shared.Reveal(); got != canary {
		t.Errorf("Reveal = %q, want %q", got, canary)
	}
	value := secret.value(false)
	shared.Wipe()
	if got := secret.Reveal(); got != "" || bytes.Contains(value[:cap(value)], []byte("canary")) {
		t.Errorf("after Wipe: Reveal = %q, memory = %q", got, value)
	}
	var zero Secret
	zero.Wipe()
	if got := zero.Reveal(); got != "" {
		t.Errorf("the zero Secret reveals %q", got)
	}
}
