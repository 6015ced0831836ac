// Package models speaks to language models: those of Anthropic, OpenAI, Google and
// DeepSeek, and whatever else speaks OpenAI's chat completions, such as Ollama, vLLM
// and LM Studio. It satisfies the interface that engine/agent declares.
//
// The providers' own SDKs build the requests and read the events. All else is held
// here: the base URL is the configured one, the connection is egress's, the headers
// that leave are a short fixed list, the key is attached at the last moment and to
// its provider's origin alone, nothing is tried twice, and no environment variable
// that an SDK reads has any effect. What fails is told as an agent.ModelError, whose
// message is ours.
package models
