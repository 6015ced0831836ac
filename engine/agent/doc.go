// Package agent runs agent nodes: prompts, the model loop, tools, retry and
// fallback, budget and cost (format 1.12, 2.3, 11.6, 12). It satisfies the engine's
// AgentRunner. What it calls stands behind Models and ToolHost, which package
// models, builtin and inbound satisfy.
package agent
