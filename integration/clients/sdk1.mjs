// The TypeScript SDK, version 1, as it comes: revision 2025-11-25 over stdio,
// Streamable HTTP or WebSocket.
// usage: node sdk1.mjs SERVER [ARG...] | node sdk1.mjs --http URL | node sdk1.mjs --ws URL [TOKEN]
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { drive } from "./scenario.mjs";
import { webSocketTransport } from "./websocket.mjs";

const [command, ...args] = process.argv.slice(2);
const transport = command === "--http"
  ? new StreamableHTTPClientTransport(new URL(args[0]))
  : command === "--ws"
  ? webSocketTransport(...args)
  : new StdioClientTransport({ command, args, env: process.env });
const client = new Client({ name: "typescript-sdk-1", version: "1.32.2" }, { capabilities: {} });

let negotiated;
const setProtocolVersion = transport.setProtocolVersion?.bind(transport);
transport.setProtocolVersion = (v) => {
  negotiated = v;
  setProtocolVersion?.(v);
};

await drive({
  client,
  connect: () => client.connect(transport),
  callTool: (params, options) => client.callTool(params, undefined, options),
  protocol: () => negotiated,
  leave: () => transport.terminateSession?.(),
});
