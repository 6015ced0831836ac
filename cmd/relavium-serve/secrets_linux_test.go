package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"filippo.io/age"
)

// A value that is typed is not on the screen, and neither is the passphrase.
func TestSecretsAreTypedUnseen(t *testing.T) {
	t.Parallel()
	project := gatedProject(t)
	home := filepath.Join(filepath.Dir(project), "home")
	const phrase = "correct horse battery staple"
	recipient, err := age.NewScryptRecipient(phrase)
	if err != nil {
		t.Fatal(err)
	}
	recipient.SetWorkFactor(10)
	var sealed bytes.Buffer
	w, err := age.Encrypt(&sealed, recipient)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(w, `{}`); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, "secrets.age"), sealed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}

	s := openScreen(t)
	_, code := s.start(t.Context(), project, "secrets", "set", "mcp/token")
	_, at := s.await(`value of mcp/token \(not shown\): `, 0)
	s.enter("canary-that-is-typed")
	_, at = s.await(`passphrase of the age file: `, at)
	s.enter(phrase)
	_, at = s.await(`mcp/token is kept in the age file`, at)
	if got := <-code; got != exitDone {
		t.Fatalf("secrets set = exit %d, want 0\n%s", got, s.text())
	}
	stdout, code := s.start(t.Context(), project, "secrets", "doctor", "mcp/token", "--json")
	s.await(`passphrase of the age file: `, at)
	s.enter(phrase)
	if got := <-code; got != exitDone {
		t.Fatalf("secrets doctor = exit %d, want 0\n%s", got, s.text())
	}
	var shown explanation
	if err := json.Unmarshal(stdout.Bytes(), &shown); err != nil || shown.Source != "age file" {
		t.Errorf("secrets doctor = %s, %v, want the age file", stdout, err)
	}
	for _, hidden := range []string{"canary", "correct horse"} {
		if strings.Contains(s.text()+stdout.String(), hidden) {
			t.Errorf("%q is on the screen:\n%s", hidden, s.text())
		}
	}
}

// Ctrl-C at the question leaves the terminal as it was.
func TestSecretsSetCancelled(t *testing.T) {
	t.Parallel()
	s := openScreen(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, code := s.start(ctx, gatedProject(t), "secrets", "set", "mcp/token")
	s.await(`not shown`, 0)
	cancel()
	if got := <-code; got == exitDone {
		t.Errorf("secrets set = exit %d after a cancel", got)
	}
	s.enter("echoed-again")
	s.await(`echoed-again`, 0)
}
