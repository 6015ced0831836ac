package publish_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/relavium/relavium-serve/publish"
)

var update = flag.Bool("update", false, "write what the server says into the transcripts")

// TestTranscripts replays raw JSON-RPC, one file per protocol revision. In the
// file "session" a line "> " is sent, and "< " lines are what the server says up
// to the response to it. What differs from run to run is replaced.
func TestTranscripts(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("Glob = %v, %v, want transcripts", files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var list []publish.Workflow
			session := -1
			for i, f := range archive.Files {
				if f.Name == "session" {
					session = i
				} else {
					list = append(list, parse(t, string(f.Data)))
				}
			}
			if session < 0 {
				t.Fatal("no session")
			}
			s, _, _ := newServer(t, func(o *publish.Options) { o.NoRunTools = true }, list...)
			want := string(archive.Files[session].Data)
			got := replay(t, connect(t, s), want)
			if *update {
				archive.Files[session].Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(archive), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("session differs (-want +got); -update rewrites it:\n%s", diff)
			}
		})
	}
}

func replay(t *testing.T, c *client, session string) string {
	t.Helper()
	var out strings.Builder
	runs := map[string]string{}
	for line := range strings.Lines(session) {
		line = strings.TrimSuffix(line, "\n")
		sent, ok := strings.CutPrefix(line, "> ")
		if !ok {
			if !strings.HasPrefix(line, "< ") {
				fmt.Fprintln(&out, line)
			}
			continue
		}
		fmt.Fprintln(&out, line)
		for name, id := range runs {
			sent = strings.ReplaceAll(sent, name, id)
		}
		c.send("%s", sent)
		var request struct {
			ID     json.RawMessage
			Method string
		}
		if json.Unmarshal([]byte(sent), &request) == nil && request.ID == nil && request.Method != "" {
			continue // a notification
		}
		for {
			m := c.next()
			fmt.Fprintln(&out, "< "+steady(m.raw, runs))
			if m.Method == "" {
				break
			}
		}
	}
	return out.String()
}

// steady replaces run ids, by RUN1 and so on, and durations.
func steady(line string, runs map[string]string) string {
	line = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f-]{21}`).ReplaceAllStringFunc(line, func(id string) string {
		for name, known := range runs {
			if known == id {
				return name
			}
		}
		name := fmt.Sprintf("RUN%d", len(runs)+1)
		runs[name] = id
		return name
	})
	line = regexp.MustCompile(`("relavium/durationMs"|"durationMs"):\d+`).ReplaceAllString(line, `$1:0`)
	return regexp.MustCompile(`\d{4}-\d\d-\d\dT[0-9:]+Z`).ReplaceAllString(line, "TIME")
}
