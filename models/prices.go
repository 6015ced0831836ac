package models

import (
	"math"
	"slices"
	"strings"

	"github.com/relavium/relavium-serve/engine/agent"
)

// PricesOf is the day on which the table was last compared with the providers' price
// lists:
//
//   - platform.claude.com/docs/en/about-claude/pricing
//   - developers.openai.com/api/docs/pricing
//   - ai.google.dev/gemini-api/docs/pricing
//   - api-docs.deepseek.com/quick_start/pricing
//
// It holds standard prices of text, for a cache that lives five minutes (Anthropic)
// or thirty (OpenAI). Where a price is lower for a while after a launch or at some
// hours of the day, the other one stands here, so that an estimate is not too low. It
// does not know the surcharges on prompts over 100,000 to 272,000 tokens, on
// priority, or on regions. A model whose price could not be read there has none.
const PricesOf = "2026-11-30"

// A listed model is one of the catalog.
type listed struct {
	id    string
	price agent.Price
	known bool // the price is
}

// usd is a price in dollars per million tokens: input, output, cache read, cache write.
func usd(id string, in, out, read, write float64) listed {
	microcents := func(d float64) int64 { return int64(math.Round(d * 1e8)) }
	return listed{id: id, known: true, price: agent.Price{Input: microcents(in), Output: microcents(out), CacheRead: microcents(read), CacheWrite: microcents(write)}}
}

// catalog lists the models of a provider, the current first.
func catalog(provider string) []listed {
	switch provider {
	case Anthropic:
		return []listed{
			{id: "claude-fable-5-2"},
			{id: "claude-mythos-5-2"},
			usd("claude-opus-5-5", 4, 20, 0.2, 5),
			usd("claude-sonnet-5-5", 2, 10, 0.1, 2.5),
			usd("claude-haiku-5-5", 0.1, 0.5, 0.01, 0.125),
			usd("claude-fable-5-1", 10, 50, 0.25, 12.5),
			usd("claude-mythos-5-1", 10, 50, 0.25, 12.5),
			usd("claude-fable-5", 10, 50, 1, 12.5),
			usd("claude-mythos-5", 10, 50, 1, 12.5),
			usd("claude-opus-5", 5, 25, 0.5, 6.25),
			usd("claude-sonnet-5", 2, 10, 0.2, 2.5),
			usd("claude-opus-4-8", 5, 25, 0.5, 6.25),
			usd("claude-opus-4-7", 5, 25, 0.5, 6.25),
			usd("claude-opus-4-6", 5, 25, 0.5, 6.25),
			usd("claude-sonnet-4-6", 3, 15, 0.3, 3.75),
			usd("claude-opus-4-5", 5, 25, 0.5, 6.25),
			usd("claude-sonnet-4-5", 3, 15, 0.3, 3.75),
			usd("claude-haiku-4-5", 1, 5, 0.1, 1.25),
		}
	case OpenAI:
		return []listed{
			usd("gpt-6.2-astra", 8, 40, 0.4, 10),
			usd("gpt-6.2-sol", 2, 10, 0.1, 2.5),
			usd("gpt-6.1-sol", 2, 10, 0.1, 2.5),
			usd("gpt-6.1-terra", 1, 5, 0.05, 1.25),
			usd("gpt-6-astra", 10, 50, 1, 12.5),
			usd("gpt-6-sol", 2, 10, 0.2, 2.5),
			usd("gpt-6-luna", 0.1, 0.5, 0.01, 0.125),
			usd("gpt-5.6-sol", 4, 20, 0.4, 5),
			usd("gpt-5.6-terra", 2, 12, 0.2, 2.5),
			usd("gpt-5.6-luna", 0.2, 1.2, 0.02, 0.25),
			usd("gpt-5.5", 5, 30, 0.5, 5),
			usd("gpt-5.4", 2.5, 15, 0.25, 2.5),
			usd("gpt-5.4-mini", 0.75, 4.5, 0.075, 0.75),
			{id: "gpt-5.4-nano"},
			{id: "gpt-5.2-pro"},
			usd("gpt-5.2", 1.75, 14, 0.175, 1.75),
			usd("gpt-5.1", 1.25, 10, 0.125, 1.25),
			usd("gpt-5", 1.25, 10, 0.125, 1.25),
			usd("gpt-5-mini", 0.25, 2, 0.025, 0.25),
			usd("gpt-5-nano", 0.05, 0.4, 0.005, 0.05),
			usd("gpt-4.1", 2, 8, 0.5, 2),
			usd("gpt-4.1-mini", 0.4, 1.6, 0.1, 0.4),
			usd("gpt-4.1-nano", 0.1, 0.4, 0.025, 0.1),
			usd("gpt-4o", 2.5, 10, 1.25, 2.5),
			usd("gpt-4o-mini", 0.15, 0.6, 0.075, 0.15),
			usd("o4-mini", 1.1, 4.4, 0.275, 1.1),
			usd("o3", 2, 8, 0.5, 2),
			usd("o3-mini", 1.1, 4.4, 0.55, 1.1),
			usd("o1", 15, 60, 7.5, 15),
		}
	case Gemini:
		return []listed{
			usd("gemini-4-argon", 4, 20, 0.2, 4),
			usd("gemini-4-neon", 3, 15, 0.15, 3),
			usd("gemini-4-hydrogen", 1.5, 7.5, 0.075, 1.5),
			usd("gemini-3.8-flash", 1.5, 7.5, 0.15, 1.5),
			usd("gemini-3.7-flash", 1.5, 7.5, 0.15, 1.5),
			{id: "gemini-3.6-flash"},
			{id: "gemini-3.5-flash"},
			{id: "gemini-3.5-flash-lite"},
			usd("gemini-3.1-pro-preview", 2, 12, 0.2, 2),
			usd("gemini-3.1-flash-lite", 0.25, 1.5, 0.025, 0.25),
			usd("gemini-3-flash-preview", 0.5, 3, 0.05, 0.5),
			usd("gemini-2.5-pro", 1.25, 10, 0.125, 1.25),
			usd("gemini-2.5-flash", 0.3, 2.5, 0.03, 0.3),
			usd("gemini-2.5-flash-lite", 0.1, 0.4, 0.01, 0.1),
			{id: "gemini-flash-latest"},
			{id: "gemini-pro-latest"},
			{id: "gemini-flash-lite-latest"},
		}
	case DeepSeek:
		return []listed{
			usd("deepseek-flash", 0.3, 1.2, 0.006, 0.3),
			usd("deepseek-v4-pro", 1.32, 3.96, 0.044, 1.32),
			usd("deepseek-v4-flash", 0.3, 1.2, 0.006, 0.3),
			{id: "deepseek-chat"},
			{id: "deepseek-reasoner"},
		}
	}
	return nil
}

// priceKey is where the price of a provider's model is kept: its own models by both,
// a configured one by the model alone.
func priceKey(provider, model string) string { return provider + "/" + model }

// priceTable is what the catalog knows.
func priceTable() map[string]agent.Price {
	t := map[string]agent.Price{}
	for _, p := range Names() {
		for _, l := range catalog(p) {
			if l.known {
				t[priceKey(p, l.id)] = l.price
			}
		}
	}
	return t
}

// canonical is a model's id without what does not change its price: the resource
// prefix of Gemini and the date at the end, as in claude-haiku-4-5-20251001,
// gpt-5-2025-08-07 and gemini-2.5-flash-preview-09-2025.
func canonical(model string) string {
	model = strings.TrimPrefix(model, "models/")
	for _, form := range []string{"-0000-00-00", "-00000000", "-preview-00-0000", "-preview-00-00", "-001", "-002"} {
		if head, ok := cutForm(model, form); ok {
			return head
		}
	}
	return model
}

// cutForm cuts a suffix off in which a 0 of form stands for any digit.
func cutForm(s, form string) (string, bool) {
	if len(s) <= len(form) {
		return s, false
	}
	tail := s[len(s)-len(form):]
	for i := range len(form) {
		digit := tail[i] >= '0' && tail[i] <= '9'
		if form[i] == '0' && !digit || form[i] != '0' && form[i] != tail[i] {
			return s, false
		}
	}
	return s[:len(s)-len(form)], true
}

// Price returns what a model costs: what is configured for its id as it is written,
// else for the id without its date, else what the table has for either. ok is false if
// neither knows it; a model that only resembles a known one is not known.
func (m *Models) Price(provider, model string) (price agent.Price, ok bool) {
	return lookUp(*m.prices.Load(), provider, model)
}

// ListPrice is Price without configuration: what the table has.
func ListPrice(provider, model string) (price agent.Price, ok bool) {
	return lookUp(priceTable(), provider, model)
}

func lookUp(prices map[string]agent.Price, provider, model string) (agent.Price, bool) {
	short := canonical(model)
	for _, key := range []string{model, short, priceKey(provider, model), priceKey(provider, short)} {
		if price, ok := prices[key]; ok {
			return price, true
		}
	}
	return agent.Price{}, false
}

// Known returns the ids of a provider's models that the catalog has, the current
// first. It is not all that the provider has: an id outside it deserves a warning at
// most. With another base URL than the provider's own it says nothing.
func Known(provider string) []string {
	list := catalog(provider)
	ids := make([]string, len(list))
	for i, l := range list {
		ids[i] = l.id
	}
	return ids
}

// Near returns up to three known ids that a mistyped one may mean, the nearest first,
// and nil for one that is known.
func Near(provider, model string) []string {
	type guess struct {
		id string
		d  int
	}
	model = canonical(model)
	var out []guess
	for _, id := range Known(provider) {
		d := distance(strings.ToLower(model), id)
		if d == 0 {
			return nil
		}
		if d <= 2+len(id)/4 {
			out = append(out, guess{id, d})
		}
	}
	slices.SortStableFunc(out, func(a, b guess) int { return a.d - b.d })
	ids := make([]string, 0, 3)
	for _, g := range out[:min(len(out), cap(ids))] {
		ids = append(ids, g.id)
	}
	return ids
}

// distance is Levenshtein's, of a name of bounded length.
func distance(a, b string) int {
	const bound = 128
	if len(a) > bound {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
