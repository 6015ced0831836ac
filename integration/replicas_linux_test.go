package integration

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/relavium/relavium-serve/consent"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
	"github.com/relavium/relavium-serve/integration/fakemodel"
)

// replicas are two homes with one project and one database. The keys that seal
// questions are those of the first.
func replicas(t *testing.T, a project) (project, project) {
	t.Helper()
	a.env = append(a.env, "RELAVIUM_DATABASE_URL="+durabletest.Shared(t))
	config, err := os.ReadFile(filepath.Join(a.home, "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	b := project{installation: install(t, string(config)), dir: a.dir}
	b.env = a.env
	a.ok(t, "migrate")
	return a, b
}

// shareKeys gives the second home the keys of the first, where a server has made them.
func shareKeys(t *testing.T, a, b project) {
	t.Helper()
	keys, err := os.ReadFile(filepath.Join(a.home, "gates.key"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(b.home, "gates.key"), string(keys))
}

// TestReplicas is two servers on one database: what one began the other shows, decides,
// cancels and finishes, and a token that ends does so on both.
func TestReplicas(t *testing.T) {
	t.Parallel()
	a, b := replicas(t, scenarioProject(t))
	args := []string{"--publish", "@mcp_call", "--auth", "token"}
	first := a.serveHTTP(t, args...)
	shareKeys(t, a, b)
	second := b.serveHTTP(t, args...)
	secret := a.newToken(t, "bot", "relavium:run")
	client := plainClient(t, nil)
	onA, onB := bearer{t, first.url, secret, client}, bearer{t, second.url, secret, client}

	begin := func() (id string, result <-chan string) {
		t.Helper()
		before := len(a.runs(t))
		said := make(chan string, 1)
		resp := onA.send(t.Context(), "tools/call", "relavium_deploy", `"name":"relavium_deploy","arguments":{"version":"1.4.2"},`) //nolint:bodyclose // closed below
		go func() {
			defer resp.Body.Close()
			raw, err := io.ReadAll(resp.Body)
			said <- fmt.Sprint(string(raw), err)
		}()
		waitFor(t, func() bool {
			list := b.runs(t)
			return len(list) > before && list[0].State == "waiting"
		}, func() string { return "no run waits" })
		return b.runs(t)[0].ID, said
	}

	run, result := begin()
	if _, body := onB.call("relavium_run_status", fmt.Sprintf(`{"run":%q}`, run)); !strings.Contains(body, `"status":"waiting"`) {
		t.Errorf("relavium_run_status by the other replica = %s, want that it waits", body)
	}
	b.approve(t, run)
	if got := <-result; !strings.Contains(got, "1.4.2") {
		t.Errorf("the call that was decided by the other replica = %s, want its result", got)
	}

	run, result = begin()
	if status, body := onB.call("relavium_run_cancel", fmt.Sprintf(`{"run":%q}`, run)); status != http.StatusOK {
		t.Errorf("relavium_run_cancel by the other replica = %d, %s", status, body)
	}
	if got := <-result; !strings.Contains(got, "cancelled") {
		t.Errorf("the call that was cancelled by the other replica = %s, want that it was", got)
	}

	run, _ = begin()
	first.end(os.Kill)
	b.approve(t, run)
	if got := b.await(t, run, "completed", "failed"); got.State != "completed" {
		t.Errorf("the run of a replica that was killed = %s, want completed", got.State)
	}
	if log := b.ok(t, "audit", "--json"); strings.Count(log, `"run.started"`) != 3 || strings.Count(log, `"gate.decided"`) != 2 || !strings.Contains(log, `"token.created"`) {
		t.Errorf("the audit log of the database = %s", log)
	}

	var tokens []struct{ ID string }
	decode(t, []byte(b.ok(t, "token", "list", "--json")), &tokens)
	a.ok(t, "token", "revoke", tokens[0].ID)
	waitFor(t, func() bool {
		status, _ := onB.call("relavium_greet", `{"name":"Ada"}`)
		return status == http.StatusUnauthorized
	}, func() string { return "a revoked token is still taken" })
}

// TestReplicasAnswer asks a client's person at one server and takes the answer at the
// other, for a call that waits no longer and for a task.
func TestReplicasAnswer(t *testing.T) {
	t.Parallel()
	a, b := replicas(t, install(t, anyAnswer).project(t, "project", testdata(t, "deploy")))
	first := a.serveHTTP(t, "--publish", "@mcp_call")
	shareKeys(t, a, b)
	second := b.serveHTTP(t, "--publish", "@mcp_call")
	client := plainClient(t, nil)
	const approve = `{"action":"accept","content":{"decision":"approve"}}`
	for _, way := range [][2]string{{first.url, second.url}, {second.url, first.url}} {
		here, there := way[0], way[1]
		call := `"name":"relavium_deploy","arguments":{"version":"1.4.2"}`
		asked := askAs(t, client, here, `"elicitation":{}`, "tools/call", "relavium_deploy", call)
		if len(asked.InputRequests) != 1 || asked.RequestState == "" {
			t.Fatalf("the call is answered by %+v, want a question", asked)
		}
		for key := range asked.InputRequests {
			call += fmt.Sprintf(`,"requestState":%q,"inputResponses":{%q:%s}`, asked.RequestState, key, approve)
		}
		if got := askAs(t, client, there, `"elicitation":{}`, "tools/call", "relavium_deploy", call); !strings.Contains(string(got.StructuredContent), `"approved"`) {
			t.Errorf("the call with its answer at the other server = %+v, want its result", got)
		}

		made := ask(t, client, here, "tools/call", "relavium_deploy", `"name":"relavium_deploy","arguments":{"version":"1.4.2"}`)
		id := made.TaskID
		params := fmt.Sprintf(`"taskId":%q`, id)
		var seen taskSeen
		waitFor(t, func() bool {
			seen = ask(t, client, there, "tasks/get", id, params)
			return len(seen.InputRequests) == 1
		}, func() string { return fmt.Sprintf("the task at the other server is %+v, want that it asks", seen) })
		for key := range seen.InputRequests {
			ask(t, client, there, "tasks/update", id, params+fmt.Sprintf(`,"inputResponses":{%q:%s}`, key, approve))
		}
		waitFor(t, func() bool {
			seen = ask(t, client, here, "tasks/get", id, params)
			return seen.Status == "completed"
		}, func() string { return fmt.Sprintf("the task is %+v, want it completed", seen) })
		if seen.Result.IsError {
			t.Errorf("the task's result is an error: %+v", seen)
		}
	}
}

// TestReplicaWithoutConsent: a call of the replica that may not start a program is run
// by the one that may. When that is killed the other does not take the run over, which
// shows as blocked with what is missing, and goes on once it is granted there. What the
// one pinned of the program's tools the other knows.
func TestReplicaWithoutConsent(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := fmt.Sprintf("mcp_servers: [{id: holder, transport: stdio, command: %q, env: {%s: '1'}}]", self, holderVariable)
	text := strings.NewReplacer("tools: [run_command, read_file]", server, "  tools: {allowedCommands: ['sh note.sh one', 'sh note.sh two']}\n", "").Replace(toolUser)
	p, _ := agentProject(t, anyAnswer, map[string]string{"tool-user": text}, fakemodel.Script{Conversations: []fakemodel.Conversation{{Turns: []fakemodel.Turn{
		{Calls: []fakemodel.Call{{Name: "mcp_holder_hold", Arguments: []byte(`{}`)}}}, {Text: "It was taken away."},
	}}}})
	if p.dir, err = filepath.EvalSymlinks(p.dir); err != nil {
		t.Fatal(err)
	}
	a, b := replicas(t, p)
	grant := func(p project) string {
		t.Helper()
		store, err := consent.Open(p.home, nil)
		if err != nil {
			t.Fatal(err)
		}
		digest, err := store.Grant(t.Context(), &consent.Declaration{Command: self, Args: []string{}, Env: map[string]string{holderVariable: "1"}, Cwd: p.dir})
		if err != nil {
			t.Fatal(err)
		}
		return digest
	}
	digest := grant(a)
	first := a.serveHTTP(t, "--publish", "@mcp_call")
	shareKeys(t, a, b)
	second := b.serveHTTP(t, "--publish", "@mcp_call")

	client := plainClient(t, nil)
	onB := bearer{t, second.url, "", client}
	var resp *http.Response
	waitFor(t, func() bool { // until the other has said what it has
		resp = onB.send(t.Context(), "tools/call", "relavium_tool-user", `"name":"relavium_tool-user","arguments":{},`) //nolint:bodyclose // closed below
		if len(b.runs(t)) == 1 {
			return true
		}
		raw, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		return !strings.Contains(string(raw), digest)
	}, func() string { return "no replica takes the call" })
	defer resp.Body.Close()
	if err := a.noted(t.Context(), "held"); err != nil {
		t.Fatal(err)
	}
	run := b.runs(t)[0].ID
	first.end(os.Kill)
	blocked := b.await(t, run, "blocked", "completed", "failed", "waiting")
	if blocked.State != "blocked" || !strings.Contains(blocked.Reason, digest) {
		t.Fatalf("the run of a killed replica = %s (%s), want blocked for %s", blocked.State, blocked.Reason, digest)
	}
	grant(b)
	if pins := b.ok(t, "mcp", "pin", "show", "holder", "--json"); !strings.Contains(pins, `"state": "same"`) {
		t.Errorf("what the other replica pinned = %s, want that it is known and the same", pins)
	}
	if got := b.await(t, run, "waiting", "completed", "failed"); got.State != "waiting" {
		t.Errorf("the run where consent was given = %s, want that it asks about the call whose end nobody knows", got.State)
	}
}
