// LangChain's MCP adapters over stdio, as an agent uses them: the tools become
// functions that a model may call. They declare no elicitation.
// usage: node langchain.mjs COMMAND [ARG...]
import { MultiServerMCPClient } from "@langchain/mcp-adapters";

const say = (step, seen) => process.stdout.write(JSON.stringify({ step, ...seen }) + "\n");

let told = false;
const [command, ...args] = process.argv.slice(2);
const client = new MultiServerMCPClient({
  mcpServers: { flows: { transport: "stdio", command, args, env: process.env } },
  onProgress: ({ message }) => {
    if (!told && message?.includes("/gates/")) say("where", { message });
    told ||= message?.includes("/gates/");
  },
});
const tools = await client.getTools();
say("list", { tools: tools.map((tool) => tool.name) });
const result = await tools.find((tool) => tool.name === "relavium_shipment").invoke({ version: "3.1.0" });
say("gate", { text: typeof result === "string" ? result : JSON.stringify(result) });
await client.close();
say("close", {});
