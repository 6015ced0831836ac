package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/durable/durabletest"
)

// agents is the shorthand of the format cases for one inline agent.
const agents = `agents: [{id: wader, provider: anthropic, model: m-1, system_prompt: 'Be brief.'}]`

// TestFormatCases runs the behaviour half of the format cases; numbers are theirs.
func TestFormatCases(t *testing.T) {
	t.Parallel()
	e := open(t, durabletest.Place(t, t.TempDir()), nil)
	for _, c := range []struct {
		name, fragment, args string
		outputs              string // of a completed run
		failure              string // "code node" of a failed one
		events               []string
		never                []string
	}{
		{
			name: "11 a secret in an expression is only a mask", args: `{}`, fragment: `
				inputs: [{name: pin, type: secret}]
				nodes: [{id: in, type: input}, {id: peek, type: transform, transform: 'inputs.pin'}, {id: out, type: output}]
				edges: [{from: in, to: peek}, {from: peek, to: out}]`,
			outputs: `{"out":{"secret":true,"ref":"env:RELAVIUM_INPUT_HERON_CASE_PIN"}}`,
		},
		{
			name: "12 missing value with default", fragment: agents + `
				nodes:
				  - {id: in, type: input}
				  - {id: say, type: agent, agent_ref: wader, prompt_template: 'Note: {{ run.outputs["ghost"].text | default("none") }}'}
				  - {id: out, type: output}
				edges: [{from: in, to: say}, {from: say, to: out}]`,
			outputs: `{"out":"Note: none"}`,
		},
		{
			name: "12 missing value without default fails once", fragment: agents + `
				nodes:
				  - {id: in, type: input}
				  - {id: say, type: agent, agent_ref: wader, prompt_template: 'Note: {{ run.outputs["ghost"].text }}', retry: {max: 3, backoff: linear}}
				edges: [{from: in, to: say}]`,
			failure: "validation say", never: []string{"node:retrying say"},
		},
		{
			name: "13 run.id outside save_to", fragment: agents + `
				nodes: [{id: in, type: input}, {id: say, type: agent, agent_ref: wader, prompt_template: 'id {{ run.id }}'}]
				edges: [{from: in, to: say}]`,
			failure: "validation say",
		},
		{
			name: "a prompt of white space says nothing", fragment: agents + `
				nodes: [{id: in, type: input}, {id: say, type: agent, agent_ref: wader, prompt_template: ' {{ run.outputs["ghost"] | default(" ") }} '}]
				edges: [{from: in, to: say}]`,
			failure: "validation say",
		},
		{
			name: "14 expressions are never templated", fragment: `
				nodes: [{id: in, type: input}, {id: t, type: transform, transform: '"{{inputs.bird}}"'}, {id: out, type: output}]
				edges: [{from: in, to: t}, {from: t, to: out}]`,
			outputs: `{"out":"{{inputs.bird}}"}`,
		},
		{
			name: "15 json and length filters", fragment: agents + `
				nodes:
				  - {id: in, type: input}
				  - {id: mk, type: transform, transform: '({z: 1, a: "<&>", kinds: ["x","y"]})'}
				  - {id: say, type: agent, agent_ref: wader, prompt_template: '{{ run.outputs["mk"] | json }} / {{ run.outputs["mk"].kinds | length }}'}
				  - {id: out, type: output}
				edges: [{from: in, to: mk}, {from: mk, to: say}, {from: say, to: out}]`,
			outputs: `{"out":"{\"z\":1,\"a\":\"<&>\",\"kinds\":[\"x\",\"y\"]} / 2"}`,
		},
		{
			name: "16 strict branch identity", fragment: `
				nodes:
				  - {id: in, type: input}
				  - {id: c, type: condition, expression: '1', branches: [{when: true, target_node: p}, {when: '1', target_node: q}], default: r}
				  - {id: p, type: output}
				  - {id: q, type: output}
				  - {id: r, type: output}
				edges: [{from: in, to: c}]`,
			outputs: `{"r":1}`, events: []string{"node:skipped p branch_not_taken", "node:skipped q branch_not_taken"},
		},
		{
			name: "17 no match, no default", fragment: `
				nodes: [{id: in, type: input}, {id: c, type: condition, expression: '"teal"', branches: [{when: mallard, target_node: p}]}, {id: p, type: output}]
				edges: [{from: in, to: c}]`,
			failure: "validation c", never: []string{"node:started p"},
		},
		{
			name: "17 a result that cannot route", fragment: `
				nodes: [{id: in, type: input}, {id: c, type: condition, expression: '({})', branches: [{when: mallard, target_node: p}]}, {id: p, type: output}]
				edges: [{from: in, to: c}]`,
			failure: "sandbox_error c",
		},
		{
			name: "18 routes by target_node alone", fragment: `
				nodes:
				  - {id: in, type: input}
				  - {id: c, type: condition, expression: '7', branches: [{when: 7, target_node: p}, {when: urgent, target_node: q}]}
				  - {id: p, type: output}
				  - {id: q, type: output}
				edges: [{from: in, to: c}]`,
			outputs: `{"p":7}`,
		},
		{
			name: "20 object_merge", fragment: mergeOf("object_merge", ""), outputs: `{"out":{"k":2,"only":"a"}}`,
		},
		{name: "20 first", fragment: mergeOf("first", ""), outputs: `{"out":{"k":1,"only":"a"}}`},
		{name: "20 concat", fragment: mergeOf("concat", ""), outputs: `{"out":[{"k":1,"only":"a"},{"k":2}]}`},
		{
			name:     "20 custom",
			fragment: mergeOf("custom", `{ n: branches.length, last: branches[1].k, byId: run.outputs["a"].k }`),
			outputs:  `{"out":{"n":2,"last":2,"byId":1}}`,
		},
		{
			name: "21 skipped branches count as settled", fragment: `
				nodes:
				  - {id: in, type: input}
				  - {id: split, type: parallel, parallel_of: [left, gatekeeper]}
				  - {id: left, type: transform, transform: '"left"'}
				  - {id: gatekeeper, type: condition, expression: 'true', branches: [{when: true, target_node: other}, {when: false, target_node: right}]}
				  - {id: other, type: transform, transform: '"other"'}
				  - {id: right, type: transform, transform: '"right"'}
				  - {id: join, type: merge, merge_strategy: concat}
				  - {id: out, type: output}
				edges: [{from: in, to: split}, {from: left, to: join}, {from: right, to: join}, {from: join, to: out}]`,
			outputs: `{"out":["left"]}`, events: []string{"node:skipped right branch_not_taken"},
		},
		{
			name: "22 all branches skipped", fragment: `
				nodes:
				  - {id: in, type: input}
				  - {id: c, type: condition, expression: 'true', branches: [{when: true, target_node: done}, {when: false, target_node: l}]}
				  - {id: done, type: output}
				  - {id: l, type: transform, transform: '1'}
				  - {id: r, type: transform, transform: '2'}
				  - {id: join, type: merge, merge_strategy: concat}
				  - {id: out, type: output}
				edges: [{from: in, to: c}, {from: l, to: r}, {from: l, to: join}, {from: r, to: join}, {from: join, to: out}]`,
			outputs: `{"done":true}`, events: []string{"node:skipped join upstream_unreachable", "node:skipped out upstream_unreachable"},
		},
		{
			name: "23 rejoin without the optional gate", fragment: rejoin(false), outputs: `{"out":"D=n/a"}`,
			events: []string{"node:skipped approve-it branch_not_taken"}, never: []string{"human_gate:paused approve-it"},
		},
		{
			name: "24 a data reference does not revive", fragment: `
				nodes:
				  - {id: in, type: input}
				  - {id: scan, type: transform, transform: '({total: 3})'}
				  - {id: check, type: condition, expression: 'false', branches: [{when: true, target_node: ask}, {when: false, target_node: out}]}
				  - {id: ask, type: human_gate, gate_type: approval, message_template: '{{ run.outputs["scan"].total }}'}
				  - {id: out, type: output}
				edges: [{from: in, to: scan}, {from: scan, to: check}]`,
			outputs: `{"out":false}`, events: []string{"node:skipped ask branch_not_taken"}, never: []string{"human_gate:paused ask"},
		},
		{
			name: "25 without an order an expression sees undefined, every time", fragment: owl("run.outputs[\"owl\"] === \"ready\"", ""),
			outputs: `{"no":false}`,
		},
		{
			name: "25 and dereferencing it throws", fragment: owl("run.outputs[\"owl\"].length > 0", ""),
			failure: "sandbox_error c",
		},
		{
			name: "25 with an order it is right", fragment: owl("run.outputs[\"owl\"].length > 0", ", {from: owl, to: c}"),
			outputs: `{"yes":true}`,
		},
		{
			name: "26 edge conditions use truthiness", fragment: `
				nodes:
				  - {id: in, type: input}
				  - {id: t, type: transform, transform: '({note: ""})'}
				  - {id: p, type: output}
				  - {id: q, type: output}
				edges:
				  - {from: in, to: t}
				  - {from: t, to: p, condition: 'run.outputs["t"].note'}
				  - {from: t, to: q, condition: '!run.outputs["t"].note'}`,
			outputs: `{"q":{"note":""}}`, events: []string{"node:skipped p upstream_unreachable"},
		},
		{
			name: "an edge condition that throws fails the run", fragment: `
				nodes: [{id: in, type: input}, {id: t, type: transform, transform: '1'}, {id: p, type: output}]
				edges: [{from: in, to: t}, {from: t, to: p, condition: 'nope.nope'}]`,
			failure: "sandbox_error t",
		},
		{
			name: "30 only a genuine time-out retries", fragment: `
				nodes:
				  - {id: in, type: input}
				  - {id: spin, type: transform, transform: '(() => { for(;;){} })()', retry: {max: 2, backoff: exponential, backoff_ms: 50}}
				edges: [{from: in, to: spin}]`,
			failure: "sandbox_error spin", events: []string{"node:retrying spin"},
		},
		{
			name: "30 an error that speaks of interruption does not", fragment: `
				nodes:
				  - {id: in, type: input}
				  - {id: spin, type: transform, transform: '(() => { throw new Error("interrupted") })()', retry: {max: 2, backoff: exponential, backoff_ms: 50}}
				edges: [{from: in, to: spin}]`,
			failure: "sandbox_error spin", never: []string{"node:retrying spin"},
		},
		{
			name: "several feeders of an output are keyed by id", fragment: `
				nodes:
				  - {id: in, type: input}
				  - {id: b, type: transform, transform: '1'}
				  - {id: a, type: transform, transform: '2'}
				  - {id: out, type: output}
				edges: [{from: in, to: b}, {from: in, to: a}, {from: b, to: out}, {from: a, to: out}]`,
			outputs: `{"out":{"a":2,"b":1}}`,
		},
		{
			name: "digits survive where no expression touched them", args: `{"n":9007199254740993}`, fragment: `
				inputs: [{name: n, type: number}, {name: d, type: number, default: 1.10}]
				nodes: [{id: in, type: input}, {id: out, type: output}]
				edges: [{from: in, to: out}]`,
			outputs: `{"out":{"n":9007199254740993,"d":1.10}}`,
		},
		{
			name: "save_to without media fails", fragment: `
				nodes: [{id: in, type: input}, {id: out, type: output, save_to: 'shots/{{ run.id }}/owl.png'}]
				edges: [{from: in, to: out}]`,
			failure: "validation out",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			args := c.args
			if args == "" {
				args = `{}`
			}
			events := finish(t, e, request(t, parse(t, c.fragment), args))
			end := last(events)
			switch {
			case c.failure != "":
				if end.Type != engine.RunFailed {
					t.Fatalf("ended %s with %s, want failure %s", end.Type, end.Outputs, c.failure)
				}
				if got := fmt.Sprintf("%s %s", end.Error.Code, end.Error.Node); got != c.failure {
					t.Errorf("failure = %q (%s), want %q", got, end.Error.Message, c.failure)
				}
			case end.Type != engine.RunCompleted:
				t.Fatalf("ended %s: %v", end.Type, end.Error)
			default:
				if diff := cmp.Diff(c.outputs, string(end.Outputs)); diff != "" {
					t.Errorf("outputs (-want +got):\n%s", diff)
				}
			}
			said := make([]string, len(events))
			for i, ev := range events {
				said[i] = strings.TrimSpace(ev.Type + " " + ev.Node + " " + ev.Reason)
			}
			for _, want := range c.events {
				if !slices.Contains(said, want) {
					t.Errorf("no event %q in %q", want, said)
				}
			}
			for _, never := range c.never {
				if slices.Contains(said, never) {
					t.Errorf("event %q was said", never)
				}
			}
			if n := slices.IndexFunc(events, func(ev engine.Event) bool { return ev.Terminal() }); n != len(events)-1 {
				t.Errorf("terminal event at %d of %d", n, len(events))
			}
		})
	}
}

func mergeOf(strategy, fn string) string {
	if fn != "" {
		fn = ", merge_fn: '" + fn + "'"
	}
	return `
		nodes:
		  - {id: in, type: input}
		  - {id: split, type: parallel, parallel_of: [a, b]}
		  - {id: b, type: transform, transform: '({k: 2})'}
		  - {id: a, type: transform, transform: '({k: 1, only: "a"})'}
		  - {id: join, type: merge, merge_strategy: ` + strategy + fn + `}
		  - {id: out, type: output}
		edges: [{from: in, to: split}, {from: a, to: join}, {from: b, to: join}, {from: join, to: out}]`
}

func rejoin(asks bool) string {
	return agents + `
		nodes:
		  - {id: in, type: input}
		  - {id: check, type: condition, expression: '` + fmt.Sprint(asks) + `', branches: [{when: true, target_node: approve-it}, {when: false, target_node: report}]}
		  - {id: approve-it, type: human_gate, gate_type: approval, message_template: 'ok?'}
		  - {id: report, type: agent, agent_ref: wader, prompt_template: 'D={{ run.outputs["approve-it"].decision | default("n/a") }}'}
		  - {id: out, type: output}
		edges: [{from: in, to: check}, {from: approve-it, to: report}, {from: report, to: out}]`
}

func owl(expression, edge string) string {
	return agents + `
		nodes:
		  - {id: in, type: input}
		  - {id: owl, type: agent, agent_ref: wader, prompt_template: ready}
		  - {id: c, type: condition, expression: '` + expression + `', branches: [{when: true, target_node: 'yes'}, {when: false, target_node: 'no'}]}
		  - {id: 'yes', type: output}
		  - {id: 'no', type: output}
		edges: [{from: in, to: owl}, {from: in, to: c}` + edge + `]`
}

// TestRejoinAfterGate is format case 23 with the gate: a rejection does not end the run.
func TestRejoinAfterGate(t *testing.T) {
	t.Parallel()
	for decision, want := range map[string]string{engine.Approved: `{"out":"D=approved"}`, engine.Rejected: `{"out":"D=rejected"}`} {
		t.Run(decision, func(t *testing.T) {
			t.Parallel()
			e := open(t, durabletest.Place(t, t.TempDir()), nil)
			run, gates := untilPaused(t, e, request(t, parse(t, rejoin(true)), `{}`))
			if _, err := e.Decide(t.Context(), gates[0], engine.Decision{Decision: decision, By: "local", Via: engine.ViaConsole}); err != nil {
				t.Fatal(err)
			}
			if got := string(last(follow(t, e, run)).Outputs); got != want {
				t.Errorf("outputs = %s, want %s", got, want)
			}
		})
	}
}

// untilPaused starts a run and returns it with its open gates once it waits.
func untilPaused(t *testing.T, e *engine.Engine, req engine.StartRequest) (run string, gates []string) {
	t.Helper()
	ev := until(t, e, req, engine.RunPaused)
	return ev.Run, ev.GateIDs
}

// untilAsked starts a run and returns it with its first gate once that is open, which a
// time-out may have decided by the time that the run would wait.
func untilAsked(t *testing.T, e *engine.Engine, req engine.StartRequest) (run, gate string) {
	t.Helper()
	ev := until(t, e, req, engine.GatePaused)
	return ev.Run, ev.Gate
}

// until starts a run and returns its first event of the type.
func until(t *testing.T, e *engine.Engine, req engine.StartRequest, what string) engine.Event {
	t.Helper()
	started, err := e.Start(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	a, err := e.Attach(t.Context(), started.Run, engine.Local)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for {
		ev, err := a.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if ev.Type == what {
			return ev
		}
	}
}

// TestTwoGates is format case 36 c: both gates wait together, each is decided alone.
func TestTwoGates(t *testing.T) {
	t.Parallel()
	e := open(t, durabletest.Place(t, t.TempDir()), nil)
	w := parse(t, `
		nodes:
		  - {id: in, type: input}
		  - {id: one, type: human_gate, gate_type: approval, message_template: 'one?'}
		  - {id: two, type: human_gate, gate_type: input, message_template: 'two?'}
		  - {id: join, type: transform, transform: '[run.outputs["one"].decision, run.outputs["two"].colour, run.outputs["two"].payload.colour]'}
		  - {id: out, type: output}
		edges: [{from: in, to: one}, {from: in, to: two}, {from: one, to: join}, {from: two, to: join}, {from: join, to: out}]`)
	run, gates := untilPaused(t, e, request(t, w, `{}`))
	if len(gates) != 2 {
		t.Fatalf("waiting gates = %v, want two", gates)
	}
	open, err := e.Gates(t.Context(), engine.GateFilter{Run: run, Open: true})
	if err != nil || len(open) != 2 {
		t.Fatalf("Gates = %v, %v, want two", open, err)
	}
	for _, g := range open {
		d := engine.Decision{Decision: engine.Approved, By: "local", Via: engine.ViaCLI}
		if g.Type == "input" {
			d.Decision, d.Payload = engine.InputProvided, []byte(`{"colour": "red", "decision": "mine"}`)
		}
		if _, err := e.Decide(t.Context(), g.ID, d); err != nil {
			t.Fatal(err)
		}
	}
	events := follow(t, e, run)
	if got, want := string(last(events).Outputs), `{"out":["approved","red","red"]}`; got != want {
		t.Errorf("outputs = %s, want %s", got, want)
	}
	for i, ev := range events {
		if ev.N != int64(i) {
			t.Errorf("event %d has number %d", i, ev.N)
		}
	}
}

// TestGateTimeout is format case 36 a and b.
func TestGateTimeout(t *testing.T) {
	t.Parallel()
	for action, want := range map[string]string{"approve": engine.RunCompleted, "reject": engine.RunFailed} {
		t.Run(action, func(t *testing.T) {
			t.Parallel()
			e := open(t, durabletest.Place(t, t.TempDir()), nil)
			w := parse(t, `
				nodes:
				  - {id: in, type: input}
				  - {id: ask, type: human_gate, gate_type: approval, timeout_ms: 50, timeout_action: `+action+`}
				  - {id: out, type: output}
				edges: [{from: in, to: ask}, {from: ask, to: out}]`)
			events := finish(t, e, request(t, w, `{}`))
			end := last(events)
			if end.Type != want {
				t.Fatalf("ended %s (%s), want %s", end.Type, brief(events), want)
			}
			if action == "reject" && end.Error.Code != engine.CodeRunTimeout {
				t.Errorf("code = %s, want run_timeout", end.Error.Code)
			}
			gates, err := e.Gates(t.Context(), engine.GateFilter{Run: end.Run})
			if err != nil || len(gates) != 1 || gates[0].DecidedBy != "timeout" || !gates[0].Decided.Equal(gates[0].Expires) {
				t.Errorf("gate = %+v, %v; want it decided by timeout at its expiry", gates, err)
			}
		})
	}
}

// TestRunDeadline ends a waiting run at its timeout_ms, the gate's own time unspent.
func TestRunDeadline(t *testing.T) {
	t.Parallel()
	e := open(t, durabletest.Place(t, t.TempDir()), nil)
	w := parse(t, `
		timeout_ms: 300
		nodes:
		  - {id: in, type: input}
		  - {id: ask, type: human_gate, gate_type: approval, timeout_ms: 60000, timeout_action: approve}
		  - {id: out, type: output}
		edges: [{from: in, to: ask}, {from: ask, to: out}]`)
	events := finish(t, e, request(t, w, `{}`))
	if got, want := brief(events[len(events)-2:]), "run:timeout, run:failed"; got != want {
		t.Errorf("last events = %s, want %s", brief(events), want)
	}
	if c := last(events).Error.Code; c != engine.CodeRunTimeout {
		t.Errorf("code = %s, want run_timeout", c)
	}
	for _, ev := range events {
		if ev.Type == engine.GatePaused && ev.Expires.Sub(ev.Time) > time.Second {
			t.Errorf("the gate shows %s left, want the run's deadline", ev.Expires.Sub(ev.Time))
		}
	}
}

// TestValuesThatHaveNoPortableForm: what settles can be read by everybody later.
func TestValuesThatHaveNoPortableForm(t *testing.T) {
	t.Parallel()
	e := open(t, durabletest.Place(t, t.TempDir()), nil)
	for expression, want := range map[string]string{
		`"\\ud800"`:                "",
		`"a\\udc00b"`:              "",
		`({"\\ud800": 1})`:         "",
		`5e-324`:                   `{"out":5e-324}`,
		`1.7976931348623157e308`:   `{"out":1.7976931348623157e+308}`,
		`"\\ud83d\\udc26"`:         `{"out":"🐦"}`,
		`({"__proto__x": [null]})`: `{"out":{"__proto__x":[null]}}`,
	} {
		w := parse(t, `
			nodes: [{id: in, type: input}, {id: t, type: transform, transform: "`+strings.ReplaceAll(expression, `"`, `\"`)+`"}, {id: out, type: output}]
			edges: [{from: in, to: t}, {from: t, to: out}]`)
		end := last(finish(t, e, request(t, w, `{}`)))
		switch {
		case want != "" && string(end.Outputs) != want:
			t.Errorf("%s ended %s with %s (%v), want %s", expression, end.Type, end.Outputs, end.Error, want)
		case want == "" && (end.Type != engine.RunFailed || end.Error.Code != engine.CodeSandboxError):
			t.Errorf("%s ended %s with %s, want sandbox_error", expression, end.Type, end.Outputs)
		}
	}
}
