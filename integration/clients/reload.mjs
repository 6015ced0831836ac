// Waits for the list of tools to change, by the TypeScript SDK 1 over stdio, and
// prints the names of the tools at first and after each change, a JSON line each.
// usage: node reload.mjs CHANGES SERVER [ARG...]
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { ToolListChangedNotificationSchema } from "@modelcontextprotocol/sdk/types.js";

const [changes, command, ...args] = process.argv.slice(2);
const client = new Client({ name: "typescript-sdk-1", version: "1.32.2" }, { capabilities: {} });
const say = async () => {
  const { tools } = await client.listTools();
  console.log(JSON.stringify({ step: "tools", tools: tools.map((t) => t.name) }));
};
let left = Number(changes);
const done = new Promise((resolve) => {
  client.setNotificationHandler(ToolListChangedNotificationSchema, async () => {
    await say();
    if (--left === 0) resolve();
  });
});
await client.connect(new StdioClientTransport({ command, args, env: process.env }));
console.log(JSON.stringify({ step: "declared", listChanged: client.getServerCapabilities().tools.listChanged }));
await say();
await done;
await client.close();
