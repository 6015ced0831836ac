// Package agent runs agent nodes: prompts, the model loop, tools, retry and
// fallback, budget and cost (format 1.12, 2.3, 11.6, 12). It satisfies the engine's
// AgentRunner. What it calls stands behind Models and ToolHost, which package
// models, builtin and inbound satisfy.
//
// A dispatch is a conversation. The system's text is what the author wrote and
// nothing else; the prompt is the user's message; what tools, servers and other
// agents say is a tool's message under a line that names where it comes from. The
// conversation goes on while the model calls tools, for at most 25 turns. A mistake
// in a call is told to the model, at most three times; a refusal by policy ends the
// node before anything of that turn is sent. The first reply without a call is the
// answer: text as it is, also empty or cut off by max_tokens, or JSON that keeps to
// the output_schema, with one more turn to repair it.
//
// Everything that leaves the process is an effect with a place. A model turn has the
// next place of its loop, whichever model of the chain answers it; the calls that it
// lists have the places after it, in listed order, whatever becomes of them; the
// effects of an agent that is called by invoke_agent lie below the place of the
// call. So places and requests follow from the history alone: a node that is entered
// again takes up where it was, and what was done is not done again.
package agent
