// agents.mjs - transcripts of agents, replayed turn by turn on quire serve and on llama-server.
//
// Each agent sends its whole conversation again at each turn: one system prompt, the same tools,
// its own calls and results. The history has the transcript's answers and not the server's, so
// every server gets the same requests. Agents of one server take turns, one request at a time, or
// all ask at once.
//
// SPDX-License-Identifier: MIT
import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { transcript } from "../agents/transcript.mjs";
import { asset, median } from "../compare/tools.mjs";
import { Client } from "./client.mjs";
import { bound, fresh, verdict } from "./race.mjs";
import { percentile } from "./summary.mjs";

const TOOLS = ["read_file", "edit_file", "run_shell", "grep", "glob", "web_fetch", "todo_write", "git_commit"];
const ANSWER_TOKENS = 8;
const CTX = 32768;
const MODEL = "minimind2-small-q8_0.gguf"; // a template with tools, trained for 32,768 tokens

export const AGENTS = {
    turns: 43,
    loads: { "1 agent": { agents: 1 }, "4 agents in turns": { agents: 4 }, "4 agents at once": { agents: 4, isAtOnce: true } },
    computed: { floor: 1.05, aim: 1.01, isLess: true },
    ttft: { floor: 3, aim: 5 },
    slots: 4,
};

export function sides(c, at) {
    const own = asset(at, MODEL);
    const template = join(dirname(c.peer), "quire-common", "templates", "Qwen-Qwen2.5-7B-Instruct.jinja");
    // Without the model, random weights: times and counts of tokens are as telling.
    const model = existsSync(own) ? ["-m", own] : ["-m", c.model, "--chat-template-file", template];
    const peer = (name, ...more) => ({ name: `llama-server ${name}`, program: join(c.peer, "llama-server"), args: [...model, "-t", `${c.threads}`,
        "-np", `${AGENTS.slots}`, "-c", `${AGENTS.slots * CTX}`, "-fa", "on", "--no-ui", ...more] });
    // llama.cpp's attention has tiles, and several threads for one token, with KV in f16 alone:
    // q8_0 takes less memory and more time.
    return [
        { name: "quire", program: c.quire, args: ["serve", ...model, "-t", `${c.threads}`, "-c", `${CTX}`, "--kv", "q8"] },
        peer("f16"),
        peer("q8_0", "-ctk", "q8_0", "-ctv", "q8_0"),
        peer("f16 --cache-reuse 256", "--cache-reuse", "256"),
    ];
}

// The tools that the agents have.
export function agentTools() {
    const path = join(dirname(fileURLToPath(import.meta.url)), "..", "agents", "tools.json");
    return JSON.parse(readFileSync(path, "utf8")).filter((tool) => TOOLS.includes(tool.name))
        .map((tool) => ({ type: "function", function: tool }));
}

// One agent's conversation, a request at each call of turn().
function agent(port, tools, seed, { turns, size }) {
    const { system, turns: list } = transcript({ seed, turns, size });
    const client = new Client(port);
    const messages = [{ role: "system", content: system }];
    let before = 0;
    const replies = [];
    return {
        replies,
        close: () => client.close(),
        async turn(number) {
            messages.push(...list[number].messages);
            const reply = await client.stream("/v1/chat/completions", { messages, tools, temperature: 0, max_tokens: ANSWER_TOKENS });
            if (reply.error || !reply.timings) {
                throw new Error(`turn ${number}: ${reply.error ?? "no timings"}`);
            }
            const prompt = reply.usage.prompt_tokens;
            replies.push({ firstMs: reply.firstMs ?? reply.totalMs, prompt, computed: reply.timings.prompt_n, fresh: prompt - before });
            before = prompt;
            messages.push(list[number].answer);
        },
    };
}

// Replay the conversations on a server that runs: sums over all turns after the first of each
// agent.
export async function replayOn(port, tools, { agents = 1, isAtOnce = false, turns, size }) {
    const all = Array.from({ length: agents }, (_, i) => agent(port, tools, i + 1, { turns, size }));
    try {
        for (let number = 0; number < turns; number++) {
            if (isAtOnce) {
                await Promise.all(all.map((each) => each.turn(number)));
            } else {
                for (const each of all) {
                    await each.turn(number);
                }
            }
        }
    } finally {
        all.forEach((each) => each.close());
    }
    const replies = all.flatMap((each) => each.replies);
    const later = all.flatMap((each) => each.replies.slice(1));
    const sum = (list, field) => list.reduce((total, each) => total + each[field], 0);
    return {
        ttftP50: percentile(replies.map((each) => each.firstMs), 0.5),
        ttftP95: percentile(replies.map((each) => each.firstMs), 0.95),
        computed: sum(later, "computed"),
        fresh: sum(later, "fresh"),
        last: Math.max(...replies.map((each) => each.prompt)),
        asked: sum(replies, "prompt"),
        cold: all[0].replies[0].firstMs,
    };
}

async function replay(side, tools, load) {
    const server = await fresh(side);
    try {
        return await replayOn(server.port, tools, load);
    } finally {
        await server.stop();
    }
}

const middle = (runs) => Object.fromEntries(Object.keys(runs[0]).map((field) => [field, median(runs.map((run) => run[field]))]));

// Adds rows to the report; returns a table of all figures.
export async function agents(c, report, at, { repeats, turns = AGENTS.turns }) {
    const tools = agentTools();
    const lines = ["| load | server | TTFT p50 ms | p95 ms | first turn ms | tokens at the end | new | computed | computed : new |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|"];
    for (const [name, load] of Object.entries(AGENTS.loads)) {
        const all = sides(c, at).map((side) => ({ side, runs: [] }));
        try {
            for (let round = 0; round < repeats; round++) {
                for (const each of round % 2 ? [...all].reverse() : all) {
                    const begin = performance.now();
                    each.runs.push(await replay(each.side, tools, { ...load, turns }));
                    process.stderr.write(`agents   ${name}, ${each.side.name}: ${((performance.now() - begin) / 1000).toFixed(1)} s\n`);
                }
            }
        } catch (error) {
            report.add({ what: `agents, ${name}`, verdict: "failed", note: error.message.split("\n")[0] });
            continue;
        }
        const results = all.map(({ side, runs }) => ({ name: side.name, ...middle(runs) }));
        for (const r of results) {
            lines.push(`| ${name} | ${r.name} | ${[r.ttftP50, r.ttftP95, r.cold].map((ms) => ms.toFixed(1)).join(" | ")} | ${r.last} | ` +
                `${r.fresh} | ${r.computed} | ${(r.computed / r.fresh).toFixed(3)} |`);
        }
        const [ours, ...peers] = results;
        const best = peers.reduce((a, b) => (b.ttftP95 < a.ttftP95 ? b : a));
        report.add({ what: `agents, ${name}: prompt tokens computed : new`, ours: ours.computed, theirs: ours.fresh,
            ratio: ours.computed / ours.fresh, floor: bound(AGENTS.computed.floor, AGENTS.computed),
            aim: bound(AGENTS.computed.aim, AGENTS.computed), verdict: verdict(ours.computed / ours.fresh, AGENTS.computed) });
        report.add({ what: `agents, ${name}: TTFT p95 in ms, llama-server's best : quire`, ours: ours.ttftP95, theirs: best.ttftP95,
            ratio: best.ttftP95 / ours.ttftP95, floor: bound(AGENTS.ttft.floor, AGENTS.ttft), aim: bound(AGENTS.ttft.aim, AGENTS.ttft),
            verdict: verdict(best.ttftP95 / ours.ttftP95, AGENTS.ttft), note: best.name });
    }
    return `${lines.join("\n")}\n`;
}
