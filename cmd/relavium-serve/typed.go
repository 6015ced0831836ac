package main

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/term"
)

var errNotTyped = errors.New("nothing was typed")

// typeHidden asks on the terminal for a line that is not shown while it is typed.
// The terminal is as it was before when it returns, also when ctx ends. An empty
// line, the end of the input and an interrupt are errNotTyped.
func typeHidden(ctx context.Context, in *os.File, out io.Writer, question string) ([]byte, error) {
	fd := int(in.Fd())
	before, err := term.MakeRaw(fd) // before the question: an answer may come at once
	if err != nil {
		return nil, errNotTyped
	}
	type answer struct {
		line string
		err  error
	}
	typed := make(chan answer, 1)
	go func() {
		line, err := term.NewTerminal(struct {
			io.Reader
			io.Writer
		}{in, out}, "").ReadPassword(question)
		typed <- answer{line, err}
	}()
	select {
	case got := <-typed:
		if err := term.Restore(fd, before); err != nil || got.err != nil || got.line == "" {
			return nil, errNotTyped
		}
		return []byte(got.line), nil
	case <-ctx.Done():
		_, _ = io.WriteString(out, "\r\n")
		return nil, errors.Join(ctx.Err(), term.Restore(fd, before))
	}
}
