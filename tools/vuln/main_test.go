package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const stream = `{"config":{"protocol_version":"v1.0.0"}}
{"finding":{"osv":"GO-1","trace":[{"module":"example.com/imported","version":"v1.0.0"}]}}
{"finding":{"osv":"GO-2","fixed_version":"v1.2.0","trace":[{"module":"example.com/called","version":"v1.0.0","package":"example.com/called","function":"F"}]}}
{"finding":{"osv":"GO-3","trace":[{"module":"stdlib","version":"v1.26.0","package":"net/http","function":"Get"}]}}
`

func TestJudge(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, stream string
		accepted     map[string]string
		wantErr      bool
	}{
		{"called", stream, nil, true},
		{"accepted", stream, map[string]string{"GO-2": "not ours"}, false},
		{"imported only", strings.ReplaceAll(stream, `"function":"F"`, `"function":""`), nil, false},
		{"cut off", stream[:len(stream)-20], map[string]string{"GO-2": "not ours"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if err := judge([]byte(tt.stream), tt.accepted, io.Discard); (err != nil) != tt.wantErr {
				t.Errorf("judge(%s) = %v, want error %t", tt.name, err, tt.wantErr)
			}
		})
	}
}

func TestReadAllowedWantsReasons(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "allow.txt")
	if err := os.WriteFile(file, []byte("# why\nGO-1 because\nGO-2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readAllowed(file); err == nil {
		t.Error("readAllowed(id without reason) = nil, want an error")
	}
}
