// Package fakemodel is a model provider for tests, demos and benchmarks: an
// http.Handler that speaks the wires of Anthropic, OpenAI (chat completions, with
// DeepSeek's and a local server's variants, and responses) and Gemini, answers by a script and writes down every
// request. It is as strict as the services are documented to be about keys,
// members it does not know, the order of messages, answered tool calls and
// signatures, so that what it accepts they accept.
//
// Which turn of a conversation is asked for is read from the request itself: it is
// the number of assistant messages in it. So the fake may be asked again after a
// crash, and by many at once, without keeping count.
//
// The base URLs are <address>/anthropic, /openai/v1, /deepseek, /gemini and
// /local/v1; see [URL].
package fakemodel
