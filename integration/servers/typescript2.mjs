// A server of the TypeScript SDK 2 that speaks 2026-07-28 alone:
//   node typescript2.mjs stdio
//   node typescript2.mjs http PORT
import { createServer } from "node:http";
import { appendFileSync } from "node:fs";
import { McpServer, createMcpHandler } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { toNodeHandler } from "@modelcontextprotocol/node";
import { z } from "zod";

const note = (text) => process.env.NOTES && appendFileSync(process.env.NOTES, text + "\n");

function build() {
  const server = new McpServer({ name: "typescript-2", version: "1.0.0" }, { capabilities: { tools: {} } });
  server.registerTool(
    "echo",
    { description: "Says it again", inputSchema: z.object({ text: z.string() }), outputSchema: z.object({ text: z.string() }) },
    async ({ text }) => ({ content: [{ type: "text", text: JSON.stringify({ text }) }], structuredContent: { text } }),
  );
  server.registerTool("wait", { description: "Waits until it is cancelled", inputSchema: z.object({}) }, async (_, ctx) => {
    note("wait");
    const signal = ctx.mcpReq?.signal ?? ctx.signal;
    await new Promise((resolve) => signal.addEventListener("abort", resolve));
    note("cancelled");
    return { content: [] };
  });
  server.registerTool("fail", { description: "Fails", inputSchema: z.object({}) }, async () => {
    throw new Error("no owls today");
  });
  return server;
}

if (process.argv[2] === "http") {
  const handler = createMcpHandler(build, { legacy: "reject" });
  createServer(toNodeHandler(handler)).listen(Number(process.argv[3]), "127.0.0.1", () => console.error("listening on " + process.argv[3]));
} else {
  serveStdio(build, { legacy: "reject" });
}
