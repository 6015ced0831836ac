// Lists the tools of a stdio server and calls one, by the TypeScript SDK 2 pinned to
// revision 2026-07-28. Prints one JSON line: {tools, progress, result}.
// usage: node call.mjs TOOL ARGUMENTS SERVER [ARG...]
import { Client } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";

const [name, args, command, ...rest] = process.argv.slice(2);
const client = new Client(
  { name: "typescript-sdk-2", version: "2.4.0" },
  { capabilities: {}, versionNegotiation: { mode: { pin: "2026-07-28" } } },
);
await client.connect(new StdioClientTransport({ command, args: rest, env: process.env }));
const { tools } = await client.listTools();
const progress = [];
const result = await client.callTool(
  { name, arguments: JSON.parse(args) },
  { onprogress: (p) => progress.push(p.message ?? ""), timeout: 60_000 },
);
console.log(JSON.stringify({ tools: tools.map((t) => t.name), progress, result }));
await client.close();
