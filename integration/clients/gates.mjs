// What a person's client does at the gates of a workflow, driven through the
// elicitation handler of an SDK. Each step prints one JSON line of what the
// client saw; the Go test asserts on the lines.
// usage: node gates.mjs 1|2 [--http URL | --ws URL [TOKEN] | SERVER [ARG...]]
import { setTimeout as pause } from "node:timers/promises";
import { webSocketTransport } from "./websocket.mjs";

const [generation, command, ...args] = process.argv.slice(2);
const say = (step, seen) => process.stdout.write(JSON.stringify({ step, ...seen }) + "\n");
const failure = (err) => ({ error: { name: err?.name, code: err?.code, message: String(err?.message ?? err) } });
const settle = (promise) => promise.then((result) => ({ result }), failure);

// What the person answers, by the first word of the question; patience is how
// long they take.
const answers = {
  Build: { action: "accept", content: { decision: "approve" } },
  Notes: { action: "accept", content: { value: "fixes" } },
  Ship: { action: "accept", content: { decision: "reject", comment: "not on a Friday" } },
};
let patience = 0;
const questions = [];

async function answer(request) {
  questions.push(request.params);
  await pause(patience);
  const all = answers[request.params.message.split(" ")[0]];
  return typeof all === "function" ? all() : all;
}

async function connect() {
  const capabilities = { elicitation: { form: {} } };
  if (generation === "1") {
    const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
    const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
    const { StreamableHTTPClientTransport } = await import("@modelcontextprotocol/sdk/client/streamableHttp.js");
    const { ElicitRequestSchema } = await import("@modelcontextprotocol/sdk/types.js");
    const client = new Client({ name: "typescript-sdk-1", version: "1.32.2" }, { capabilities });
    client.setRequestHandler(ElicitRequestSchema, answer);
    await client.connect(command === "--http"
      ? new StreamableHTTPClientTransport(new URL(args[0]))
      : command === "--ws"
      ? webSocketTransport(...args)
      : new StdioClientTransport({ command, args, env: process.env }));
    return { client, call: (name, params, options) => client.callTool({ name, arguments: params }, undefined, options) };
  }
  const { Client, StreamableHTTPClientTransport } = await import("@modelcontextprotocol/client");
  const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
  const client = new Client(
    { name: "typescript-sdk-2", version: "2.4.0" },
    { capabilities, versionNegotiation: { mode: { pin: "2026-07-28" } } },
  );
  client.setRequestHandler("elicitation/create", answer);
  await client.connect(command === "--http"
    ? new StreamableHTTPClientTransport(new URL(args[0]))
    : new StdioClientTransport({ command, args, env: process.env }));
  return { client, call: (name, params, options) => client.callTool({ name, arguments: params }, options) };
}

const { client, call } = await connect();
const step = async (name, release) => {
  questions.length = 0;
  const seen = await settle(call("relavium_three-gates", { release }));
  say(name, { ...seen, questions: [...questions] });
};

patience = 20;
await step("answered", "1.0");

// A form that comes back without its answer is asked once more.
let tries = 0;
answers.Build = () => (++tries === 1 ? { action: "accept", content: {} } : { action: "decline" });
await step("asked-twice", "2.0");

await client.close();
say("closed", {});
