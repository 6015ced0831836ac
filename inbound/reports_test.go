package inbound

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"

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
