package integration

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const crashRounds = 20

// relay is a workflow with two gates and a transform before, between and behind
// them. The output names the project, so that a run which another project's
// files or process decided would show.
const relay = `schema_version: '1.0'
workflow:
  id: relay
  version: '1.0.0'
  name: Relay
  description: Two gates in a row.
  trigger: {type: mcp_call}
  inputs:
    - {name: label, type: string, required: true}
  context:
    - {key: home, value: '{{ inputs.marker | read_file }}'}
  nodes:
    - {id: start, type: input}
    - {id: before, type: transform, transform: 'inputs.label + "/1"'}
    - {id: first, type: human_gate, gate_type: approval, message_template: 'First of {{ inputs.label }}?'}
    - {id: between, type: transform, transform: 'run.outputs["before"] + "/2"'}
    - {id: second, type: human_gate, gate_type: input, message_template: 'Second of {{ inputs.label }}?'}
    - {id: behind, type: transform, transform: '({trail: run.outputs["between"] + "/3", answer: run.outputs["second"].payload, first: run.outputs["first"].decision, home: ctx.home})'}
    - {id: result, type: output, output_format: json}
  edges:
    - {from: start, to: before}
    - {from: before, to: first}
    - {from: first, to: between}
    - {from: between, to: second}
    - {from: second, to: behind}
    - {from: behind, to: result}
`

// A crashProject is one of the two projects of the crash test: its server, which
// dies again and again, and the calls that are under way.
type crashProject struct {
	project
	name  string
	serve func() *session
	s     *session
	calls map[string]*crashCall // by label
	ids   int
}

// A crashCall is one run by its idempotency key. It is sent again after each
// crash until its result arrives.
type crashCall struct {
	label  string
	reply  <-chan message
	result json.RawMessage
}

// TestKillNine runs two servers of two projects on one store and kills one or
// both, twenty times, at moments that a fixed seed chooses: just after calls were
// sent, while runs wait, while decisions are written, while runs end. Every call
// is repeated under its key. In the end each key has one run, each run its own
// result, and no project has run or seen the other's.
func TestKillNine(t *testing.T) {
	if testing.Short() {
		t.Skip("twenty crashes take a minute")
	}
	t.Parallel()
	in := install(t, anyAnswer)
	chance := rand.New(rand.NewPCG(9, 9))
	projects := make([]*crashProject, 0, 2)
	for _, name := range []string{"alpha", "beta"} {
		text := strings.Replace(relay, "    - {name: label,", "    - {name: marker, type: file_path, default: marker.txt}\n    - {name: label,", 1)
		p := &crashProject{project: in.project(t, name, map[string]string{"relay": text}), name: name, calls: map[string]*crashCall{}}
		write(t, filepath.Join(p.dir, "marker.txt"), name)
		p.serve = func() *session {
			s := p.project.serve(t, "--publish", "relay")
			s.initialize()
			return s
		}
		p.s = p.serve()
		projects = append(projects, p)
	}

	for round := range crashRounds {
		for _, p := range projects {
			for i := range 3 {
				p.call(fmt.Sprintf("%s-%d-%d", p.name, round, i))
			}
		}
		victims := projects[:]
		if k := chance.IntN(3); k < 2 {
			victims = projects[k : k+1]
		}
		var deciding sync.WaitGroup
		switch round % 4 {
		case 0: // at once: calls may not have become runs yet
		case 1: // all runs wait
			for _, p := range projects {
				p.awaitGates(t)
			}
		case 2, 3: // decisions are under way, and runs end
			for _, p := range projects {
				p.awaitGates(t)
				open := p.openGates(t)
				deciding.Go(func() { p.decide(t, open) })
			}
		}
		pause(t, time.Duration(chance.IntN(60))*time.Millisecond)
		for _, p := range victims {
			p.s.kill()
		}
		deciding.Wait()
		if round%10 == 5 {
			strangerStaysOut(t, projects)
		}
		for _, p := range projects {
			if !p.alive() {
				p.s = p.serve()
				p.repeat()
			}
		}
		for _, p := range projects {
			p.finish(t)
		}
	}

	for _, p := range projects {
		p.check(t, crashRounds*3)
	}
}

// strangerStaysOut checks that a living server of one project leaves the dead
// one's decided runs alone for longer than its check for dead processes takes.
func strangerStaysOut(t *testing.T, projects []*crashProject) {
	t.Helper()
	dead, live := projects[0], projects[1]
	if dead.alive() {
		dead.s.kill()
	}
	if !live.alive() {
		live.s = live.serve()
		live.repeat()
	}
	dead.decide(t, dead.openGates(t))
	before := dead.states(t)
	pause(t, 6*time.Second)
	if diff := cmp.Diff(before, dead.states(t)); diff != "" {
		t.Errorf("runs of %s moved while only %s lived (-before +after):\n%s", dead.name, live.name, diff)
	}
}

func (p *crashProject) alive() bool {
	select {
	case <-p.s.exited:
		return false
	default:
		return true
	}
}

func (p *crashProject) call(label string) {
	c := &crashCall{label: label}
	p.calls[label] = c
	p.send(c)
}

func (p *crashProject) send(c *crashCall) {
	p.ids++
	c.reply = p.s.request(fmt.Sprint(p.ids), "tools/call", fmt.Sprintf(
		`{"name":"relavium_relay","arguments":{"label":%q},"_meta":{"relavium/idempotencyKey":%q}}`, c.label, c.label))
}

// repeat sends every call that has no result yet to the new server.
func (p *crashProject) repeat() {
	for _, c := range p.calls {
		if c.result == nil && !c.collect() {
			p.send(c)
		}
	}
}

// collect takes the result if it is there.
func (c *crashCall) collect() bool {
	select {
	case m := <-c.reply:
		c.result = m.Result
		return true
	default:
		return c.result != nil
	}
}

type gate struct {
	ID      string `json:"id"`
	Run     string `json:"run"`
	Type    string `json:"type"`
	Message string `json:"message"`
}

// openGates are the project's waiting gates, as the command line lists them.
func (p *crashProject) openGates(t *testing.T) []gate {
	t.Helper()
	var open []gate
	decode(t, []byte(p.ok(t, "gate", "list", "--here", "--json")), &open)
	for _, g := range open {
		if !strings.Contains(g.Message, " of "+p.name+"-") {
			t.Errorf("gate %q is listed in %s", g.Message, p.name)
		}
	}
	return open
}

// awaitGates waits until every call of the project stands at a gate.
func (p *crashProject) awaitGates(t *testing.T) {
	t.Helper()
	waitFor(t, func() bool {
		open := 0
		for _, c := range p.calls {
			if !c.collect() {
				open++
			}
		}
		return len(p.openGates(t)) == open
	}, func() string { return fmt.Sprintf("%d gates of %s", len(p.openGates(t)), p.name) })
}

// decide answers gates, each in a process of its own.
func (p *crashProject) decide(t *testing.T, open []gate) {
	t.Helper()
	for _, g := range open {
		args := []string{"gate", "approve", g.Run}
		if g.Type == "input" {
			args = []string{"gate", "answer", g.Run, "--value", "yes"}
		}
		if _, stderr, code := p.cli(t, append(args, "--gate", g.ID, "--yes")...); code != 0 {
			t.Errorf("relavium-serve %q = exit %d, want 0\n%s", args, code, stderr)
		}
	}
}

// finish decides until every call has its result, and checks each.
func (p *crashProject) finish(t *testing.T) {
	t.Helper()
	waitFor(t, func() bool {
		p.decide(t, p.openGates(t))
		for _, c := range p.calls {
			if !c.collect() {
				return false
			}
		}
		return true
	}, func() string { return "runs of " + p.name + ": " + fmt.Sprint(p.states(t)) })
	for label, c := range p.calls {
		var got struct {
			Structured json.RawMessage `json:"structuredContent"`
		}
		decode(t, c.result, &got)
		if diff := cmp.Diff(p.want(label), string(got.Structured)); diff != "" {
			t.Errorf("result of %s (-want +got):\n%s\n%s", label, diff, c.result)
		}
		delete(p.calls, label)
	}
}

func (p *crashProject) want(label string) string {
	return fmt.Sprintf(`{"result":{"trail":"%s/1/2/3","answer":"yes","first":"approved","home":%q}}`, label, p.name)
}

func (p *crashProject) states(t *testing.T) map[string]string {
	t.Helper()
	states := map[string]string{}
	for _, r := range p.runs(t) {
		states[r.ID] = r.State
	}
	return states
}

// check reads the store from outside: as many runs as calls, each with the
// result of one call, none twice, none of the other project.
func (p *crashProject) check(t *testing.T, calls int) {
	t.Helper()
	outputs := map[string]int{}
	for _, r := range p.runs(t) {
		if r.State != "completed" {
			t.Errorf("run %s of %s is %q (%s), want completed", r.ID, p.name, r.State, r.Reason)
		}
		outputs[string(r.Outputs)]++
	}
	if len(outputs) != calls {
		t.Errorf("%s has %d different outcomes, want %d", p.name, len(outputs), calls)
	}
	for text, n := range outputs {
		if n != 1 || !strings.Contains(text, fmt.Sprintf(`"home":%q`, p.name)) {
			t.Errorf("%s: %d runs with the outcome %s, want one of this project", p.name, n, text)
		}
	}
}

// waitFor polls until done, gently: each look is a process of its own.
func waitFor(t *testing.T, done func() bool, what func() string) {
	t.Helper()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-limit.C:
			t.Fatalf("not done within %v: %s", patience, what())
		}
	}
}

// pause lets other processes run for a while.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

// TestSecondServerTakesOver kills one of two servers of the same project while
// a run is under way: the other one finishes it, with nobody's help.
func TestSecondServerTakesOver(t *testing.T) {
	t.Parallel()
	p := install(t, anyAnswer).project(t, "project", testdata(t, "deploy", "steps"))
	dying := p.serve(t, "--publish", "deploy", "--publish", "steps")
	dying.initialize()
	staying := p.serve(t, "--publish", "deploy")
	staying.initialize()
	dying.request("1", "tools/call", `{"name":"relavium_deploy","arguments":{"version":"1"}}`)
	atGate := dying.gate(0)
	// Eight nodes of which six compute for a moment: it dies among them.
	dying.request("2", "tools/call", `{"name":"relavium_steps","arguments":{"seed":1},"_meta":{"progressToken":"p"}}`)
	var note struct {
		Progress float64 `json:"progress"`
	}
	for n := 0; note.Progress < 2; n++ {
		decode(t, dying.notification("notifications/progress", n).Params, &note)
	}
	dying.kill()

	p.approve(t, atGate)
	for _, r := range p.runs(t) {
		want := map[string]string{
			"deploy": `{"result":{"version":"1","decision":"approved","steps":2}}`,
			"steps":  `{"sum":7}`,
		}[r.Workflow]
		r := p.await(t, r.ID, "completed", "failed", "blocked")
		if r.State != "completed" || string(r.Outputs) != want {
			t.Errorf("%s after its server died = %s %s, want completed %s", r.Workflow, r.State, r.Outputs, want)
		}
	}
}

// TestLostCallJoinsAfterCrash repeats a call without a key that a kill -9 ended:
// it joins the run that waits, instead of asking the person twice, also if only
// another project's server lived meanwhile. A call with other arguments does not.
func TestLostCallJoinsAfterCrash(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		stranger bool
	}{{"at once", false}, {"after a stranger looked", true}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			in := install(t, anyAnswer)
			p := in.project(t, "project", testdata(t, "deploy"))
			s := p.serve(t, "--publish", "deploy")
			s.initialize()
			s.request("1", "tools/call", `{"name":"relavium_deploy","arguments":{"version":"1"}}`)
			lost := s.gate(0)
			s.kill()
			if tt.stranger {
				other := in.project(t, "other", testdata(t, "ok")).serve(t, "--publish", "ok")
				other.initialize()
				pause(t, 6*time.Second) // it looks for dead processes at start and every 5 s
			}

			s = p.serve(t, "--publish", "deploy")
			s.initialize()
			again := s.request("1", "tools/call", `{"name":"relavium_deploy","arguments":{"version":"1"}}`)
			if id := s.gate(0); id != lost {
				t.Fatalf("the repeated call waits for run %s, want the lost call's %s", id, lost)
			}
			s.request("2", "tools/call", `{"name":"relavium_deploy","arguments":{"version":"2"}}`)
			if id := s.gate(1); id == lost {
				t.Error("a call with other arguments joined the lost call's run")
			}
			p.approve(t, lost)
			var got struct {
				Meta map[string]any `json:"_meta"`
			}
			decode(t, s.wait(again).Result, &got)
			if got.Meta["relavium/joined"] != true || got.Meta["relavium/runId"] != lost {
				t.Errorf("_meta of the repeated call = %v, want joined to %s", got.Meta, lost)
			}
			if n := len(p.runs(t)); n != 2 {
				t.Errorf("%d runs in the store, want 2", n)
			}
		})
	}
}
