package engine_test

import (
	"errors"
	"io"
	"testing"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/workflows"
)

const pureFragment = `
  nodes:
    - {id: in, type: input}
    - {id: join, type: merge, merge_strategy: concat}
    - {id: out, type: output}
  edges: [{from: in, to: join}, {from: join, to: out}]
`

const transformFragment = `
  inputs: [{name: bird, type: string}]
  nodes:
    - {id: in, type: input}
    - {id: shout, type: transform, transform: 'inputs.bird + "!"'}
    - {id: out, type: output}
  edges: [{from: in, to: shout}, {from: shout, to: out}]
`

func BenchmarkRun(b *testing.B) {
	for name, fragment := range map[string]string{"pure": pureFragment, "transform": transformFragment} {
		b.Run(name, func(b *testing.B) { benchRuns(b, fragment) })
	}
}

func benchRuns(b *testing.B, fragment string) {
	b.Helper()
	e, err := engine.Open(b.Context(), engine.Options{
		Path: b.TempDir() + "/serve.db", Executor: true, Projects: []string{project}, Agent: agentFunc(echo), Logger: discard(),
	})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = e.Close(b.Context()) }()
	w, _, err := workflows.Parse("b.relavium.yaml", []byte("schema_version: '1.0'\nworkflow:\n  id: bench\n"+fragment), workflows.Options{})
	if err != nil {
		b.Fatal(err)
	}
	args, err := w.ResolveInputs(nil)
	if len(w.Inputs) > 0 {
		args, err = w.ResolveInputs([]byte(`{"bird":"tern"}`))
	}
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			started, err := e.Start(b.Context(), engine.StartRequest{
				Workflow: w, Project: engine.Project{Key: project, Root: "/"}, Principal: engine.Local, Arguments: args, Source: "mcp",
			})
			if err != nil {
				b.Error(err)
				return
			}
			a, err := e.Attach(b.Context(), started.Run, engine.Local)
			if err != nil {
				b.Error(err)
				return
			}
			for !errors.Is(err, io.EOF) {
				if _, err = a.Next(b.Context()); err != nil && !errors.Is(err, io.EOF) {
					b.Error(err)
					return
				}
			}
		}
	})
}
