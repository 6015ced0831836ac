// A person's client of revision 2025-11-25 whose server goes away in the middle of a
// call. It says when it is asked, takes a moment, and answers.
// usage: node replicas.mjs URL PATIENCE_MS
import { setTimeout as pause } from "node:timers/promises";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";

const [url, patience] = process.argv.slice(2);
const say = (step, seen) => process.stdout.write(JSON.stringify({ step, ...seen }) + "\n");
const failure = (err) => ({ error: { name: err?.name, code: err?.code, message: String(err?.message ?? err) } });

const client = new Client({ name: "typescript-sdk-1", version: "1.32.2" }, { capabilities: { elicitation: { form: {} } } });
let asked = false;
client.setRequestHandler(ElicitRequestSchema, async (request) => {
  if (!asked) say("asked", { message: request.params.message });
  asked = true;
  await pause(Number(patience));
  return { action: "accept", content: { decision: "approve" } };
});
const transport = new StreamableHTTPClientTransport(new URL(url));
await client.connect(transport);
const progress = [];
const call = client.callTool({ name: "relavium_deploy", arguments: { version: "1.4.2" } }, undefined, {
  onprogress: (p) => progress.push(p.progress),
  timeout: 60_000,
});
say("answered", { ...(await call.then((result) => ({ result }), failure)), progress });
await transport.terminateSession();
await client.close();
