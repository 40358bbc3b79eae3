// replay.mjs - transcripts of agents on quire serve: the prompt tokens that are computed for each
// new one.
//
//   node scripts/agents/replay.mjs --quire build/quire --model FILE [--template FILE] [--agents 1]
//                                  [--at-once] [--turns 43] [--sizes 1,3] [--ctx 32768] [--kv q8]
//                                  [--threads 2]
//   node scripts/agents/replay.mjs --url URL [--turns 43] [--sizes 0.2]
//
// `make bench-agents` builds the program and calls this. The conversations are made up
// (transcript.mjs, which says what --sizes multiplies). Each of them begins on a fresh server,
// unless --url names one that runs. Prints a row of a table for each; exits 1 when the ratio is
// above the floor. The same beside llama-server: `make compare-serve ARGS="--only agents"`.
//
// SPDX-License-Identifier: MIT
import { resolve } from "node:path";
import { readOptions, stopOf } from "../compare/options.mjs";
import { AGENTS, agentTools, replayOn } from "../serve/agents.mjs";
import { Server } from "../serve/server.mjs";

const options = readOptions("replay", {
    quire: { type: "string", default: resolve("build", "quire") },
    model: { type: "string" },
    template: { type: "string" },
    url: { type: "string" },
    agents: { type: "string", default: "1", whole: 1 },
    "at-once": { type: "boolean", default: false },
    turns: { type: "string", default: `${AGENTS.turns}`, whole: 2 },
    sizes: { type: "string", default: "1,3", above: 0, isList: true },
    ctx: { type: "string", default: "32768", whole: 1 },
    kv: { type: "string", default: "q8" },
    threads: { type: "string", default: "2", whole: 1 },
});
if (!options.model === !options.url) {
    stopOf("replay")("one of --model FILE and --url URL is needed");
}

const template = options.template ? ["--chat-template-file", options.template] : [];
const tools = agentTools();
const count = (n) => n.toLocaleString("en");
let isGood = true;

process.stdout.write("| agents | turns | size | tokens at the end | tokens asked | new | computed | computed : new | TTFT p95 ms |\n" +
    "|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
for (const size of options.sizes.split(",").map(Number)) {
    const load = { agents: Number(options.agents), isAtOnce: options["at-once"], turns: Number(options.turns), size };
    const server = options.url ? undefined : await Server.start(options.quire, ["serve", "-m", options.model, "-c", options.ctx,
        "--kv", options.kv, "-t", options.threads, ...template]);
    try {
        const r = await replayOn(server?.port ?? new URL(options.url).port, tools, load);
        const ratio = r.computed / r.fresh;
        process.stdout.write(`| ${load.agents} | ${load.turns} | ${size} | ${[r.last, r.asked, r.fresh, r.computed].map(count).join(" | ")} | ` +
            `${ratio.toFixed(3)} | ${r.ttftP95.toFixed(1)} |\n`);
        isGood &&= ratio <= AGENTS.computed.floor;
    } finally {
        await server?.stop();
    }
}
process.exit(isGood ? 0 : 1);
