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

// maxAnswered bounds the answered requests that are known still.
const maxAnswered = 64

// asks are the requests of ours that one client has not answered.
type asks struct {
	mu       sync.Mutex
	open     map[string]chan Answer
	answered []string // oldest first
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
	forget := func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.open[id] == response { // it may have been asked again under the same id
			delete(a.open, id)
		}
	}
	defer forget()
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
	forget()
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

// take hands a response to whoever asked. It is false if nobody here did, or does
// any more; of two responses the second is passed over.
func (a *asks) take(r *reply, at time.Time) bool {
	a.mu.Lock()
	response := a.open[r.id]
	delete(a.open, r.id)
	known := response != nil || slices.Contains(a.answered, r.id)
	if response != nil {
		if len(a.answered) >= maxAnswered {
			a.answered = slices.Delete(a.answered, 0, 1)
		}
		a.answered = append(a.answered, r.id)
	}
	a.mu.Unlock()
	if response != nil {
		response <- r.answer(at)
	}
	return known
}

func (r *reply) answer(at time.Time) Answer {
	return Answer{Result: r.result, Refused: r.refused, Received: at}
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
