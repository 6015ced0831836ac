package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestTaskThroughKillNine kills the server while a task waits for a person: the
// next server of the project answers for it, and takes an answer to the question
// that the first one showed.
func TestTaskThroughKillNine(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("a process is killed as on Unix")
	}
	p := install(t, anyAnswer).project(t, "project", testdata(t, "deploy"))
	server, client := p.serveHTTP(t, "--publish", "@mcp_call"), plainClient(t, nil)
	made := ask(t, client, server.url, "tools/call", "relavium_deploy", `"name":"relavium_deploy","arguments":{"version":"1.4.2"}`)
	id := made.TaskID
	if id == "" || made.Status != "working" {
		t.Fatalf("the call is answered by %+v, want a task", made)
	}
	params := fmt.Sprintf(`"taskId":%q`, id)
	key := ""
	for deadline := time.Now().Add(patience); key == ""; {
		for key = range ask(t, client, server.url, "tasks/get", id, params).InputRequests {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the task asks nothing")
		}
		pause(t, 10*time.Millisecond)
	}
	server.end(os.Kill)
	server = p.serveHTTP(t, "--publish", "@mcp_call")
	if got := ask(t, client, server.url, "tasks/get", id, params); got.Status != "input_required" || len(got.InputRequests[key]) == 0 {
		t.Errorf("after the kill the task is %+v, want it to ask under the key %s still", got, key)
	}
	ask(t, client, server.url, "tasks/update", id, params+fmt.Sprintf(`,"inputResponses":{%q:{"action":"accept","content":{"decision":"approve"}}}`, key))
	for deadline := time.Now().Add(patience); ; {
		got := ask(t, client, server.url, "tasks/get", id, params)
		if got.Status == "completed" {
			if got.Result.IsError {
				t.Errorf("the task's result is an error: %+v", got)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the task is %+v, want it completed", got)
		}
		pause(t, 10*time.Millisecond)
	}
}

// A taskSeen is what a client sees of a task, or of a call that asks.
type taskSeen struct {
	TaskID            string
	Status            string
	InputRequests     map[string]json.RawMessage
	RequestState      string
	StructuredContent json.RawMessage
	Result            struct{ IsError bool }
}

// ask makes one request of a client of 2026-07-28 that declares tasks.
func ask(t *testing.T, client *http.Client, url, method, name, params string) taskSeen {
	t.Helper()
	return askAs(t, client, url, `"elicitation":{},"extensions":{"io.modelcontextprotocol/tasks":{}}`, method, name, params)
}

func askAs(t *testing.T, client *http.Client, url, capabilities, method, name, params string) taskSeen {
	t.Helper()
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"probe","version":"0"},"io.modelcontextprotocol/clientCapabilities":{%s}}}}`, method, params, capabilities)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Mcp-Name": name,
	} {
		req.Header.Set(key, value)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if at := bytes.LastIndex(raw, []byte("data: ")); at >= 0 && strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		raw = raw[at+len("data: "):] // the response is the last event
	}
	var got struct{ Result *taskSeen }
	if err := json.Unmarshal(raw, &got); err != nil || got.Result == nil {
		t.Fatalf("%s = %d %s (%v)", method, resp.StatusCode, raw, err)
	}
	return *got.Result
}
