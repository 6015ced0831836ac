package transport

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"
)

// An Answer is a client's response to a request of ours.
type Answer struct {
	Result   json.RawMessage
	Refused  bool      // it was an error: there is no Result
	Sent     time.Time // when the request had been written
	Received time.Time
}

// An AskFunc sends a request to the client of a revision before 2026-07-28 and
// returns its response. id must be one that nobody can guess. When ctx ends
// first the client is told that the request is cancelled, for the reason that
// is the cause; the error is that cause then, and ErrClosed when the connection
// is gone. A cause with a method Left that is true leaves the request open at
// the client: nothing is said, and the Answer holds when it was sent.
type AskFunc func(ctx context.Context, id, method string, params json.RawMessage) (Answer, error)

// reply is a response of the client as it was read.
type reply struct {
	id      string
	result  json.RawMessage
	refused bool
}

// maxKept bounds the requests that were left open at one client.
const maxKept = 64

// asks are the requests of ours that one client has not answered.
type asks struct {
	mu   sync.Mutex
	open map[string]chan Answer
	kept []kept // oldest first
}

// kept is a request that whoever asked it left open: take gets its answer.
type kept struct {
	about, id string
	sent      time.Time
	take      func(Answer)
}

// keep makes take get the answer to a request that was left open, if it comes.
func (a *asks) keep(about, id string, sent time.Time, take func(Answer)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.kept) >= maxKept {
		a.kept = slices.Delete(a.kept, 0, 1)
	}
	a.kept = append(a.kept, kept{about, id, sent, take})
}

// recall takes back what was kept about something, to ask it again.
func (a *asks) recall(about string) (id string, sent time.Time, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := slices.IndexFunc(a.kept, func(k kept) bool { return k.about == about })
	if at < 0 {
		return "", time.Time{}, false
	}
	k := a.kept[at]
	a.kept = slices.Delete(a.kept, at, at+1)
	return k.id, k.sent, true
}

// ask writes a request and waits for its response. gone is closed when the
// connection is.
func (a *asks) ask(ctx context.Context, gone <-chan struct{}, id, method string, params json.RawMessage, write func(line []byte) error) (Answer, error) {
	response := make(chan Answer, 1)
	a.mu.Lock()
	if a.open == nil {
		a.open = map[string]chan Answer{}
	}
	a.open[id] = response
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.open, id)
	}()
	if err := write(requestLine(id, method, params)); err != nil {
		return Answer{}, err
	}
	sent := time.Now()
	select {
	case answer := <-response:
		answer.Sent = sent
		return answer, nil
	case <-gone:
		return Answer{}, ErrClosed
	case <-ctx.Done():
	}
	a.mu.Lock()
	delete(a.open, id)
	a.mu.Unlock()
	cause := context.Cause(ctx)
	var left interface{ Left() bool }
	if errors.As(cause, &left) && left.Left() {
		return Answer{Sent: sent}, cause
	}
	if err := write(cancelledLine(id, cause)); err != nil {
		return Answer{}, err
	}
	return Answer{}, cause
}

// take hands a response to whoever asked. One that nobody waits for, any more or
// at all, is passed over.
func (a *asks) take(r *reply, at time.Time) {
	a.mu.Lock()
	response := a.open[r.id]
	delete(a.open, r.id)
	var late kept
	if response == nil {
		if i := slices.IndexFunc(a.kept, func(k kept) bool { return k.id == r.id }); i >= 0 {
			late = a.kept[i]
			a.kept = slices.Delete(a.kept, i, i+1)
		}
	}
	a.mu.Unlock()
	answer := Answer{Result: r.result, Refused: r.refused, Sent: late.sent, Received: at}
	switch {
	case response != nil:
		response <- answer
	case late.take != nil:
		late.take(answer)
	}
}

func requestLine(id, method string, params json.RawMessage) []byte {
	return bytes.Join([][]byte{
		[]byte(`{"jsonrpc":"2.0","id":`), quote(id), []byte(`,"method":`), quote(method),
		[]byte(`,"params":`), params, []byte("}\n"),
	}, nil)
}

func cancelledLine(id string, cause error) []byte {
	params := bytes.Join([][]byte{[]byte(`{"requestId":`), quote(id), []byte(`,"reason":`), quote(cause.Error()), []byte("}")}, nil)
	return notificationLine("notifications/cancelled", params)
}

func quote(s string) []byte {
	b, err := json.Marshal(s)
	if err != nil { // a string always encodes
		return []byte(`""`)
	}
	return b
}
