package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	anthropic "github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/engine/agent"
	"github.com/relavium/relavium-serve/integration/fakemodel"
	"github.com/relavium/relavium-serve/models"
	"github.com/relavium/relavium-serve/workflows"
)

// What the fake provider is asked for.
const (
	turnsOfAgent = 20   // model turns of one conversation, all but the last with a tool call
	streams      = 64   // conversations that stream together
	tokens       = 1000 // that each of them streams
	tokenRate    = 200  // a second
	systemText   = "You keep notes."
	modelName    = "claude-sonnet-4-5"
)

// fakeScript is a conversation with tools, and a long answer.
func fakeScript() fakemodel.Script {
	talk := fakemodel.Conversation{User: "talk"}
	for i := range turnsOfAgent - 1 {
		talk.Turns = append(talk.Turns, fakemodel.Turn{
			Text: "I note that.", Calls: []fakemodel.Call{{Name: "note", Arguments: json.RawMessage(fmt.Sprintf(`{"line":"note %d"}`, i))}},
		})
	}
	talk.Turns = append(talk.Turns, fakemodel.Turn{Text: "All is noted."})
	return fakemodel.Script{Conversations: []fakemodel.Conversation{
		talk, {User: "stream", Turns: []fakemodel.Turn{{Tokens: tokens, Rate: tokenRate}}},
	}}
}

// provide is the fake provider, in a process of its own until its standard input
// ends; its address is its first line.
func provide(ctx context.Context, in io.Reader, out io.Writer) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &http.Server{Handler: fakemodel.New(fakemodel.Options{Script: fakeScript()}), ReadHeaderTimeout: 10 * time.Second}
	go func() { // it ends with the process
		_, _ = io.Copy(io.Discard, in)
		_ = s.Close()
	}()
	if _, err := fmt.Fprintf(out, "http://%s\n", l.Addr()); err != nil {
		return err
	}
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// provider starts the fake provider; stop ends it.
func provider(ctx context.Context) (url string, stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-fake") //nolint:gosec // ourselves
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop = func() error { return errors.Join(in.Close(), cmd.Wait()) }
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", nil, errors.Join(err, stop())
	}
	return strings.TrimSpace(line), stop, nil
}

// A sdk converses by the provider's own SDK and nothing else.
type sdk struct{ service anthropic.MessageService }

func newSDK(url string) *sdk {
	return &sdk{anthropic.NewMessageService(
		option.WithBaseURL(fakemodel.URL(url, "anthropic")+"/"), option.WithHeader("X-Api-Key", "key"), option.WithMaxRetries(0),
		option.WithHTTPClient(&http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: streams}}),
	)}
}

// turn streams one turn; told is called for each piece of text.
func (s *sdk) turn(ctx context.Context, messages []anthropic.MessageParam, told func()) (anthropic.Message, error) {
	stream := s.service.NewStreaming(ctx, anthropic.MessageNewParams{
		Model: modelName, MaxTokens: 4096, System: []anthropic.TextBlockParam{{Text: systemText}}, Messages: messages,
		Tools: []anthropic.ToolUnionParam{{OfTool: &anthropic.ToolParam{
			Name: "note", Description: anthropic.String("Notes a line."),
			InputSchema: anthropic.ToolInputSchemaParam{Properties: map[string]any{"line": map[string]any{"type": "string"}}},
		}}},
	})
	var m anthropic.Message
	for stream.Next() {
		ev := stream.Current()
		if err := m.Accumulate(ev); err != nil {
			return m, errors.Join(err, stream.Close())
		}
		if ev.Type == "content_block_delta" {
			told()
		}
	}
	return m, errors.Join(stream.Err(), stream.Close())
}

// converse is a whole conversation.
func (s *sdk) converse(ctx context.Context, prompt string, told func()) error {
	messages := []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(prompt))}
	for {
		m, err := s.turn(ctx, messages, told)
		if err != nil {
			return err
		}
		messages = append(messages, m.ToParam())
		var results []anthropic.ContentBlockParamUnion
		for i := range m.Content {
			if m.Content[i].Type == "tool_use" {
				results = append(results, anthropic.NewToolResultBlock(m.Content[i].ID, "ok", false))
			}
		}
		if len(results) == 0 {
			return nil
		}
		messages = append(messages, anthropic.NewUserMessage(results...))
	}
}

// notes is a host of one tool that costs nothing.
type notes struct{}

func (notes) Tools(string, *workflows.Agent) []workflows.Tool {
	return []workflows.Tool{{
		ID: "note", Name: "note", Description: "Notes a line.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{"line":{"type":"string"}}}`),
	}}
}

func (notes) Check(context.Context, *workflows.ToolCall) (workflows.Admission, error) {
	return workflows.Admission{Repeatable: true}, nil
}

func (notes) Call(context.Context, *workflows.ToolCall) (workflows.ToolResult, error) {
	return workflows.ToolResult{Text: "ok"}, nil
}

// agents is an engine whose agents ask the fake provider.
type agents struct {
	e *engine.Engine
	w map[string]*workflows.Workflow // by prompt
}

func newAgents(ctx context.Context, dir, url string) (*agents, error) {
	m, err := models.New(models.Options{
		Providers: map[string]models.Provider{"anthropic": {BaseURL: fakemodel.URL(url, "anthropic"), AllowLocalEndpoint: true}},
		Key:       func(context.Context, string) (string, error) { return "key", nil },
	})
	if err != nil {
		return nil, err
	}
	a := &agents{w: map[string]*workflows.Workflow{}}
	for _, prompt := range []string{"talk", "stream"} {
		a.w[prompt], _, err = workflows.Parse("bench.relavium.yaml", []byte(`schema_version: '1.0'
workflow:
  id: bench
  agents: [{id: a, provider: anthropic, model: `+modelName+`, system_prompt: `+systemText+`, tools: [note], max_tokens: 4096}]
  nodes:
    - {id: in, type: input}
    - {id: n, type: agent, agent_ref: a, prompt_template: `+prompt+`}
    - {id: out, type: output}
  edges: [{from: in, to: n}, {from: n, to: out}]
`), workflows.Options{})
		if err != nil {
			return nil, err
		}
	}
	a.e, err = engine.Open(ctx, engine.Options{
		Path: filepath.Join(dir, "serve.db"), Executor: true, Projects: []string{project}, Logger: quiet(),
		Agent: agent.New(agent.Options{Models: m, Builtin: notes{}}),
	})
	return a, err
}

// converse is a run of the agent; told is called for each event of its tokens.
func (a *agents) converse(ctx context.Context, prompt string, told func()) error {
	at, err := begin(ctx, a.e, a.w[prompt])
	if err != nil {
		return err
	}
	for {
		ev, err := at.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return at.Detach(ctx, engine.DetachHandOver)
		case err != nil:
			return errors.Join(err, at.Detach(ctx, engine.DetachHandOver))
		case ev.Type == engine.AgentToken:
			told()
		case ev.Type == engine.RunFailed:
			return errors.Join(ev.Error, at.Detach(ctx, engine.DetachHandOver))
		}
	}
}

// An agentCost is what agents cost beside the SDK alone.
type agentCost struct {
	added        float64 // ms for each model turn
	raw          float64 // ms for each model turn by the SDK alone
	late, lateBy float64 // ms that the last token of a stream comes after it is due, p99: ours, the SDK's
	kb, kbBy     float64 // memory of a streaming run: ours, the SDK's
	busy         float64 // percent of a core for each streaming run: ours
	busyBy       float64 // the SDK's
}

// agents measures the agent loop against the bare SDK, both asking the same fake.
func (b *bench) agents(ctx context.Context, dir string) (c agentCost, err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return c, err
	}
	url, stop, err := provider(ctx)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	raw := newSDK(url)
	ours, err := newAgents(ctx, dir, url)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, ours.e.Close(context.WithoutCancel(ctx))) }()
	var by [2][]time.Duration
	ways := []func(context.Context, string, func()) error{raw.converse, ours.converse}
	for i := range 3 + 20*b.rounds { // in turn, so that both meet the same noise
		for j, converse := range ways {
			began := time.Now()
			if err := converse(ctx, "talk", func() {}); err != nil {
				return c, err
			}
			if i >= 3 {
				by[j] = append(by[j], time.Since(began))
			}
		}
	}
	for j := range by {
		slices.Sort(by[j])
	}
	c.raw = ms(by[0][len(by[0])/2]) / turnsOfAgent
	c.added = ms(by[1][len(by[1])/2])/turnsOfAgent - c.raw
	if c.lateBy, c.busyBy, c.kbBy, err = together(ctx, raw.converse); err != nil {
		return c, err
	}
	c.late, c.busy, c.kb, err = together(ctx, ours.converse)
	return c, err
}

// together streams many conversations at once: how late the last token of each comes,
// and what a conversation costs this process meanwhile.
func together(ctx context.Context, converse func(context.Context, string, func()) error) (late, percent, kb float64, err error) {
	const due = tokens * time.Second / tokenRate
	lates := make([]time.Duration, streams)
	failed := make(chan error, streams)
	before, spent := inUse(), busy(os.Getpid())
	began := time.Now()
	var work sync.WaitGroup
	for i := range streams {
		work.Go(func() {
			asked, last := time.Now(), time.Now()
			if err := converse(ctx, "stream", func() { last = time.Now() }); err != nil {
				failed <- err
				return
			}
			lates[i] = last.Sub(asked) - due
		})
	}
	if err := pause(ctx, due*3/4); err != nil {
		return 0, 0, 0, err
	}
	during := inUse()
	work.Wait()
	percent = 100 * (busy(os.Getpid()) - spent).Seconds() / time.Since(began).Seconds() / streams
	select {
	case err := <-failed:
		return 0, 0, 0, err
	default:
	}
	slices.Sort(lates)
	return ms(lates[len(lates)*99/100]), percent, (during - before) / streams, nil
}

// inUse is the memory that this process holds for what it does, in kB.
func inUse() float64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc+m.StackInuse) / 1000
}
