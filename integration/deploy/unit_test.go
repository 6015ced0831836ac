package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestUnit lets systemd read the unit. It exits with 0 on keys that it does not know, so
// that any word of it is a failure.
func TestUnit(t *testing.T) {
	t.Parallel()
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("no systemd-analyze here (Debian: systemd)")
	}
	raw, err := os.ReadFile(filepath.Join("..", "..", "deploy", "systemd", "relavium-serve.service"))
	if err != nil {
		t.Fatal(err)
	}
	const installed = "/usr/local/bin/relavium-serve"
	if !strings.Contains(string(raw), "ExecStart="+installed+" ") {
		t.Fatalf("it does not start %s", installed)
	}
	// It wants the program to be there.
	unit := strings.ReplaceAll(string(raw), "ExecStart="+installed+" ", "ExecStart="+analyze+" ")
	verify := func(text string) string {
		path := filepath.Join(t.TempDir(), "relavium-serve.service")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", path).CombinedOutput()
		if err != nil {
			return string(out) + err.Error()
		}
		return string(out)
	}
	if said := verify(unit); said != "" {
		t.Errorf("systemd-analyze verify:\n%s\nwant nothing", said)
	}
	if said := verify(strings.Replace(unit, "[Install]", "NoSuchKey=yes\n[Install]", 1)); said == "" {
		t.Error("systemd-analyze says nothing of a key that there is not: this test would not fail")
	}
}
