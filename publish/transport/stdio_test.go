package transport

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// peer is the client's end of a Stdio that runs in the test.
type peer struct {
	t    *testing.T
	in   *io.PipeWriter
	out  *bufio.Reader
	done chan error
	stop context.CancelFunc
}

func connect(t *testing.T, s *Stdio) *peer {
	t.Helper()
	s.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ctx, stop := context.WithCancel(t.Context())
	p := &peer{t: t, in: inW, out: bufio.NewReader(outR), done: make(chan error, 1), stop: stop}
	go func() {
		p.done <- s.Serve(ctx, inR, outW)
		outW.Close()
	}()
	t.Cleanup(func() {
		stop()
		inW.Close()
		outR.Close()
	})
	return p
}

func (p *peer) send(lines ...string) {
	p.t.Helper()
	for _, l := range lines {
		if _, err := io.WriteString(p.in, l+"\n"); err != nil {
			p.t.Fatalf("send %.80s: %v", l, err)
		}
	}
}

func (p *peer) receive() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatalf("receive: %v after %q", err, line)
	}
	return strings.TrimSuffix(line, "\n")
}

func (p *peer) ended() {
	p.t.Helper()
	select {
	case err := <-p.done:
		if err != nil {
			p.t.Fatalf("Serve = %v, want nil", err)
		}
	case <-time.After(patience):
		p.t.Fatalf("Serve still runs after %v", patience)
	}
}

// patience bounds every wait for something that has to happen.
const patience = 60 * time.Second

// echo answers with the method, or with the params of "echo".
func echo(_ context.Context, req *Request) Reply {
	if req.Method == "echo" {
		return Reply{Result: req.Params}
	}
	b, err := json.Marshal(req.Method)
	if err != nil {
		panic(err)
	}
	return Reply{Result: b}
}

// Report P12: ids come back byte for byte, and what is no id is answered.
func TestServeIDs(t *testing.T) {
	t.Parallel()
	p := connect(t, &Stdio{Answer: echo})
	for _, tt := range []struct{ id, want string }{
		{`"1"`, `{"jsonrpc":"2.0","id":"1","result":"ping"}`},
		{`"init-a"`, `{"jsonrpc":"2.0","id":"init-a","result":"ping"}`},
		{`0`, `{"jsonrpc":"2.0","id":0,"result":"ping"}`},
		{`9007199254740993`, `{"jsonrpc":"2.0","id":9007199254740993,"result":"ping"}`},
		{`null`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: an id is a string or an integer"}}`},
		{`1.5`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: an id is a string or an integer"}}`},
		{`[1]`, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: an id is a string or an integer"}}`},
	} {
		p.send(`{"jsonrpc":"2.0","id":` + tt.id + `,"method":"ping"}`)
		if got := p.receive(); got != tt.want {
			t.Errorf("id %s is answered %s, want %s", tt.id, got, tt.want)
		}
	}
}

func TestServeLongLines(t *testing.T) {
	t.Parallel()
	p := connect(t, &Stdio{Answer: echo})
	call := func(n int) string {
		return `{"jsonrpc":"2.0","id":1,"method":"echo","params":{"a":"` + strings.Repeat("x", n) + `"}}`
	}
	envelope := len(call(0))
	p.send(call(DefaultMaxLine - envelope))
	if got := len(p.receive()); got < DefaultMaxLine-envelope {
		t.Errorf("a message of exactly the bound is answered with %d bytes, want all of it", got)
	}
	p.send(call(DefaultMaxLine - envelope + 1))
	want := `{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"invalid request: message too long"}}`
	if got := p.receive(); got != want {
		t.Errorf("a message over the bound is answered %.200s, want %s", got, want)
	}
	p.send("", "  \r", `{"jsonrpc":"2.0","id":2,"method":"ping"}`+"\r")
	if got, want := p.receive(), `{"jsonrpc":"2.0","id":2,"result":"ping"}`; got != want {
		t.Errorf("after it ping is answered %s, want %s", got, want)
	}
}

func TestLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("y", 200<<10)
	in := "a\n\n" + long + "\n" + strings.Repeat("z", 300<<10) + "\nlast"
	for name, r := range map[string]io.Reader{
		"whole":     strings.NewReader(in),
		"in pieces": iotest.OneByteReader(strings.NewReader(in)),
	} {
		l := newLines(r, 256<<10)
		var got []string
		for {
			line, err := l.next()
			if errors.Is(err, errTooLong) {
				got = append(got, "too long")
				continue
			}
			if err != nil {
				if !errors.Is(err, io.EOF) {
					t.Errorf("%s: next = %v, want EOF", name, err)
				}
				break
			}
			got = append(got, string(line))
		}
		if diff := cmp.Diff([]string{"a", "", long, "too long", "last"}, got); diff != "" {
			t.Errorf("%s: lines differ (-want +got):\n%s", name, diff)
		}
	}
}

// A last line without newline counts, and its answer leaves before Serve ends.
func TestServeLastLineWithoutNewline(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	s := &Stdio{Answer: echo, Logger: slog.New(slog.DiscardHandler)}
	in := strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"a"}` + "\n" + `{"jsonrpc":"2.0","id":2,"method":"b"}`)
	if err := s.Serve(t.Context(), in, &out); err != nil {
		t.Fatalf("Serve = %v, want nil", err)
	}
	for _, want := range []string{`"id":1,"result":"a"`, `"id":2,"result":"b"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("Serve wrote %s, want %s in it", out.String(), want)
		}
	}
}

// Report T10: the server is gone soon after the end of its input, whatever its calls
// do.
func TestServeEOF(t *testing.T) {
	t.Parallel()
	causes := make(chan error, 1)
	p := connect(t, &Stdio{EOFGrace: 50 * time.Millisecond, Answer: func(ctx context.Context, req *Request) Reply {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return Reply{Result: json.RawMessage(`"late"`)}
	}})
	p.send(`{"jsonrpc":"2.0","id":1,"method":"wait"}`)
	p.in.Close()
	if line, err := p.out.ReadString('\n'); err == nil {
		t.Errorf("after EOF the server wrote %q, want nothing", line)
	}
	p.ended()
	if got := <-causes; !errors.Is(got, ErrClosed) {
		t.Errorf("cause at EOF = %v, want ErrClosed", got)
	}
}

func TestServeEOFWithStuckCallAndStuckClient(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	s := &Stdio{Logger: slog.New(slog.DiscardHandler), Answer: func(_ context.Context, req *Request) Reply {
		if req.Method == "stuck" {
			<-release
		}
		return Reply{Result: json.RawMessage(`{}`)}
	}}
	outR, outW := io.Pipe() // nobody reads
	in := strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"stuck"}` + "\n" + strings.Repeat(`{"jsonrpc":"2.0","id":7,"method":"ping"}`+"\n", 20))
	done := make(chan error, 1)
	go func() { done <- s.Serve(t.Context(), in, outW) }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Serve = %v, want nil", err)
		}
	case <-time.After(patience):
		t.Errorf("Serve still runs %v after EOF", patience)
	}
	close(release)
	outR.Close()
}

func TestServeStop(t *testing.T) {
	t.Parallel()
	started := make(chan struct{})
	p := connect(t, &Stdio{Answer: func(ctx context.Context, _ *Request) Reply {
		close(started)
		<-ctx.Done()
		return Reply{Error: &Error{Code: CodeInternal, Message: context.Cause(ctx).Error()}}
	}})
	p.send(`{"jsonrpc":"2.0","id":1,"method":"wait"}`)
	<-started
	p.stop()
	want := `{"jsonrpc":"2.0","id":1,"error":{"code":-32603,"message":"transport: server is stopping"}}`
	if got := p.receive(); got != want {
		t.Errorf("a call in flight at the stop is answered %s, want %s", got, want)
	}
	p.ended()
}

func TestServeCancel(t *testing.T) {
	t.Parallel()
	causes := make(chan string, 2)
	started := make(chan struct{}, 2)
	p := connect(t, &Stdio{Answer: func(ctx context.Context, req *Request) Reply {
		if req.Method == "wait" {
			started <- struct{}{}
			<-ctx.Done()
			if c, ok := errors.AsType[*CancelledError](context.Cause(ctx)); ok {
				causes <- string(req.ID) + " " + c.Reason
			}
			if err := req.Notify("notifications/progress", json.RawMessage(`{}`)); err == nil {
				t.Error("Notify of a cancelled request = nil, want an error")
			}
		}
		return Reply{Result: json.RawMessage(`{}`)}
	}})
	p.send(`{"jsonrpc":"2.0","id":"é","method":"wait"}`, `{"jsonrpc":"2.0","id":10,"method":"wait"}`)
	<-started
	<-started
	p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"\u00e9","reason":"MCP error -32001"}}`)
	if got, want := <-causes, `"é" MCP error -32001`; got != want {
		t.Errorf("cancelled request = %s, want %s", got, want)
	}
	p.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":10}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":10}}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled"}`,
		`{"jsonrpc":"2.0","id":11,"method":"list"}`)
	if got, want := p.receive(), `{"jsonrpc":"2.0","id":11,"result":{}}`; got != want {
		t.Errorf("first line after two cancels = %s, want %s", got, want)
	}
}

func TestServeBound(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	p := connect(t, &Stdio{MaxInFlight: 2, MaxHeld: 100, Answer: func(_ context.Context, req *Request) Reply {
		if req.Method == "wait" {
			<-release
		}
		return Reply{Result: json.RawMessage(`{}`)}
	}})
	p.send(`{"jsonrpc":"2.0","id":1,"method":"wait"}`, `{"jsonrpc":"2.0","id":2,"method":"wait"}`,
		`{"jsonrpc":"2.0","id":3,"method":"wait"}`)
	want := `{"jsonrpc":"2.0","id":3,"error":{"code":-32603,"message":"too many requests in flight"}}`
	if got := p.receive(); got != want {
		t.Errorf("a request over the bound is answered %s, want %s", got, want)
	}
	p.send(`{"jsonrpc":"2.0","id":4,"method":"ping"}`)
	if got, want := p.receive(), `{"jsonrpc":"2.0","id":4,"result":{}}`; got != want {
		t.Errorf("a ping beside full slots is answered %s, want %s", got, want)
	}
	p.send(`{"jsonrpc":"2.0","id":2,"method":"wait"}`)
	if got := p.receive(); !strings.HasPrefix(got, `{"jsonrpc":"2.0","id":null,"error":{"code":-32600`) {
		t.Errorf("an id used twice at once is answered %s, want -32600 without id", got)
	}
	close(release)
	p.receive()
	p.receive()
	p.send(`{"jsonrpc":"2.0","id":5,"method":"x","params":{"a":"` + strings.Repeat("x", 100) + `"}}`)
	want = `{"jsonrpc":"2.0","id":5,"error":{"code":-32603,"message":"too many requests in flight"}}`
	if got := p.receive(); got != want {
		t.Errorf("a request over the bound of bytes is answered %s, want %s", got, want)
	}
}

// Thirty-two requests at once with many notifications each: none is lost, each
// comes in order and before its response, and Delivered follows the write.
func TestServeOrder(t *testing.T) {
	t.Parallel()
	const calls, notes = 32, 50
	var delivered atomic.Int64
	p := connect(t, &Stdio{Answer: func(_ context.Context, req *Request) Reply {
		for i := range notes {
			if err := req.Notify("n", json.RawMessage(fmt.Sprintf(`{"of":%s,"i":%d}`, req.ID, i))); err != nil {
				t.Errorf("Notify = %v", err)
			}
		}
		return Reply{Result: json.RawMessage(`{}`), Delivered: func() { delivered.Add(1) }}
	}})
	go func() {
		for id := range calls {
			p.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"x"}`, id))
		}
	}()
	next := map[int]int{}
	for range calls * (notes + 1) {
		var m struct {
			ID     *int
			Params struct{ Of, I int }
		}
		line := p.receive()
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatalf("line %s: %v", line, err)
		}
		if m.ID != nil {
			if next[*m.ID] != notes {
				t.Errorf("response %d came after %d notifications, want %d", *m.ID, next[*m.ID], notes)
			}
			continue
		}
		if m.Params.I != next[m.Params.Of] {
			t.Errorf("request %d: notification %d, want %d", m.Params.Of, m.Params.I, next[m.Params.Of])
		}
		next[m.Params.Of]++
	}
	p.in.Close()
	p.ended()
	if got := delivered.Load(); got != calls {
		t.Errorf("Delivered was called %d times, want %d", got, calls)
	}
}

func TestServeBrokenOutput(t *testing.T) {
	t.Parallel()
	var delivered atomic.Int64
	s := &Stdio{Logger: slog.New(slog.DiscardHandler), Answer: func(context.Context, *Request) Reply {
		return Reply{Result: json.RawMessage(`{}`), Delivered: func() { delivered.Add(1) }}
	}}
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	outR.Close()
	done := make(chan error, 1)
	go func() { done <- s.Serve(t.Context(), inR, outW) }()
	if _, err := io.WriteString(inW, `{"jsonrpc":"2.0","id":1,"method":"x"}`+"\n"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("Serve = %v, want nil", err)
	}
	inW.Close()
	if got := delivered.Load(); got != 0 {
		t.Errorf("Delivered was called %d times for an answer that nobody read, want 0", got)
	}
}
