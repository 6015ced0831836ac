package models

import (
	"strconv"
	"strings"

	"github.com/openai/openai-go/v3/shared"
)

// What a model takes is read from its name, by generation, so that a new model of a
// known family is treated as its family is. Checked against the providers' guides in
// November 2026.

// An openAIModel is what OpenAI's APIs take for a model.
type openAIModel struct {
	openai  bool // a model of OpenAI, by its name
	reasons bool
	off     string // the effort that is least; "" where it cannot be chosen
	most    string // the effort that is highest
	answers bool   // chat completions do not let it reason with tools, or use any
}

func effortOpenAI(model string) openAIModel {
	family, version, ok := strings.Cut(model, "-")
	switch {
	case strings.HasPrefix(model, "gpt-oss"):
		return openAIModel{reasons: true, off: "low", most: "high"}
	case len(family) >= 2 && family[0] == 'o' && family[1] >= '1' && family[1] <= '9':
		return openAIModel{openai: true, reasons: !strings.HasPrefix(model, "o1-mini") && !strings.HasPrefix(model, "o1-preview"), off: "low", most: "high"}
	case !ok || family != "gpt":
		return openAIModel{openai: family == "chatgpt"}
	}
	m := openAIModel{openai: true}
	number, rest, _ := strings.Cut(version, "-")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || v < 5 || strings.Contains(rest, "chat") {
		return m
	}
	m.reasons, m.off, m.most = true, "none", "high"
	switch {
	case v < 5.1:
		m.off = "minimal"
	case v >= 5.6:
		m.most, m.answers = "max", true
	case v >= 5.2:
		m.most = "xhigh"
	}
	if strings.HasPrefix(rest, "pro") {
		m.off = "high"
	}
	return m
}

// value is the reasoning_effort of a request; "" leaves it out.
func (m openAIModel) value(effort string) string {
	switch {
	case !m.reasons:
		return ""
	case effort == "off":
		return m.off
	case effort == "max":
		return m.most
	}
	return effort
}

// thinksDeepSeek tells whether a model takes thinking and effort. The two old names
// have theirs fixed.
func thinksDeepSeek(model string) bool {
	return model != "deepseek-chat" && model != "deepseek-reasoner"
}

func effortDeepSeek(effort string) shared.ReasoningEffort {
	switch effort {
	case "low", "max":
		return shared.ReasoningEffort(effort)
	}
	return shared.ReasoningEffortHigh // medium is high there
}
