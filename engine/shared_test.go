package engine_test

import (
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
)

// A document is changed by one process at a time, also its first time, and read by all.
func TestDocument(t *testing.T) {
	t.Parallel()
	t.Run("file", func(t *testing.T) {
		t.Parallel()
		checkDocument(t, durabletest.Place(t, t.TempDir()))
	})
	t.Run("database", func(t *testing.T) {
		t.Parallel()
		checkDocument(t, durabletest.Shared(t))
	})
}

func checkDocument(t *testing.T, place string) {
	t.Helper()
	looking := func(o *engine.Options) { o.Executor = false }
	processes := []*engine.Engine{open(t, place, looking), open(t, place, looking)}
	if got, err := processes[0].Document(t.Context(), "counter"); got != nil || err != nil {
		t.Errorf("a document that nobody made = %q, %v, want nil", got, err)
	}
	const writers, each = 6, 10
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for range each {
				err := processes[w%2].ReplaceDocument(t.Context(), "counter", func(old []byte) ([]byte, error) {
					n, err := strconv.Atoi(string(append([]byte("0"), old...)))
					return []byte(strconv.Itoa(n + 1)), err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	refusal := errors.New("no")
	if err := processes[1].ReplaceDocument(t.Context(), "counter", func([]byte) ([]byte, error) { return []byte("x"), refusal }); !errors.Is(err, refusal) {
		t.Errorf("a change that is refused = %v, want its error", err)
	}
	large := func([]byte) ([]byte, error) { return []byte(strings.Repeat("x", 32<<20+1)), nil }
	if err := processes[1].ReplaceDocument(t.Context(), "counter", large); err == nil {
		t.Error("a document over its bound = nil, want an error")
	}
	for _, e := range processes {
		if got, err := e.Document(t.Context(), "counter"); string(got) != strconv.Itoa(writers*each) || err != nil {
			t.Errorf("document = %q, %v, want %d", got, err, writers*each)
		}
	}
}
