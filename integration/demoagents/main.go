// Command demoagents runs examples/workflows/review-diff with the built binary: two
// agents stream side by side, one of them uses a tool, a condition finds something
// that blocks, and a person is asked at a gate. Without RELAVIUM_ANTHROPIC_API_KEY in
// the environment a local stand-in answers in the provider's own wire format; with it
// the provider itself does, and nothing else is different.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"time"

	"github.com/relavium/relavium-serve/integration/fakemodel"
)

const (
	keyVariable = "RELAVIUM_ANTHROPIC_API_KEY"
	limit       = 5 * time.Minute
	workflow    = "examples/workflows/review-diff.relavium.yaml"
	input       = "examples/workflows/review-diff.input.json"
	answers     = "examples/workflows/review-diff.model.json"
)

// config lets the demo answer its own gate, as a person would at another terminal.
const config = "[gates]\naccept = [\"cli\", \"cli-noninteractive\"]\n"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := play(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// A stage is the binary and the home of its run store.
type stage struct {
	binary, home, key string
}

func play(ctx context.Context) (err error) {
	s := &stage{key: os.Getenv(keyVariable)}
	if s.binary, err = filepath.Abs(filepath.Join("bin", "relavium-serve")); err != nil {
		return err
	}
	if runtime.GOOS == "windows" {
		s.binary += ".exe"
	}
	if s.home, err = os.MkdirTemp("", "relavium-demo-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.home)) }()
	settings := config
	if s.key == "" {
		url, stop, err := standIn(ctx)
		if err != nil {
			return err
		}
		defer stop()
		s.key = "stand-in-key"
		settings += "[providers.anthropic]\nbase_url = \"" + url + "\"\nallow_local_endpoint = true\n"
		fmt.Println("no " + keyVariable + ": a local stand-in plays the model")
	}
	if err := os.WriteFile(filepath.Join(s.home, "config.toml"), []byte(settings), 0o600); err != nil {
		return err
	}
	diff, err := diffOf()
	if err != nil {
		return err
	}
	fmt.Println("$ relavium-serve run " + workflow + " --input diff=…")
	out, code, err := s.command(ctx, "run", workflow, "--input", "diff="+diff)
	if err != nil {
		return err
	}
	for code == 3 { // somebody has to decide
		run, err := s.waiting(ctx)
		if err != nil {
			return err
		}
		fmt.Println("$ relavium-serve gate approve " + run + " --comment 'known, fixed in the next change' --yes")
		if out, code, err = s.command(ctx, "gate", "approve", run, "--comment", "known, fixed in the next change", "--yes"); err != nil || code != 0 {
			return fmt.Errorf("gate approve: exit %d: %w\n%s", code, err, out)
		}
		fmt.Println("$ relavium-serve run --resume " + run)
		if out, code, err = s.command(ctx, "run", "--resume", run); err != nil {
			return err
		}
	}
	if code != 0 {
		return fmt.Errorf("the run ended with exit code %d", code)
	}
	fmt.Printf("result\n%s", out)
	if !json.Valid(out) {
		return errors.New("the result is not JSON")
	}
	return nil
}

// command runs the binary; what it says on its standard error goes to ours.
func (s *stage) command(ctx context.Context, args ...string) (out []byte, code int, err error) {
	cmd := exec.CommandContext(ctx, s.binary, args...) //nolint:gosec // our own binary, just built
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "SystemRoot=" + os.Getenv("SystemRoot"), "TERM=" + os.Getenv("TERM"),
		"HOME=" + s.home, "USERPROFILE=" + s.home, "RELAVIUM_HOME=" + s.home, keyVariable + "=" + s.key,
	}
	cmd.Stderr = os.Stderr
	out, err = cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return out, exit.ExitCode(), nil
	}
	return out, 0, err
}

// waiting is the run that waits for a person.
func (s *stage) waiting(ctx context.Context) (string, error) {
	out, _, err := s.command(ctx, "gate", "list", "--json")
	if err != nil {
		return "", err
	}
	var gates []struct {
		Run string `json:"run"`
	}
	if err := json.Unmarshal(out, &gates); err != nil || len(gates) == 0 {
		return "", fmt.Errorf("gate list: %w: %s", err, bytes.TrimSpace(out))
	}
	return gates[0].Run, nil
}

func diffOf() (string, error) {
	raw, err := os.ReadFile(input)
	if err != nil {
		return "", err
	}
	var in struct{ Diff string }
	err = json.Unmarshal(raw, &in)
	return in.Diff, err
}

// standIn serves the provider's API on loopback.
func standIn(ctx context.Context) (url string, stop func(), err error) {
	played, err := script()
	if err != nil {
		return "", nil, err
	}
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	fake := fakemodel.New(fakemodel.Options{Script: played, Key: "stand-in-key"})
	server := &http.Server{Handler: fake, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan struct{})
	go func() {
		_ = server.Serve(l)
		close(done)
	}()
	return fakemodel.URL("http://"+l.Addr().String(), "anthropic"), func() {
		_ = server.Close()
		<-done
	}, nil
}

// script is what the stand-in answers.
func script() (fakemodel.Script, error) {
	file, err := os.Open(answers)
	if err != nil {
		return fakemodel.Script{}, err
	}
	defer func() { _ = file.Close() }()
	return fakemodel.ReadScript(file)
}
