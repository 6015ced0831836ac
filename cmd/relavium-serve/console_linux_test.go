package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/gates/console"
)

// startOn runs a command whose standard output is the screen as well.
func (s *screen) startOn(ctx context.Context, project string, args ...string) <-chan int {
	ended := make(chan int, 1)
	environ := []string{"HOME=" + filepath.Dir(project), "RELAVIUM_HOME=" + filepath.Join(filepath.Dir(project), "home"), "TERM=xterm"}
	go func() {
		ended <- run(ctx, append(args, "--cwd", project), s.slave, s.slave, s.slave, environ)
	}()
	return ended
}

// A console shows its address and a token on a terminal, is found by others of
// the home while it runs and not longer, and lets --login replace the token.
func TestConsoleOnATerminal(t *testing.T) {
	t.Parallel()
	project := gatedProject(t)
	home := filepath.Join(filepath.Dir(project), "home")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	s := openScreen(t)
	ended := s.startOn(ctx, project, "console", "--listen", "127.0.0.1:0")
	base, at := s.await(`console  (http://127\.0\.0\.1:\d+)`, 0)
	first, at := s.await(`token    ([A-Z2-7]{26})`, at)
	s.await(`msg="console is listening" url=`, at)
	if got, ok := console.Address(home); !ok || got != base {
		t.Errorf("Address = %q, %v, want %q", got, ok, base)
	}
	page := readPage(t, base+"/login")
	if !bytes.Contains(page, []byte("Log in")) || bytes.Contains(page, []byte(first)) {
		t.Errorf("GET /login =\n%s\nwant the form", page)
	}

	var errors bytes.Buffer
	if code := run(ctx, []string{"console", "--listen", "127.0.0.1:0", "--cwd", project}, bytes.NewReader(nil), io.Discard, &errors,
		[]string{"HOME=" + filepath.Dir(project), "RELAVIUM_HOME=" + home}); code != exitFault || !bytes.Contains(errors.Bytes(), []byte(base)) {
		t.Errorf("a second console = exit %d, want 2 with the address of the first:\n%s", code, &errors)
	}
	other := openScreen(t)
	if code := <-other.startOn(ctx, project, "console", "--login"); code != exitDone {
		t.Fatalf("console --login = exit %d, want 0\n%s", code, other.text())
	}
	_, at = other.await(regexp.QuoteMeta("console  "+base), 0)
	second, _ := other.await(`token    ([A-Z2-7]{26})`, at)
	for token, want := range map[string]bool{first: false, second: true} {
		if _, ok := (console.StartToken{Home: home}).Admit(ctx, token); ok != want {
			t.Errorf("Admit of the %v token = %v, want %v", want, ok, want)
		}
	}

	stop()
	select {
	case code := <-ended:
		if code != exitDone {
			t.Errorf("console = exit %d, want 0\n%s", code, s.text())
		}
	case <-time.After(patience):
		t.Fatal("the console does not end")
	}
	if got, ok := console.Address(home); ok {
		t.Errorf("Address after the end = %q, want none", got)
	}
}

func readPage(t *testing.T, url string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DisableKeepAlives: true}
	res, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	page, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return page
}
