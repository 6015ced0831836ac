package main

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/relavium/relavium-serve/engine"
	"github.com/relavium/relavium-serve/gates/console"
	"github.com/relavium/relavium-serve/publish"
	"github.com/relavium/relavium-serve/publish/access"
	"github.com/relavium/relavium-serve/workflows"
)

// tokens is where the static tokens are kept: in the home, or in the database, which
// is then open or being opened.
func (at *site) tokens() access.Store {
	if at.shared != nil {
		return access.Shared{Content: document{at, "tokens"}}
	}
	return &access.File{Home: at.home}
}

// access tells callers apart. Without authentication it knows the static tokens,
// which open the console.
func (at *site) access(e *entrance) (*access.Access, error) {
	opt := access.Options{Mode: access.ModeToken, Logger: at.log, Tokens: at.tokens(), BehindProxy: e.behindProxy}
	if e.auth == authOAuth {
		opt.Mode = access.ModeOAuth
		opt.Resource = e.public.String() + "/mcp"
		if at.Auth.Issuer == nil || *at.Auth.Issuer == "" {
			return nil, invalid("set [auth] issuer in config.toml to the URL of the authorization server", "--auth oauth: no issuer is set")
		}
		opt.Issuer, opt.TokenTypes = *at.Auth.Issuer, at.Auth.TokenTypes
		if audience := at.Auth.Audience; audience != nil {
			if *audience == "" {
				return nil, invalid("leave it out to mean "+opt.Resource, "[auth] audience: it is empty, and a token for anybody would do")
			}
			opt.Audience = *audience
		}
		if at.Auth.JWKSURL != nil {
			opt.JWKSURL = *at.Auth.JWKSURL
		}
		opt.AllowLocal = at.Auth.AllowLocalEndpoint != nil && *at.Auth.AllowLocalEndpoint
	}
	a, err := access.New(opt)
	if err != nil {
		return nil, &fault{code: exitFault, err: fmt.Errorf("[auth]: %w", err)}
	}
	return a, nil
}

// limits are [serve.limits].
func (at *site) limits() access.Limits {
	l := at.Serve.Limits
	most := access.Limits{PerMinute: int(*l.CallsPerMinute), Concurrent: int(*l.Concurrent), Runs: int(*l.Runs)}
	if l.CostPerDayMicrocents != nil {
		most.CostPerDay = *l.CostPerDayMicrocents
	}
	return most
}

// decidable refuses a workflow with approver_not_requester whose gates nobody
// could decide but the requester, or the clock.
func (at *site) decidable(w *workflows.Workflow, e *entrance) error {
	key := "serve.workflow." + w.ID + ".approver_not_requester"
	if strict := at.Serve.Workflow[w.ID].ApproverNotRequester; strict == nil || !*strict {
		return nil
	}
	var gates []workflows.GateNode
	for i := range w.Nodes {
		if gate, ok := w.Nodes[i].Spec.(workflows.GateNode); ok {
			gates = append(gates, gate)
		}
	}
	switch accept := at.accept(w.ID); {
	case len(gates) == 0:
		return nil
	case !e.known():
		return invalid("take "+w.ID+" off the publish list, or unset "+key,
			"workflow %q: without authentication every call and every decision is of one principal, so with approver_not_requester nobody could decide its gates", w.ID)
	case slices.ContainsFunc(gates, func(g workflows.GateNode) bool { return g.TimeoutAction == "approve" }):
		return invalid("set its timeout_action to reject, or unset "+key,
			"workflow %q: a gate is approved by its time-out, and with approver_not_requester somebody else has to approve it", w.ID)
	case !slices.Contains(accept, engine.ViaConsole) && !slices.Contains(accept, engine.ViaCLI) && !slices.Contains(accept, engine.ViaCLINonInteractive):
		return invalid("add \"console\" or \"cli\" to [gates] accept, or unset "+key,
			"workflow %q: with approver_not_requester the requester's own client decides nothing, and [gates] accept lists no other way", w.ID)
	}
	return nil
}

// priced refuses to let strangers spend what a budget could not count.
func (at *site) priced(w *workflows.Workflow, e *entrance) error {
	if !e.known() || w.Budget == nil || w.Budget.MaxCostMicrocents <= 0 || w.Budget.OnExceed == "warn" {
		return nil
	}
	known := at.pricer()
	for _, use := range w.Models() {
		if !known(use.Provider, use.Model) {
			return invalid("give it one in config.toml of RELAVIUM_HOME, in micro-cents per million tokens:\n[prices."+strconv.Quote(use.Model)+"]\ninput = 0\noutput = 0",
				"workflow %q: its budget does not count the model %q of the agent %q, which has no price", w.ID, use.Model, use.Agent)
		}
	}
	return nil
}

// surroundings are what the configuration says about servers and providers.
func (at *site) surroundings() publish.Surroundings {
	return publish.Surroundings{
		Server: func(name string) (workflows.ServerRef, bool) {
			for i := range at.Servers {
				if s := &at.Servers[i]; s.Name == name {
					return workflows.ServerRef{
						ID: s.Name, Transport: s.Transport, Command: s.Command, URL: s.URL, AllowLocalEndpoint: s.AllowLocalEndpoint,
					}, true
				}
			}
			return workflows.ServerRef{}, false
		},
		Local: func(provider string) (string, bool) {
			known := map[string]*providerSettings{
				"anthropic": &at.Providers.Anthropic, "openai": &at.Providers.OpenAI,
				"gemini": &at.Providers.Gemini, "deepseek": &at.Providers.DeepSeek,
			}
			set := known[provider]
			if set == nil || set.AllowLocalEndpoint == nil || !*set.AllowLocalEndpoint {
				return "", false
			}
			if set.BaseURL == nil {
				return "provider " + provider, true
			}
			u, err := url.Parse(*set.BaseURL)
			if err != nil {
				return "provider " + provider, true
			}
			return u.Host, true
		},
	}
}

// confirmedReach refuses to let strangers start what the operator did not say they
// may.
func (at *site) confirmedReach(w *workflows.Workflow, e *entrance) error {
	touches := publish.Touches(w, at.surroundings())
	kinds := publish.Kinds(touches)
	at.log.Info("reach", "workflow", w.ID, "reach", strings.Join(kinds, ", "))
	if !e.strangers() {
		return nil
	}
	confirmed := at.Serve.Workflow[w.ID].Reach
	if subset(kinds, confirmed) {
		return nil
	}
	var lines []string
	for _, t := range touches {
		if slices.Contains(confirmed, t.Kind) {
			continue
		}
		line := "  " + t.Kind + ": "
		if t.Node != "" {
			line += "node " + t.Node + ", "
		}
		if t.Agent != "" {
			line += "agent " + t.Agent + ", "
		}
		lines = append(lines, line+t.What)
	}
	quoted := make([]string, len(kinds))
	for i, kind := range kinds {
		quoted[i] = `"` + kind + `"`
	}
	return invalid(fmt.Sprintf("if they may, put this into config.toml of RELAVIUM_HOME:\n[serve.workflow.%s]\nreach = [%s]", dotted([]string{w.ID}), strings.Join(quoted, ", ")),
		"workflow %q: callers that are strangers would reach what is not confirmed:\n%s", w.ID, strings.Join(lines, "\n"))
}

// doors are the ways into a console.
func (at *site) doors(who *access.Access, onLoopback bool) console.Login {
	d := doors{tokens: who}
	if onLoopback {
		d.start = console.StartToken{Home: at.home}
	}
	return d
}

// doors let in whoever has the start token, where it is taken, or a static token
// that allows gates or operations.
type doors struct {
	start  console.Login // nil where the start token is not taken
	tokens *access.Access
}

// Admit tells who the secret belongs to.
func (d doors) Admit(ctx context.Context, secret string) (*console.Visitor, bool) {
	if d.start != nil {
		if v, ok := d.start.Admit(ctx, secret); ok {
			return v, true
		}
	}
	i, err := d.tokens.Static(ctx, secret)
	if err != nil || i == nil || !i.Scopes.AnyGate() && !i.Scopes.Ops() {
		return nil, false
	}
	return &console.Visitor{
		Principal: i.Principal,
		Gates:     i.Scopes.Gate,
		Runs:      i.Scopes.Ops(),
		Live:      func(ctx context.Context) bool { return d.tokens.Live(ctx, i) },
	}, true
}
