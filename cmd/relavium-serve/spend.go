package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/relavium/relavium-serve/engine"
)

// A spend is what model calls used, of one node or of a run.
type spend struct {
	calls, tools  int
	input, output int64
	microcents    int64
	unpriced      bool // the price of some call is not known
}

// add takes in an event of an agent node.
func (s *spend) add(ev *engine.Event) {
	switch ev.Type {
	case engine.CostUpdated:
		s.calls++
		if ev.InputTokens != nil {
			s.input += *ev.InputTokens
		}
		if ev.OutputTokens != nil {
			s.output += *ev.OutputTokens
		}
		if ev.Cost != nil {
			s.microcents += *ev.Cost
		}
		s.unpriced = s.unpriced || ev.Priced != nil && !*ev.Priced
	case engine.AgentToolCall:
		s.tools++
	}
}

// String is the spend in a few words, or nothing where no model was called.
func (s *spend) String() string {
	if s.calls == 0 {
		return ""
	}
	words := []string{count(s.calls, "model call"), fmt.Sprintf("%d tokens in, %d out", s.input, s.output)}
	if s.tools > 0 {
		words = append(words[:1], append([]string{count(s.tools, "tool call")}, words[1:]...)...)
	}
	switch {
	case !s.unpriced:
		words = append(words, usd(s.microcents))
	case s.microcents == 0:
		words = append(words, "price unknown")
	default:
		words = append(words, usd(s.microcents)+" and calls of unknown price")
	}
	return strings.Join(words, ", ")
}

// usd writes an amount of micro-cents (1e-8 USD) with as many digits as tell something.
func usd(microcents int64) string {
	amount := float64(microcents) / 1e8
	switch {
	case microcents == 0:
		return "$0"
	case amount < 0.01:
		return fmt.Sprintf("$%.6f", amount)
	case amount < 1:
		return fmt.Sprintf("$%.4f", amount)
	}
	return fmt.Sprintf("$%.2f", amount)
}

// summary is the closing line of a run.
func (v *view) summary(ev *engine.Event) string {
	word := strings.TrimPrefix(ev.Type, "run:")
	text := "run " + ev.Run + " " + word
	if !v.started.IsZero() {
		text += " in " + shortDuration(ev.Time.Sub(v.started).Round(time.Millisecond))
	}
	if used := v.total.String(); used != "" {
		text += ": " + used
	}
	return text
}
