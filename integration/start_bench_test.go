package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"
)

// BenchmarkStart measures what a client waits for when it opens a server with a
// hundred published workflows: from the start of the process to the answered
// tools/list. It reports the median in ms and the memory of the process then
// (Linux; 0 elsewhere). The store exists already, as at every start but the first.
func BenchmarkStart(b *testing.B) {
	const published = 100
	files := map[string]string{}
	text := testdata(b, "deploy")["deploy"]
	for i := range published {
		id := fmt.Sprintf("flow-%03d", i)
		files[id] = string(bytes.Replace([]byte(text), []byte("id: deploy"), []byte("id: "+id), 1))
	}
	p := install(b, anyAnswer).project(b, "project", files)
	start := func() (time.Duration, float64) {
		began := time.Now()
		s := p.serve(b, "--publish", "@mcp_call")
		s.initialize()
		list := s.ask("1", "tools/list", `{}`)
		took := time.Since(began)
		if n := bytes.Count(list.Result, []byte(`"name":"relavium_flow-`)); n != published {
			b.Fatalf("tools/list has %d workflows, want %d", n, published)
		}
		rss := resident(b, s.cmd.Process.Pid)
		s.eof()
		return took, rss
	}
	start()
	var times []time.Duration
	var most float64
	for b.Loop() {
		took, rss := start()
		times = append(times, took)
		most = max(most, rss)
	}
	b.ReportMetric(float64(median(times).Microseconds())/1000, "ms-p50/start")
	b.ReportMetric(most, "MB-rss")
}

// resident is the process's resident memory in MB (10^6 bytes).
func resident(tb testing.TB, pid int) float64 {
	tb.Helper()
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	if m == nil {
		return 0
	}
	kib, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		tb.Fatal(err)
	}
	return kib * 1024 / 1e6
}

func median(times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[len(sorted)/2]
}
