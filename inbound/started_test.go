package inbound

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/workflows"
)

// A program that was started is told of, whatever becomes of it; one that was not is not.
func TestStarted(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("there is no /bin/sleep")
	}
	var told []Started
	var granted error
	w := newWorld(t, nil, func(opt *Options) {
		opt.Started = func(_ context.Context, s Started) { told = append(told, s) }
		opt.Granted = func(context.Context, string) error { return granted }
	})
	ref := workflows.ServerRef{ID: "s", Transport: "stdio", Command: "/bin/sleep", Args: []string{"60"}, ConnectTimeout: 5 * time.Second}
	if w.open(t, flow(ref)) == nil {
		t.Error("a sleeper was connected")
	}
	if len(told) != 1 || told[0].Run != "r" || told[0].Principal != "local" || told[0].Server != "s" || !consent.IsDigest(told[0].Digest) {
		t.Errorf("told %+v, want one start of s for r by local, with its digest", told)
	}
	granted = &consent.NotGrantedError{}
	if w.open(t, flow(ref)) == nil || len(told) != 1 {
		t.Errorf("told %+v, want nothing of a start that was refused", told)
	}
	w.shutdown(t)
}
