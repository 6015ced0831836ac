package models_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/relavium/relavium-serve/engine/agent"
	"github.com/relavium/relavium-serve/models"
)

func TestPrice(t *testing.T) {
	t.Parallel()
	m, err := models.New(models.Options{
		Key:    func(context.Context, string) (string, error) { return "", nil },
		Prices: map[string]agent.Price{"gpt-5.2": {Input: 1}, "our-model": {Output: 2}},
	})
	if err != nil {
		t.Fatal(err)
	}
	haiku := agent.Price{Input: 100_000_000, Output: 500_000_000, CacheRead: 10_000_000, CacheWrite: 125_000_000}
	for _, tt := range []struct {
		provider, model string
		want            agent.Price
		ok              bool
	}{
		{"anthropic", "claude-haiku-4-5", haiku, true},
		{"anthropic", "claude-haiku-4-5-20251001", haiku, true},
		{"openai", "claude-haiku-4-5", agent.Price{}, false}, // another's model
		{"openai", "gpt-5.2", agent.Price{Input: 1}, true},   // configured
		{"openai", "gpt-5.2-2025-12-11", agent.Price{Input: 1}, true},
		{"openai", "gpt-5.2-pro", agent.Price{}, false}, // it only resembles one
		{"openai", "our-model", agent.Price{Output: 2}, true},
		{"gemini", "models/gemini-2.5-pro", agent.Price{Input: 125_000_000, Output: 1_000_000_000, CacheRead: 12_500_000, CacheWrite: 125_000_000}, true},
		{"deepseek", "deepseek-v4-pro", agent.Price{Input: 132_000_000, Output: 396_000_000, CacheRead: 4_400_000, CacheWrite: 132_000_000}, true},
		{"openai", "llama3", agent.Price{}, false},
		{"openai", "", agent.Price{}, false},
	} {
		if got, ok := m.Price(tt.provider, tt.model); got != tt.want || ok != tt.ok {
			t.Errorf("Price(%q, %q) = %+v, %v, want %+v, %v", tt.provider, tt.model, got, ok, tt.want, tt.ok)
		}
	}
	for _, p := range models.Names() {
		for _, id := range models.Known(p) {
			price, ok := m.Price(p, id)
			if ok && (price.Input <= 0 || price.Output < price.Input) && id != "gpt-5.2" {
				t.Errorf("Price(%q, %q) = %+v, want output to cost more than input", p, id, price)
			}
			if price.CacheRead > price.Input {
				t.Errorf("Price(%q, %q) = %+v, want a cache read to cost less than input", p, id, price)
			}
		}
	}
}

func TestNear(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		provider, model string
		first           string // "" for none
	}{
		{"anthropic", "claude-sonet-5-5", "claude-sonnet-5-5"},
		{"anthropic", "claude-sonnet-5-5", ""},
		{"anthropic", "claude-haiku-4-5-20251001", ""},
		{"openai", "gpt5.2", "gpt-5.2"},
		{"openai", "llama3", ""},
		{"openai", strings.Repeat("x", 1<<20), ""},
		{"nobody", "x", ""},
	} {
		got := models.Near(tt.provider, tt.model)
		first := ""
		if len(got) > 0 {
			first = got[0]
		}
		if first != tt.first || len(got) > 3 {
			t.Errorf("Near(%q, %.20q) = %q, want %q first", tt.provider, tt.model, got, tt.first)
		}
	}
	if diff := cmp.Diff([]string{"anthropic", "deepseek", "gemini", "openai"}, models.Names()); diff != "" {
		t.Errorf("Names (-want +got):\n%s", diff)
	}
}
