// The WebSocket transport of the TypeScript SDK, version 1. It takes nothing but
// a URL, so a token goes into the upgrade by the socket that it is given.
import { WebSocketClientTransport } from "@modelcontextprotocol/sdk/client/websocket.js";
import WebSocket from "ws";

export function webSocketTransport(url, token) {
  globalThis.WebSocket = token === undefined
    ? WebSocket
    : class extends WebSocket {
      constructor(address, protocols) {
        super(address, protocols, { headers: { Authorization: `Bearer ${token}` } });
      }
    };
  return new WebSocketClientTransport(new URL(url));
}
