// The AI SDK's MCP client over Streamable HTTP, as an application uses it: the
// tools become functions with a schema, and are called.
// usage: node aisdk.mjs URL
import { createMCPClient, ElicitationRequestSchema } from "@ai-sdk/mcp";

const say = (step, seen) => process.stdout.write(JSON.stringify({ step, ...seen }) + "\n");
const failure = (err) => ({ error: { name: err?.name, code: err?.code, message: String(err?.message ?? err) } });

const client = await createMCPClient({ transport: { type: "http", url: process.argv[2] } });
say("connect", { protocol: client.initializeResult.protocolVersion });

const tools = await client.tools();
say("list", { tools: Object.keys(tools) });

let n = 0;
const call = (name, args) =>
  tools[name].execute(args, { toolCallId: String(n++), messages: [] }).then((result) => ({ result }), failure);
say("call", await call("relavium_greet", { name: "Ada", times: 2 }));
say("fails", await call("relavium_breaks", {}));
say("invalid", await call("relavium_greet", { name: 7 }));
say("gate", await call("relavium_deploy", { version: "1.4.2" }));

await client.close();

// An application that can ask its user.
const asking = await createMCPClient({
  transport: { type: "http", url: process.argv[2] },
  capabilities: { elicitation: {} },
});
const questions = [];
asking.onElicitationRequest(ElicitationRequestSchema, async (request) => {
  questions.push(request.params);
  return { action: "accept", content: { decision: "reject", comment: "not today" } };
});
const asked = await (await asking.tools()).relavium_deploy
  .execute({ version: "1.4.3" }, { toolCallId: "asked", messages: [] })
  .then((result) => ({ result }), failure);
say("asked", { ...asked, questions });
await asking.close();
say("close", {});
