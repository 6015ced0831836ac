package inbound

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/relavium/relavium-serve/workflows"
)

// TestReportT08 reads text whose characters come a byte at a time.
func TestReportT08(t *testing.T) {
	t.Parallel()
	const text = `{"text":"a dash — an emoji 😀 and 漢字"}`
	got, over, err := newLines(iotest.OneByteReader(strings.NewReader(text + "\r\n" + text))).next()
	if string(got) != text || over != nil || err != nil {
		t.Errorf("next = %q, %v, %v; want the text as it was sent", got, over, err)
	}
}

// TestReportI13 has fifty runs want a server that answers every other request with
// 503. Each is told in its own type or has its session, and the requests are few.
func TestReportI13(t *testing.T) {
	h := &httpServer{server: newServer()}
	var n atomic.Int64
	h.before = func(w http.ResponseWriter, r *http.Request, _ []byte) bool {
		if r.Method != http.MethodPost || n.Add(1)%2 == 1 {
			return false
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	w := newWorld(t, nil, nil)
	f, root := flow(h.listen(t)), t.TempDir()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			err := w.Open(t.Context(), Run{ID: fmt.Sprint(i), Workflow: f, Root: root})
			if fault, ok := errors.AsType[*workflows.ToolError](err); err != nil && (!ok || fault.Fault != workflows.ToolUnavailable || fault.Server != "s") {
				t.Errorf("Open = %v, want a session or that the server is unavailable", err)
			}
		})
	}
	wg.Wait()
	if got := len(h.seen()); got > 50*6 {
		t.Errorf("%d requests of 50 runs, want a handful for each", got)
	}
	if got := w.logs.count("level="); got > 50*3 {
		t.Errorf("%d lines in the log, want few", got)
	}
	w.shutdown(t)
}

// TestReportT04 has a server answer with 300 KB, and with one byte more than may be: that
// call fails in its own type, and the connection lives.
func TestReportT04(t *testing.T) {
	s := newServer()
	s.answer = func(c *serving, m message) bool {
		n, err := strconv.Atoi(textOf(member(member(m.params, "arguments"), "text")))
		if m.method != "tools/call" || err != nil {
			return false
		}
		c.reply(m.id, fmt.Sprintf(`{"content":[{"type":"text","text":%q}]}`, strings.Repeat("x", n)))
		return true
	}
	w := newWorld(t, map[string]*server{"s": s}, nil)
	f := flow(stdioRef("s"))
	w.mustOpen(t, f)
	for _, n := range []int{300_000, maxResultText, maxResultText + 1, 300_000} {
		got, err := w.say(t.Context(), f, "s", strconv.Itoa(n))
		if n > maxResultText {
			wantFault(t, err, workflows.ToolFailed, ReasonTooLarge, false)
		} else if err != nil || len(got.Text) != n {
			t.Errorf("a result of %d bytes = %d bytes, %v", n, len(got.Text), err)
		}
	}
	if n := s.count("initialize") + s.count("server/discover"); n > 2 {
		t.Errorf("the server was connected anew: %q", s.log())
	}
	w.shutdown(t)
}

// TestReportL08 has a server hold the stream of its answer for much longer than it had to
// connect: comments keep it alive, and the connect deadline is over when it is up. What
// ends a call that is held for too long is the call's own deadline, which names itself.
func TestReportL08(t *testing.T) {
	t.Parallel()
	const connect = 2 * time.Second
	h := &httpServer{server: newServer()}
	h.before = func(w http.ResponseWriter, r *http.Request, body []byte) bool {
		m, err := parseMessage(body)
		if err != nil || m.method != "tools/call" {
			return false
		}
		w.Header().Set("Content-Type", "text/event-stream")
		tick := time.NewTicker(connect / 4)
		defer tick.Stop()
		for range 10 {
			_, _ = io.WriteString(w, ": still here\n\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-tick.C:
			case <-r.Context().Done():
				return true
			}
		}
		events{w}.Write(fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"late"}]}}`, m.id))
		return true
	}
	w := newWorld(t, nil, nil)
	ref := h.listen(t)
	ref.ConnectTimeout = connect
	f := flow(ref)
	w.mustOpen(t, f)
	began := time.Now()
	if got, err := w.say(t.Context(), f, "s", "x"); err != nil || got.Text != "late" {
		t.Errorf("Call() = %v, %v, want the late result", got, err)
	}
	if took := time.Since(began); took < 2*connect {
		t.Errorf("the call took %v, want more than twice its connect timeout of %v", took, connect)
	}
	w.shutdown(t)
}
