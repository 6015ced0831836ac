package inbound

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/workflows"
)

// serverVariable names the server that the test binary is to be.
const serverVariable = "TEST_SERVER"

// helperRef declares the test binary as a server of the given kind.
func helperRef(t *testing.T, id, kind string) workflows.ServerRef {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return workflows.ServerRef{
		ID: id, Transport: "stdio", Command: exe, Env: []workflows.EnvVar{{Name: serverVariable, Value: kind}},
	}
}

// runServer is the main function of a server that a test started.
func runServer(kind string) int {
	s := newServer()
	s.answer = func(c *serving, m message) bool {
		if m.method != "tools/call" {
			return false
		}
		return misbehave(c, m, textOf(member(member(m.params, "arguments"), "text")))
	}
	switch kind {
	case "polite":
	case "exits":
		return 3
	case "noise":
		for range 1000 {
			_, _ = io.WriteString(os.Stdout, "starting up…\n{\"jsonrpc\":\"1.0\"}\n\n") //nolint:forbidigo // it is what is tested
		}
	case "impatient": // ends at a first message that it does not know
		s.answer = func(_ *serving, m message) bool {
			if m.method == "server/discover" {
				os.Exit(1) //nolint:forbidigo // this process is a stdio server
			}
			return false
		}
	default:
		return 2
	}
	s.serve(os.Stdin, os.Stdout) //nolint:forbidigo // this process is a stdio server
	return 0
}

// misbehave does what the text of a call says.
func misbehave(c *serving, m message, what string) bool {
	what, _, _ = strings.Cut(what, " ")
	long := func(head, tail string, n int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		_, _ = io.WriteString(c.out, head)
		chunk := bytes.Repeat([]byte("x"), 1<<20)
		for range n {
			_, _ = c.out.Write(chunk)
		}
		_, _ = io.WriteString(c.out, tail+"\n")
	}
	switch what {
	case "line":
		long(`{"jsonrpc":"2.0","id":`+string(m.id)+`,"result":{"content":[],"x":"`, `"}}`, 64)
	case "line-late-id":
		long(`{"jsonrpc":"2.0","result":{"id":7,"content":[],"x":"\\\"`, `"},"\u0069d":`+string(m.id)+`}`, 9)
	case "line-no-id":
		long(`{"jsonrpc":"2.0","result":{"id":`+string(m.id)+`,"x":"`, `"}}`, 64)
	case "line-notification":
		long(`{"jsonrpc":"2.0","method":"notifications/message","params":{"x":"`, `"}}`, 9)
		return false
	case "line-garbage":
		long(``, ``, 9)
	case "stderr":
		chunk := bytes.Repeat([]byte("noise\n"), 1<<17)
		for range 64 {
			_, _ = os.Stderr.Write(chunk)
		}
		return false
	case "bytes":
		answer := []byte(`{"jsonrpc":"2.0","id":` + string(m.id) + `,"result":{"content":[{"type":"text","text":"— 🦉 日本語"}]}}` + "\n")
		for _, b := range answer {
			_, _ = c.out.Write([]byte{b})
		}
	case "environment":
		names := make([]string, 0, 16)
		for _, entry := range os.Environ() {
			name, _, _ := strings.Cut(entry, "=")
			names = append(names, name)
		}
		slices.Sort(names)
		text, _ := json.Marshal(strings.Join(names, " "))
		c.reply(m.id, `{"content":[{"type":"text","text":`+string(text)+`}]}`)
	case "secret":
		text, _ := json.Marshal(os.Getenv("TOKEN") + " in " + must(os.Getwd()))
		c.reply(m.id, `{"content":[{"type":"text","text":`+string(text)+`}]}`)
	case "deaf":
		select {} // and nothing is read any more
	default:
		return false
	}
	return true
}

func must(s string, err error) string {
	if err != nil {
		return err.Error()
	}
	return s
}

// heapGrowth runs do and returns how much the heap grew at its peak, in MiB.
func heapGrowth(t *testing.T, do func()) int64 {
	t.Helper()
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var peak uint64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			runtime.ReadMemStats(&now)
			peak = max(peak, now.HeapInuse)
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	do()
	close(stop)
	<-stopped
	return (int64(peak) - int64(before.HeapInuse)) >> 20
}

// A line of 64 MiB fails the call that it answers, or all of them where it names none,
// is never kept, and leaves the session alive.
func TestLongLines(t *testing.T) {
	w, f := newWorld(t, nil, nil), flow(helperRef(t, "s", "polite"))
	w.mustOpen(t, f)
	for _, what := range []string{"line", "line-late-id", "line-no-id", "line-garbage"} {
		var err error
		grown := heapGrowth(t, func() { _, err = w.say(t.Context(), f, "s", what) })
		if fault := wantFault(t, err, workflows.ToolFailed, ReasonTooLarge, false); fault.Message != "a message is over the bound" {
			t.Errorf("%s: message = %q, want fixed words", what, fault.Message)
		}
		if grown > 64 {
			t.Errorf("%s: the heap grew by %d MiB, want at most 64", what, grown)
		}
		t.Logf("%s: heap growth %d MiB", what, grown)
	}
	if got, err := w.say(t.Context(), f, "s", "line-notification x"); err != nil || got.Text != "line-notification x" {
		t.Errorf("Call() after an over-bound notification = %v, %v, want its own result", got, err)
	}
	w.shutdown(t)
}

// The heap stays small whatever comes over HTTP.
func TestHTTPHeap(t *testing.T) {
	h := &httpServer{server: newServer()}
	chunk := bytes.Repeat([]byte("x"), 1<<20)
	forms := map[string][]string{ // media type, what begins, what is repeated
		"json":        {"application/json", `{"jsonrpc":"2.0","id":4,"result":{"x":"`, string(chunk)},
		"one event":   {"text/event-stream", "data: ", string(chunk)},
		"returns":     {"text/event-stream", "data: ", strings.Repeat("data: y\r", 1<<17) + "\r"},
		"small lines": {"text/event-stream", "", strings.Repeat("data: y\n", 1<<17)},
		"comments":    {"text/event-stream", "", strings.Repeat(": y\n", 1<<18)},
		"events":      {"text/event-stream", "", strings.Repeat("data: {}\n\n", 1<<12)},
	}
	h.before = func(w http.ResponseWriter, r *http.Request, body []byte) bool {
		m, err := parseMessage(body)
		if err != nil || m.method != "tools/call" {
			return false
		}
		form := forms[textOf(member(member(m.params, "arguments"), "text"))]
		w.Header().Set("Content-Type", form[0])
		_, _ = io.WriteString(w, form[1])
		for range 64 {
			if _, err := io.WriteString(w, form[2]); err != nil || r.Context().Err() != nil {
				break
			}
		}
		return true
	}
	w, f := newWorld(t, nil, nil), flow(h.listen(t))
	w.mustOpen(t, f)
	for form := range forms {
		var err error
		grown := heapGrowth(t, func() { _, err = w.say(t.Context(), f, "s", form) })
		if fault := faultOf(t, err); fault.Fault != workflows.ToolFailed || fault.Retryable {
			t.Errorf("%s: %v, want tool_failed, not retryable", form, fault)
		}
		if grown > 32 {
			t.Errorf("%s: the heap grew by %d MiB, want at most 32", form, grown)
		}
		t.Logf("%s: heap growth %d MiB: %v", form, grown, err)
	}
	w.shutdown(t)
	if n := w.logs.count("mcp server"); n > maxReports+8 {
		t.Errorf("%d lines were logged of it, want at most %d", n, maxReports+8)
	}
}

// A child's bytes arrive whole however slowly they come (report T08), what it writes to
// stderr holds nothing up and is kept to a tail (T03), and of our environment it has
// what it was given and a small set besides (T13).
func TestHostileChild(t *testing.T) {
	w := newWorld(t, nil, func(o *Options) {
		o.Environ = []string{"PATH=/usr/bin:/bin", "HOME=/h", "FOO_API_KEY=x", "DATABASE_URL=x", "LD_PRELOAD=/x.so", "LANG=C"}
		o.Secret = func(_ context.Context, name string) ([]byte, error) { return []byte("value of " + name), nil }
	})
	ref := helperRef(t, "s", "noise")
	ref.Env = append(ref.Env, workflows.EnvVar{Name: "A", Value: "1"}, workflows.EnvVar{Name: "TOKEN", Value: "{{ secrets.github }}"})
	f := flow(ref)
	w.mustOpen(t, f)
	for text, want := range map[string]string{
		"stderr x":    "stderr x",
		"bytes":       "— 🦉 日本語",
		"environment": "A HOME LANG PATH " + serverVariable + " TOKEN",
	} {
		if got, err := w.say(t.Context(), f, "s", text); err != nil || got.Text != want {
			t.Errorf("Call(%s) = %q, %v, want %q", text, got.Text, err, want)
		}
	}
	got, err := w.say(t.Context(), f, "s", "secret")
	if r := w.lookup("r"); err != nil || got.Text != "value of github in "+r.Root {
		t.Errorf("Call(secret) = %q, %v, want the secret's value and the project's folder", got.Text, err)
	}
	if n := len(w.lookup("r").conns[0].proc.Stderr()); n == 0 || n > 64<<10 {
		t.Errorf("%d bytes of stderr are kept, want at most 64 KiB", n)
	}
	w.shutdown(t)
}

// A child that stops reading costs its caller its deadline and nobody else anything.
func TestDeafChild(t *testing.T) {
	w, f := newWorld(t, nil, nil), flow(helperRef(t, "s", "polite"), helperRef(t, "other", "polite"))
	w.mustOpen(t, f)
	var wg sync.WaitGroup
	ctx, late := context.WithCancelCause(t.Context())
	for i, text := range []string{"deaf", strings.Repeat("x", 900<<10)} {
		wg.Go(func() {
			_, err := w.say(ctx, f, "s", text)
			wantFault(t, err, workflows.ToolFailed, ReasonDeadline, false)
		})
		for p := w.lookup("r").conns[0].session.peer; p.begun() <= i; { // the second fills the pipe
			runtime.Gosched()
		}
	}
	if got, err := w.say(t.Context(), f, "other", "x"); err != nil || got.Text != "x" {
		t.Errorf("Call() of the other server = %v, %v, want x", got, err)
	}
	late(fmt.Errorf("node: %w", context.DeadlineExceeded))
	wg.Wait()
	w.shutdown(t)
}

// begun counts the requests that have begun to leave and have no answer.
func (p *peer) begun() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, r := range p.pending {
		if r.out.begun.Load() {
			n++
		}
	}
	return n
}

// A program that ends at once is told of as such; one that ends at the question of the
// new era gets the handshake of the old one.
func TestChildEnds(t *testing.T) {
	w := newWorld(t, nil, nil)
	ends := wantFault(t, w.open(t, flow(helperRef(t, "s", "exits"))), workflows.ToolUnavailable, ReasonDied, false)
	if want := "it ended before it answered (exit code 3)"; ends.Message != want {
		t.Errorf("message = %q, want %q", ends.Message, want)
	}
	f := flow(helperRef(t, "s", "impatient"))
	w.mustOpen(t, f)
	if got, err := w.say(t.Context(), f, "s", "x"); err != nil || got.Text != "x" {
		t.Errorf("Call() = %v, %v, want x", got, err)
	}
	if n := len(w.children.Living()); n != 1 {
		t.Errorf("%d children live, want 1", n)
	}
	w.shutdown(t)
}
