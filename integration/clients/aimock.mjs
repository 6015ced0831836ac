// Imitates the model providers for the tests of package models, by a fake that we
// did not write. The first line on stdout is its address; it ends with its stdin.
import { LLMock } from "@copilotkit/aimock";

const mock = new LLMock({ port: 0 });
const last = (req) => req.messages.at(-1);
const user = (req, text) => req.messages.some((m) => m.role === "user" && JSON.stringify(m.content).includes(text));

mock.addFixture({
  match: { predicate: (req) => user(req, "weather") && last(req).role === "tool" },
  response: { content: "Rome is warmer." },
});
mock.addFixture({
  match: { predicate: (req) => user(req, "weather") },
  response: {
    toolCalls: [
      { name: "weather", arguments: JSON.stringify({ city: "Oslo" }) },
      { name: "weather", arguments: JSON.stringify({ city: "Rome" }) },
    ],
  },
});
mock.onMessage("hello", {
  content: "Grüße aus 東京, and nothing more.",
  // each provider's own names, of which its wire takes those that it knows
  usage: { prompt_tokens: 12, completion_tokens: 8, total_tokens: 20, input_tokens: 12, output_tokens: 8, promptTokenCount: 12, candidatesTokenCount: 8, totalTokenCount: 20 },
});
mock.onMessage("think", { content: "Four.", reasoning: "Two and two." });
mock.onMessage("person", { content: JSON.stringify({ name: "Ada", age: 36 }) });
mock.onMessage("limited", { error: { message: "slow down", type: "rate_limit_error" }, status: 429 });
mock.onMessage("busy", { error: { message: "try later", type: "overloaded_error" }, status: 503 });
mock.onMessage("filtered", { content: "so far", finishReason: "content_filter" });
mock.onMessage("long", { content: "so far", finishReason: "length" });
mock.onMessage("cut", { content: "one two three four five six seven eight nine ten" }, { chunkSize: 4, truncateAfterChunks: 4 });
mock.onMessage("slow", { content: "one two three four five six seven eight nine ten" }, { chunkSize: 2, streamingProfile: { ttft: 1, tps: 2 } });
mock.addFixture({ match: { userMessage: "malformed" }, response: { content: "never" }, chaos: { malformedRate: 1 } });
mock.addFixture({ match: { userMessage: "drop" }, response: { content: "never" }, chaos: { disconnectRate: 1 } });

await mock.start();
console.log(mock.url);
process.stdin.resume();
process.stdin.on("end", async () => {
  await mock.stop();
  process.exit(0);
});
