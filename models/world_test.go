package models_test

import (
	"context"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/relavium/relavium-serve/engine/agent"
	"github.com/relavium/relavium-serve/integration/fakemodel"
	"github.com/relavium/relavium-serve/models"
)

// A voice is one wire under test: a provider of ours at an address of the fake.
type voice struct {
	name     string // of the fake's provider
	provider string // ours
	model    string
}

var voices = []voice{
	{"anthropic", models.Anthropic, "claude-sonnet-5-5"},
	{"openai", models.OpenAI, "gpt-5.2"},
	{"deepseek", models.DeepSeek, "deepseek-flash"},
	{"gemini", models.Gemini, "gemini-3.8-flash"},
	{"local", models.OpenAI, "qwen3:8b"},
	{"responses", models.OpenAI, "gpt-6.1-sol"},
}

// each runs a test for every wire.
func each(t *testing.T, run func(t *testing.T, v voice)) {
	t.Helper()
	for _, v := range voices {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			run(t, v)
		})
	}
}

// A world is a fake with models that reach it.
type world struct {
	fake   *fakemodel.Server
	url    string
	models *models.Models
}

var _ agent.Models = (*models.Models)(nil)

const testKey = "key-of-the-test-1234"

func (v voice) world(t *testing.T, fake fakemodel.Options, tune ...func(*models.Options)) *world {
	t.Helper()
	w := &world{fake: fakemodel.New(fake)}
	srv := httptest.NewServer(w.fake)
	w.url = srv.URL
	opt := models.Options{
		Providers: map[string]models.Provider{v.provider: {BaseURL: fakemodel.URL(srv.URL, v.name), AllowLocalEndpoint: true}},
		Key:       func(context.Context, string) (string, error) { return testKey, nil },
	}
	for _, f := range tune {
		f(&opt)
	}
	m, err := models.New(opt)
	if err != nil {
		t.Fatal(err)
	}
	w.models = m
	t.Cleanup(func() {
		m.CloseIdle()
		srv.CloseClientConnections()
		srv.Close()
	})
	return w
}

// script is a fake that answers with these turns.
func script(turns ...fakemodel.Turn) fakemodel.Options {
	return fakemodel.Options{Script: fakemodel.Script{Conversations: []fakemodel.Conversation{{Turns: turns}}}}
}

func (v voice) request(prompt string) *agent.Request {
	return &agent.Request{
		Provider: v.provider, Model: v.model, System: "You are terse.",
		Messages: []agent.Message{{Role: agent.User, Parts: []agent.Part{{Text: prompt}}}},
	}
}

// deltas collects what was streamed.
type deltas struct{ text, reasoning string }

func (d *deltas) add(x agent.Delta) { d.text += x.Text; d.reasoning += x.Reasoning }

func text(t *agent.Turn) string {
	s := ""
	for _, p := range t.Parts {
		s += p.Text
	}
	return s
}

func calls(t *agent.Turn) []*agent.Call {
	var out []*agent.Call
	for _, p := range t.Parts {
		if p.Call != nil {
			out = append(out, p.Call)
		}
	}
	return out
}

// failed is the error of a turn that must fail.
func failed(t *testing.T, w *world, req *agent.Request) *agent.ModelError {
	t.Helper()
	turn, err := w.models.Turn(t.Context(), req, nil)
	e, ok := err.(*agent.ModelError) //nolint:errorlint // the interface promises it as it is
	if !ok {
		t.Fatalf("Turn = %+v, %v, want a *ModelError", turn, err)
	}
	return e
}

func await(t *testing.T, w *world, ok func([]fakemodel.Entry) bool) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := w.fake.Wait(ctx, ok); err != nil {
		t.Fatalf("the fake's journal: %v: %+v", err, w.fake.Entries())
	}
}
