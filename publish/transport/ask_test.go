package transport

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestResponsesAreRead(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ line, want string }{
		{`{"jsonrpc":"2.0","id":"a","result":{"action":"cancel"}}`, `a {"action":"cancel"} false`},
		{`{"jsonrpc":"2.0","id":"\u0061","result":null}`, `a null false`},
		{`{"jsonrpc":"2.0","id":"a","error":{"code":-32601,"message":"no"}}`, `a  true`},
		{`{"jsonrpc":"2.0","id":1,"result":{}}`, ""},
		{`{"jsonrpc":"2.0","id":null,"error":{}}`, ""},
		{`{"jsonrpc":"2.0","result":{}}`, ""},
		{`{"jsonrpc":"2.0","id":"a","result":{},"error":{}}`, ""},
		{`{"jsonrpc":"2.0","id":"a","Result":{},"result":{"a":1}}`, `a {"a":1} false`},
	} {
		m, _, fault := parse([]byte(c.line))
		got := ""
		if m.reply != nil {
			got = fmt.Sprintf("%s %s %t", m.reply.id, m.reply.result, m.reply.refused)
		}
		if fault != nil || got != c.want || m.method != "" || m.id != nil {
			t.Errorf("parse(%s) = %q, %v, want %q", c.line, got, fault, c.want)
		}
	}
}

// TestAskOverStdio asks the client from within a request, and after it.
func TestAskOverStdio(t *testing.T) {
	t.Parallel()
	type outcome struct {
		answer Answer
		err    error
	}
	outcomes := make(chan outcome, 8)
	takeBack := make(chan context.CancelCauseFunc, 1)
	answer := func(ctx context.Context, req *Request) Reply {
		actx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
		ask := func(id string) {
			a, err := req.Ask(actx, id, "elicitation/create", json.RawMessage(`{"message":"?"}`))
			outcomes <- outcome{a, err}
		}
		if req.Method == "stay" { // the question outlives the request
			takeBack <- cancel
			go ask("s-2")
			return Reply{Result: json.RawMessage(`{}`)}
		}
		defer cancel(nil)
		ask("s-1")
		return Reply{Result: json.RawMessage(`{}`)}
	}
	inR, in := io.Pipe()
	out, outW := io.Pipe()
	served := make(chan error, 1)
	go func() {
		loop := Stdio{Answer: answer, Principal: "local", Logger: slog.New(slog.DiscardHandler), EOFGrace: 10 * time.Millisecond}
		served <- loop.Serve(t.Context(), inR, outW)
		outW.Close()
	}()
	lines := bufio.NewReader(out)
	send := func(format string, args ...any) {
		t.Helper()
		if _, err := fmt.Fprintf(in, format+"\n", args...); err != nil {
			t.Fatal(err)
		}
	}
	next := func() string {
		t.Helper()
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSuffix(line, "\n")
	}
	want := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}

	send(`{"jsonrpc":"2.0","id":1,"method":"ask"}`)
	want(next(), `{"jsonrpc":"2.0","id":"s-1","method":"elicitation/create","params":{"message":"?"}}`)
	for _, stray := range []string{`"s-9"`, `1`, `"s-1 "`, `null`} {
		send(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept"}}`, stray)
	}
	send(`{"jsonrpc":"2.0","id":"s-1","result":{"action":"decline"}}`)
	send(`{"jsonrpc":"2.0","id":"s-1","result":{"action":"accept"}}`) // nobody hears it twice
	want(next(), `{"jsonrpc":"2.0","id":1,"result":{}}`)
	o := <-outcomes
	if o.err != nil || string(o.answer.Result) != `{"action":"decline"}` || o.answer.Refused || o.answer.Sent.IsZero() || o.answer.Received.IsZero() {
		t.Errorf("answer = %+v, %v, want the decline", o.answer, o.err)
	}

	send(`{"jsonrpc":"2.0","id":2,"method":"ask"}`)
	next()
	send(`{"jsonrpc":"2.0","id":"s-1","error":{"code":-1,"message":"no"}}`)
	next()
	if o := <-outcomes; o.err != nil || !o.answer.Refused {
		t.Errorf("answer = %+v, %v, want an error of the client", o.answer, o.err)
	}

	send(`{"jsonrpc":"2.0","id":3,"method":"stay"}`)
	seen := map[string]bool{next(): true, next(): true}
	for _, line := range []string{`{"jsonrpc":"2.0","id":3,"result":{}}`, `{"jsonrpc":"2.0","id":"s-2","method":"elicitation/create","params":{"message":"?"}}`} {
		if !seen[line] {
			t.Errorf("lines = %v, want %s among them", seen, line)
		}
	}
	taken := errors.New("decided elsewhere")
	(<-takeBack)(taken)
	want(next(), `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"s-2","reason":"decided elsewhere"}}`)
	if o := <-outcomes; !errors.Is(o.err, taken) {
		t.Errorf("the error of a question that was taken back = %v, want %v", o.err, taken)
	}

	send(`{"jsonrpc":"2.0","id":4,"method":"ask"}`)
	next()
	in.Close()
	if o := <-outcomes; !errors.Is(o.err, ErrClosed) {
		t.Errorf("the error when the client is gone = %v, want %v", o.err, ErrClosed)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve = %v", err)
	}
}
