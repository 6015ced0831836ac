// The TypeScript SDK, version 2, pinned to revision 2026-07-28 over
// stdio or Streamable HTTP.
// usage: node sdk2.mjs SERVER [ARG...] | node sdk2.mjs --http URL [TOKEN]
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { drive } from "./scenario.mjs";

const [command, ...args] = process.argv.slice(2);
const transport = command === "--http"
  ? new StreamableHTTPClientTransport(new URL(args[0]), args[1] && { requestInit: { headers: { Authorization: `Bearer ${args[1]}` } } })
  : new StdioClientTransport({ command, args, env: process.env });
const client = new Client(
  { name: "typescript-sdk-2", version: "2.4.0" },
  { capabilities: {}, versionNegotiation: { mode: { pin: "2026-07-28" } } },
);

await drive({
  client,
  connect: () => client.connect(transport),
  callTool: (params, options) => client.callTool(params, options),
  protocol: () => client.getNegotiatedProtocolVersion(),
});
