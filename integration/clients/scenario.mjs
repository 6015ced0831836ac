// One scenario for every client: what a person's MCP client does with a folder
// of published workflows. Each step prints one JSON line of what the client saw;
// the Go test asserts on the lines and answers the gates from another process.
//
// A client is {connect, callTool, client}: the two SDKs differ in where
// callTool takes its options. leave ends a session that outlives its connection.

import { once } from "node:events";

const say = (step, seen) => process.stdout.write(JSON.stringify({ step, ...seen }) + "\n");

const failure = (err) => ({ error: { name: err?.name, code: err?.code, message: String(err?.message ?? err) } });

// settle turns a promise into what the client saw, an error included.
const settle = (promise) => promise.then((result) => ({ result }), failure);

// gates collects human_gate notifications and lets a step wait for the next one.
function gates(client) {
  const seen = [];
  const waiting = [];
  client.fallbackNotificationHandler = async (note) => {
    if (note.method !== "notifications/relavium/human_gate") {
      say("notification", { method: note.method });
      return;
    }
    seen.push(note.params);
    waiting.shift()?.(seen.shift());
  };
  return () => new Promise((resolve) => (seen.length ? resolve(seen.shift()) : waiting.push(resolve)));
}

// holdClock takes hold of the next timer that is set to clockLimit, and returns what makes
// it ring at once: a machine that is slow must not let it ring before its time has come.
const clockLimit = 59_973;
function holdClock() {
  const set = globalThis.setTimeout;
  let ring;
  globalThis.setTimeout = (then, after, ...rest) => {
    if (after === clockLimit) ring = then;
    return set(then, after, ...rest);
  };
  return () => {
    globalThis.setTimeout = set;
    ring();
  };
}

export async function drive({ client, connect, callTool, protocol, leave }) {
  const nextGate = gates(client);
  const call = (name, args, options) => callTool({ name, arguments: args }, options);

  client.onerror = (err) => console.error("the client:", err);
  await connect();
  say("connect", {
    protocol: protocol(),
    server: client.getServerVersion(),
    capabilities: client.getServerCapabilities(),
  });

  const list = await client.listTools();
  say("list", { tools: list.tools, nextCursor: list.nextCursor });

  say("call", await settle(call("relavium_greet", { name: "Ada \u2028 \u{1F600}", times: 3 })));
  say("defaults", await settle(call("relavium_greet", { name: "Bo" })));
  say("invalid", await settle(call("relavium_greet", { name: 7, times: "3", loud: true })));
  say("unknown", await settle(call("relavium_greeet", {})));
  say("fails", await settle(call("relavium_breaks", {})));

  const progress = [];
  const stepped = await settle(call("relavium_steps", { seed: 1 }, { onprogress: (p) => progress.push(p) }));
  const atResult = progress.length;
  await client.listTools(); // a round trip: whatever was still on its way has arrived
  say("progress", { ...stepped, progress, late: progress.length - atResult });

  // A person presses stop: the run is cancelled, the session lives.
  const stop = new AbortController();
  const stopped = settle(call("relavium_deploy", { version: "cancel" }, { signal: stop.signal }));
  const gateToCancel = await nextGate();
  stop.abort("stopped by the person");
  say("cancel", { gate: gateToCancel, ...(await stopped) });
  say("after-cancel", { tools: (await client.listTools()).tools.length });

  // A gate, answered from elsewhere while the call waits.
  const beats = [];
  const waiting = settle(call("relavium_deploy", { version: "1.4.2" }, { onprogress: (p) => beats.push(p) }));
  say("gate-open", { gate: await nextGate() });
  say("gate", { ...(await waiting), progress: beats });

  // The client's own clock ends the call while its person is asked; the run goes on, and
  // the retry joins it. The word that the client gave up goes another way than the retry,
  // behind a balancer to another server: whoever reads this says when it has arrived.
  const strike = holdClock();
  const late = settle(call("relavium_deploy", { version: "clock" }, { timeout: clockLimit }));
  const gateOfLate = await nextGate();
  strike();
  say("clock", { gate: gateOfLate, ...(await late) });
  await once(process.stdin, "data");
  process.stdin.destroy();
  say("joined", await settle(call("relavium_deploy", { version: "clock" })));

  say("status", await settle(call("relavium_run_status", { run: runOf(gateOfLate) })));
  say("templates", await settle(client.listResourceTemplates()));
  say("resource", await settle(client.readResource({ uri: `relavium://runs/${runOf(gateOfLate)}` })));

  await leave?.();
  await client.close();
  say("close", {});
}

const runOf = (gate) => gate.runId ?? gate.run;
