package inbound

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/workflows"
)

// 1: one client session per server and run.
func TestOneSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		w := newWorld(t, map[string]*server{"s": s}, nil)
		f := flow(stdioRef("s"))
		f.Agents = append(f.Agents, workflows.Agent{ID: "b", Servers: []workflows.ServerRef{stdioRef("s")}})
		f.Nodes = append(f.Nodes, workflows.Node{ID: "m", Spec: workflows.AgentNode{AgentRef: "b"}}, workflows.Node{ID: "o", Spec: workflows.AgentNode{AgentRef: "a"}})
		w.mustOpen(t, f)
		w.mustOpen(t, f)
		for i := range 4 {
			args := fmt.Appendf(nil, `{"text":"%d"}`, i)
			got, err := w.Call(t.Context(), &workflows.ToolCall{Run: "r", Agent: &f.Agents[i%2], Tool: "mcp_s_echo", Arguments: args})
			if err != nil || got.Text != fmt.Sprint(i) {
				t.Errorf("Call() = %v, %v, want %d", got, err, i)
			}
		}
		w.shutdown(t)
		want := []string{"server/discover", "initialize", "notifications/initialized", "tools/list", "tools/call", "tools/call", "tools/call", "tools/call", "end"}
		if diff := cmp.Diff(want, s.log()); diff != "" {
			t.Errorf("the server got (-want +got):\n%s", diff)
		}
	})
}

// Whoever opens a run that is being opened gets what comes of it, or tries for itself.
func TestConcurrentOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.before = func() { time.Sleep(time.Second) } //nolint:forbidigo // in a bubble
		w := newWorld(t, map[string]*server{"s": s}, nil)
		f, root := flow(stdioRef("s")), t.TempDir()
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() { first <- w.Open(ctx, Run{ID: "r", Workflow: f, Root: root}) }()
		synctest.Wait()
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if err := w.Open(t.Context(), Run{ID: "r", Workflow: f, Root: root}); err != nil {
					t.Errorf("Open() = %v", err)
				}
			})
		}
		impatient, stop := context.WithTimeout(t.Context(), time.Millisecond)
		defer stop()
		wantFault(t, w.Open(impatient, Run{ID: "r", Workflow: f, Root: root}), workflows.ToolUnavailable, ReasonDeadline, false)
		cancel() // the others do not lose by it
		wantFault(t, <-first, workflows.ToolCancelled, ReasonCancelled, false)
		wg.Wait()
		if n := s.count("initialize"); n != 1 {
			t.Errorf("%d handshakes, want 1", n)
		}
		w.shutdown(t)
	})
}

// 2: a call returns at cancel at once, and what it began is owed: close waits for it.
func TestCancelledCallIsOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		block, ended := make(chan struct{}), make(chan struct{})
		s.ended = ended
		s.answer = func(_ *serving, m message) bool {
			if m.method == "tools/call" {
				<-block
			}
			return false
		}
		w, f := newWorld(t, map[string]*server{"s": s}, nil), flow(stdioRef("s"))
		w.mustOpen(t, f)
		go func() { _, _ = w.say(t.Context(), f, "s", "read, and not answered") }()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		began := time.Now()
		_, err := w.say(ctx, f, "s", "in the pipe") // its write blocks
		wantFault(t, err, workflows.ToolCancelled, ReasonCancelled, false)
		if took := time.Since(began); took != time.Second {
			t.Errorf("a cancelled call took %v, want 1 s", took)
		}
		closed := make(chan error, 1)
		go func() { closed <- w.Close(t.Context(), "r") }()
		time.Sleep(5 * time.Second) //nolint:forbidigo // in a bubble
		select {
		case err := <-closed:
			t.Fatalf("Close() = %v while the process lives", err)
		default:
		}
		close(block)
		close(ended)
		if err := <-closed; err != nil {
			t.Errorf("Close() = %v", err)
		}
		w.shutdown(t)
	})
}

// 3: a retired request takes nothing any more: a late response is dropped.
func TestLateResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.answer = func(c *serving, m message) bool {
			if !hangs(c, m) {
				return false
			}
			time.AfterFunc(2*time.Second, func() { c.reply(m.id, `{"content":[{"type":"text","text":"late"}]}`) })
			return true
		}
		w, f := newWorld(t, map[string]*server{"s": s}, nil), flow(stdioRef("s"))
		w.mustOpen(t, f)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := w.say(ctx, f, "s", "hang")
		wantFault(t, err, workflows.ToolCancelled, ReasonCancelled, false)
		time.Sleep(5 * time.Second) //nolint:forbidigo // in a bubble
		if n := w.logs.count("response to a request that has ended dropped"); n != 1 {
			t.Errorf("the late response was reported %d times, want once", n)
		}
		if got, err := w.say(t.Context(), f, "s", "go"); err != nil || got.Text != "go" {
			t.Errorf("the next call = %v, %v, want go", got, err)
		}
		w.shutdown(t)
	})
}

// peerOf returns the peer of the run's one connection.
// A response that is refused as a message ends the call that it names, at once and with
// fixed words; what names none ends nothing.
func TestRefusedResponse(t *testing.T) {
	t.Parallel()
	const whole = `"result":{"content":[{"type":"text","text":"whole"}]}`
	for what, response := range map[string]string{
		"not UTF-8":        `{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"text","text":"a` + "\xff" + `b"}]}}`,
		"result twice":     `{"jsonrpc":"2.0","id":ID,` + whole + `,` + whole + `}`,
		"result and error": `{"jsonrpc":"2.0",` + whole + `,"error":{"code":1,"message":"m"},"id":ID}`,
		"too deep":         `{"id":ID,"jsonrpc":"2.0","result":{"content":[],"x":` + strings.Repeat("[", 20000) + strings.Repeat("]", 20000) + `}}`,
		"byte order mark":  "\ufeff" + `{"jsonrpc":"2.0","id":ID,` + whole + `}`,
		"another JSON-RPC": `{"jsonrpc":"1.0","id":ID,` + whole + `}`,
		"cut":              `{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type":"te`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newServer()
			s.answer = func(c *serving, m message) bool {
				if m.method != "tools/call" || textOf(member(member(m.params, "arguments"), "text")) != "refused" {
					return false
				}
				// None of these is a response to the call.
				c.send("%s", `{"jsonrpc":"2.0","result":{"id":`+string(m.id)+`},"error":{}}`)
				c.send("%s", `{"jsonrpc":"2.0","id":`+string(m.id)+`,"method":"a","method":"b"}`)
				c.send("%s", `{"jsonrpc":"2.0","id":"`+string(m.id)+`","result":{},"error":{}}`)
				c.send("%s", strings.ReplaceAll(response, "ID", string(m.id)))
				return true
			}
			w, f := newWorld(t, map[string]*server{"s": s}, nil), flow(stdioRef("s"))
			w.mustOpen(t, f)
			_, err := w.say(t.Context(), f, "s", "refused")
			if fault := wantFault(t, err, workflows.ToolFailed, ReasonResult, false); fault.Message != "the response cannot be read" {
				t.Errorf("message = %q, want fixed words", fault.Message)
			}
			if got, err := w.say(t.Context(), f, "s", "next"); err != nil || got.Text != "next" {
				t.Errorf("the next call = %q, %v, want its own result", got.Text, err)
			}
			w.shutdown(t)
		})
	}
}

func (w *world) peerOf(t *testing.T) *peer {
	t.Helper()
	r := w.lookup("r")
	if r == nil || len(r.conns) != 1 {
		t.Fatal("the run has not one connection")
	}
	return r.conns[0].session.peer
}

func (p *peer) sizes() (pending, claimed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.pending), len(p.claimed)
}

// 4: what a finished request registered is gone while others are under way.
func TestRegistrationsAreReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.answer = func(c *serving, m message) bool {
			if m.method == "tools/call" {
				c.send(`{"jsonrpc":"2.0","id":"mine","method":"ping"}`) // the same id each time
			}
			return hangs(c, m)
		}
		w, f := newWorld(t, map[string]*server{"s": s}, nil), flow(stdioRef("s"))
		w.mustOpen(t, f)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = w.say(ctx, f, "s", "hang") // the parent that stays open
		}()
		synctest.Wait()
		for range 20 {
			if _, err := w.say(t.Context(), f, "s", "go"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if pending, claimed := w.peerOf(t).sizes(); pending != 1 || claimed != 0 {
			t.Errorf("%d requests and %d answers are registered, want 1 and 0", pending, claimed)
		}
		if n := s.count(`response "mine"`); n != 21 {
			t.Errorf("the server got %d answers, want 21", n)
		}
		cancel()
		<-done
		w.shutdown(t)
	})
}

// gated is a wire whose answers wait until they are let go.
type gated struct {
	mu   sync.Mutex
	sent []string
	let  chan struct{}
}

func (g *gated) send(ctx context.Context, out *outgoing) error {
	if out.id == 0 && out.method == "" {
		select {
		case <-g.let:
		case <-ctx.Done():
			return errUnsent
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sent = append(g.sent, string(out.body))
	return nil
}

func (g *gated) close(context.Context) error { return nil }
func (g *gated) cancelByEnd() bool           { return false }

func (g *gated) log() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.sent)
}

// 5: a server's id is claimed until its answer has ended; a duplicate is refused, and a
// cancellation revokes only what was not begun.
func TestServersOwnIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports []string
		p := newPeer(func(what string, _ ...any) { reports = append(reports, what) })
		g := &gated{let: make(chan struct{})}
		p.start(t.Context(), g)
		ping := func(id string) { p.deliver(0, []byte(`{"jsonrpc":"2.0","id":`+id+`,"method":"ping"}`)) }
		cancel := func(id string) {
			p.deliver(0, []byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`+id+`}}`))
		}
		ping("1") // begins, and waits in the wire
		synctest.Wait()
		ping("1") // refused
		ping(`"x"`)
		ping(`"\u0078"`) // the same id, spelled otherwise: refused
		ping("2")
		cancel("1")   // was begun: no effect
		cancel(`"x"`) // revoked
		cancel("99")  // unknown
		cancel("null")
		ping(`"x"`) // free again, and not touched by the cancellation before it
		synctest.Wait()
		if n := len(reports); n != 2 {
			t.Errorf("reports = %q, want two refusals", reports)
		}
		close(g.let)
		synctest.Wait()
		want := []string{
			`{"jsonrpc":"2.0","id":1,"result":{}}`, `{"jsonrpc":"2.0","id":2,"result":{}}`, `{"jsonrpc":"2.0","id":"x","result":{}}`,
		}
		if diff := cmp.Diff(want, g.log()); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
		if err := p.close(t.Context()); err != nil {
			t.Errorf("close() = %v", err)
		}
	})
}

// 5: a server's cancellation has no power over our requests.
func TestServersCancelOfOurs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.answer = func(c *serving, m message) bool {
			if m.method == "tools/call" {
				c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s,"reason":"no"}}`, m.id)
			}
			return false
		}
		w, f := newWorld(t, map[string]*server{"s": s}, nil), flow(stdioRef("s"))
		w.mustOpen(t, f)
		if got, err := w.say(t.Context(), f, "s", "go"); err != nil || got.Text != "go" {
			t.Errorf("Call() = %v, %v, want go", got, err)
		}
		w.shutdown(t)
	})
}

// 5: what a server asks for is declined, and too many at once are dropped.
func TestServersRequestsDeclined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports []string
		p := newPeer(func(what string, _ ...any) { reports = append(reports, what) })
		g := &gated{let: make(chan struct{})}
		p.start(t.Context(), g)
		for i, method := range []string{"elicitation/create", "sampling/createMessage", "roots/list", "tools/call", "x/y"} {
			p.deliver(0, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":{}}`, i, method))
		}
		for i := range 2 * maxAnswers {
			p.deliver(0, fmt.Appendf(nil, `{"jsonrpc":"2.0","id":"p%d","method":"ping"}`, i))
		}
		synctest.Wait()
		close(g.let)
		synctest.Wait()
		got := g.log()
		for i, answer := range got[:5] {
			if want := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"error":{"code":-32601,"message":"not supported by this client"}}`, i); answer != want {
				t.Errorf("answer %d = %s, want %s", i, answer, want)
			}
		}
		if len(got)+len(reports) != 5+2*maxAnswers || len(got) > maxAnswers+1 {
			t.Errorf("%d answers and %d reports for %d requests", len(got), len(reports), 5+2*maxAnswers)
		}
		if err := p.close(t.Context()); err != nil {
			t.Errorf("close() = %v", err)
		}
	})
}

// 7: every close returns the same join, and none before the process has ended.
func TestOneJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.ended = make(chan struct{})
		w := newWorld(t, map[string]*server{"s": s}, nil)
		w.mustOpen(t, flow(stdioRef("s")))
		impatient, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		r := w.lookup("r")
		if err := r.close(impatient); !errors.Is(err, errOwed) {
			t.Errorf("close() = %v after 1 s, want that work is owed", err)
		}
		results := make(chan error, 5)
		for range 5 {
			go func() { results <- r.close(t.Context()) }()
		}
		synctest.Wait()
		if len(results) != 0 {
			t.Error("a close returned while the process lives")
		}
		close(s.ended)
		for range 5 {
			if err := <-results; err != nil {
				t.Errorf("close() = %v", err)
			}
		}
		if n := s.count("end"); n != 1 {
			t.Errorf("the process was ended %d times, want once", n)
		}
		w.shutdown(t)
	})
}

// 8: a grant that was taken back between the decision and the fork starts nothing.
func TestRecheckedBeforeFork(t *testing.T) {
	var asked atomic.Int32
	w := newWorld(t, nil, func(o *Options) {
		o.Granted = func(_ context.Context, digest string) error {
			if asked.Add(1) > 1 {
				return &consent.NotGrantedError{Digest: digest}
			}
			return nil
		}
	})
	marker := filepath.Join(t.TempDir(), "started")
	ref := workflows.ServerRef{ID: "s", Transport: "stdio", Command: "/bin/sh", Args: []string{"-c", "touch " + marker}}
	err := w.open(t, flow(ref))
	wantFault(t, err, workflows.ToolDenied, ReasonConsent, false)
	if missing, ok := errors.AsType[*UnapprovedError](err); !ok || len(missing.Servers) != 1 || missing.Servers[0].Server != "s" {
		t.Errorf("error = %v, want the one server without consent", err)
	}
	if len(w.children.Living()) != 0 || asked.Load() != 2 {
		t.Errorf("%d children live and consent was asked %d times, want 0 and 2", len(w.children.Living()), asked.Load())
	}
	w.shutdown(t)
	if _, err := os.Stat(marker); err == nil {
		t.Error("the program was started")
	}
}

// 8: a start that fails after the fork owes the child.
func TestChildOfAFailedStart(t *testing.T) {
	w := newWorld(t, nil, nil)
	ref := workflows.ServerRef{ID: "s", Transport: "stdio", Command: "/bin/sleep", Args: []string{"60"}, ConnectTimeout: 200 * time.Millisecond}
	wantFault(t, w.open(t, flow(ref)), workflows.ToolUnavailable, ReasonConnect, false)
	w.shutdown(t) // joins it
	if n := len(w.children.Living()); n != 0 {
		t.Errorf("%d children live after the shutdown", n)
	}
}

// 9: closing what failed never extends the connect deadline.
func TestFailureIsNotLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.silent, s.ended = true, make(chan struct{})
		w := newWorld(t, map[string]*server{"s": s}, nil)
		began := time.Now()
		wantFault(t, w.open(t, flow(stdioRef("s"))), workflows.ToolUnavailable, ReasonConnect, false)
		if took := time.Since(began); took != defaultStdioConnect {
			t.Errorf("Open took %v, want %v", took, defaultStdioConnect)
		}
		time.AfterFunc(8*time.Second, func() { close(s.ended) })
		began = time.Now()
		w.shutdown(t)
		if took := time.Since(began); took != 8*time.Second {
			t.Errorf("the shutdown took %v, want the 8 s of the process", took)
		}
	})
}

// One failure tears the rest down, and is what the caller gets.
func TestFailLoud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good, bad, slow := newServer(), newServer(), newServer()
		slow.silent = true
		bad.answer = func(c *serving, m message) bool {
			if m.method == "initialize" {
				c.fail(m.id, -32000, "no licence")
				return true
			}
			return false
		}
		w := newWorld(t, map[string]*server{"good": good, "bad": bad, "slow": slow}, nil)
		began := time.Now()
		f := wantFault(t, w.open(t, flow(stdioRef("good"), stdioRef("bad"), stdioRef("slow"))), workflows.ToolUnavailable, ReasonHandshake, false)
		if f.Server != "bad" || !strings.Contains(f.Message, "no licence") || time.Since(began) != 0 {
			t.Errorf("error = %v after %v, want that of bad at once", f, time.Since(began))
		}
		if got := w.Tools("r", &workflows.Agent{ID: "a"}); got != nil {
			t.Errorf("Tools() = %v, want none", got)
		}
		w.shutdown(t)
		for name, s := range map[string]*server{"good": good, "bad": bad, "slow": slow} {
			if n := s.count("end"); n != 1 {
				t.Errorf("%s was ended %d times, want once", name, n)
			}
		}
	})
}

// 10: the closes of a failed start run under the rest of the budget; with none left no
// close is entered, each is reported once, and nothing is acknowledged.
func TestBudgetOfAFailedStart(t *testing.T) {
	for _, left := range []time.Duration{0, -time.Second, 3 * time.Second} {
		t.Run(left.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, ended := newServer(), make(chan struct{})
				s.silent, s.ended = true, ended
				w := newWorld(t, map[string]*server{"s": s}, nil)
				var mu sync.Mutex
				var reports []error
				err := w.Open(t.Context(), Run{
					ID: "r", Workflow: flow(stdioRef("s")), Root: t.TempDir(),
					Closing: func() time.Duration { return left },
					Report: func(server string, cause error) {
						mu.Lock()
						defer mu.Unlock()
						reports = append(reports, fmt.Errorf("%s: %w", server, cause))
					},
				})
				wantFault(t, err, workflows.ToolUnavailable, ReasonConnect, false)
				time.Sleep(20 * time.Second) //nolint:forbidigo // in a bubble
				mu.Lock()
				want, enters := errNoTime, 0
				if left > 0 {
					want, enters = errOwed, 1
				}
				if len(reports) != 1 || !errors.Is(reports[0], want) {
					t.Errorf("reports = %v, want %v once", reports, want)
				}
				mu.Unlock()
				if n := s.count("end"); n != enters {
					t.Errorf("%d closes were entered, want %d", n, enters)
				}
				ctx, stop := context.WithTimeout(t.Context(), time.Second)
				defer stop()
				if err := w.Shutdown(ctx); !errors.Is(err, errOwed) {
					t.Errorf("Shutdown() = %v, want that work is owed", err)
				}
				close(ended)
				w.release(t, s)
			})
		})
	}
}

// release ends what a test left owed on purpose.
func (w *world) release(t *testing.T, s *server) {
	t.Helper()
	s.mu.Lock()
	drop := s.drop
	s.mu.Unlock()
	for _, end := range drop {
		end()
	}
	if err := w.children.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// 10: a reporter's own failure is told in fixed words, and the original error stands.
func TestReporterFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.ended = make(chan struct{})
		w := newWorld(t, map[string]*server{"s": s}, nil)
		err := w.Open(t.Context(), Run{
			ID: "r", Workflow: flow(stdioRef("s")), Root: t.TempDir(),
			Closing: func() time.Duration { return time.Second },
			Report:  func(string, error) { panic("secret of the reporter") },
		})
		if err != nil {
			t.Fatal(err)
		}
		err = w.Close(t.Context(), "r")
		if !errors.Is(err, errReport) || strings.Contains(err.Error(), "secret") || errors.Is(err, errOwed) {
			t.Errorf("Close() = %v, want %v alone", err, errReport)
		}
		close(s.ended)
		w.shutdown(t)
	})
}

// 11: a second close does not renew the budget of the first.
func TestBudgetIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		s.ended = make(chan struct{})
		w := newWorld(t, map[string]*server{"s": s}, nil)
		w.mustOpen(t, flow(stdioRef("s")))
		r := w.lookup("r")
		began := time.Now()
		if err := w.Close(t.Context(), "r"); !errors.Is(err, errOwed) || time.Since(began) != defaultClose {
			t.Errorf("Close() = %v after %v, want that work is owed after %v", err, time.Since(began), defaultClose)
		}
		began = time.Now()
		if err := r.close(t.Context()); !errors.Is(err, errOwed) || time.Since(began) != 0 {
			t.Errorf("the second close = %v after %v, want the first one's result at once", err, time.Since(began))
		}
		close(s.ended)
		w.shutdown(t) // what was owed is still joined
	})
}

// 12: calls end, then sessions close, then children are joined.
func TestOrderOfTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer()
		var mu sync.Mutex
		var trace []string
		add := func(what string) {
			mu.Lock()
			defer mu.Unlock()
			trace = append(trace, what)
		}
		s.ended = make(chan struct{})
		s.ending = func() {
			add("end")
			time.AfterFunc(time.Second, func() { add("process"); close(s.ended) })
		}
		s.answer = hangs
		w, f := newWorld(t, map[string]*server{"s": s}, nil), flow(stdioRef("s"))
		w.mustOpen(t, f)
		go func() {
			_, err := w.say(t.Context(), f, "s", "hang")
			wantFault(t, err, workflows.ToolCancelled, ReasonClosed, false)
			add("call")
		}()
		synctest.Wait()
		if err := w.Close(t.Context(), "r"); err != nil {
			t.Errorf("Close() = %v", err)
		}
		add("closed")
		w.shutdown(t)
		if diff := cmp.Diff([]string{"call", "end", "process", "closed"}, trace); diff != "" {
			t.Errorf("order (-want +got):\n%s", diff)
		}
		if s.count("notifications/cancelled") != 1 {
			t.Errorf("the server got %q, want the call cancelled", s.log())
		}
		_, err := w.say(t.Context(), f, "s", "go")
		wantFault(t, err, workflows.ToolUnavailable, ReasonClosed, false)
	})
}

// 13: a child is listed alive from its fork to its own wait.
func TestChildIsListed(t *testing.T) {
	w := newWorld(t, nil, nil)
	w.mustOpen(t, flow(helperRef(t, "s", "polite")))
	if n := len(w.children.Living()); n != 1 {
		t.Errorf("%d children live while the run is open, want 1", n)
	}
	if err := w.Close(t.Context(), "r"); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if n := len(w.children.Living()); n != 0 {
		t.Errorf("%d children live after Close, want 0", n)
	}
	w.shutdown(t)
}

// 14: an end of the process during a failing start leaves nothing.
func TestShutdownDuringAStart(t *testing.T) {
	w := newWorld(t, nil, nil)
	slow := workflows.ServerRef{ID: "slow", Transport: "stdio", Command: "/bin/sleep", Args: []string{"60"}}
	opened := make(chan error, 1)
	f := flow(slow, helperRef(t, "s", "polite"))
	root := t.TempDir()
	go func() { opened <- w.Open(t.Context(), Run{ID: "r", Workflow: f, Root: root}) }()
	for len(w.children.Living()) < 2 {
		select {
		case err := <-opened:
			t.Fatalf("Open() = %v", err)
		case <-time.After(5 * time.Millisecond):
		}
	}
	w.shutdown(t)
	wantFault(t, <-opened, workflows.ToolCancelled, ReasonCancelled, false)
	if n := len(w.children.Living()); n != 0 {
		t.Errorf("%d children live after the shutdown", n)
	}
}
