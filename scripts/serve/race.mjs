// race.mjs - servers under one load, one after the other and in turns, each time started anew with
// cold caches.
//
// SPDX-License-Identifier: MIT
import { join } from "node:path";
import { judge } from "../compare/speed.mjs";
import { Client } from "./client.mjs";
import { Server } from "./server.mjs";
import { PEER_SETTINGS, peerArgs, quireArgs } from "./sides.mjs";
import { medians, RUN_HEAD, runLine, summarize } from "./summary.mjs";
import { conversations, document, GREEDY, poisson, prepare } from "./workloads.mjs";

const RUN = { conversations, arrivals: poisson, document, "chat-gemma3": conversations, "chat-qwen3.5": conversations };

export function peerSide(c, name) {
    const { args, env } = PEER_SETTINGS[name];
    return { name: `llama-server ${name}`, program: join(c.peer, "llama-server"), args: peerArgs(c.model, c.threads, args), env };
}

export function ourSide(c, name, settings) {
    return { name: `quire ${name}`.trim(), program: c.quire, args: quireArgs(c.model, c.threads, settings),
        extra: { hasSessions: name === "session_id" } };
}

// A fresh server that has read its weights once.
export async function fresh(side) {
    const server = await Server.start(side.program, side.args, side.env);
    const warm = await server.client.stream("/v1/completions", { ...GREEDY, prompt: "Warm", max_tokens: 4 });
    if (warm.error) {
        await server.stop();
        throw new Error(`${server.command}: ${warm.error}`);
    }
    return server;
}

export async function runOnce(c, side, load) {
    const server = await fresh(side);
    try {
        c.texts ??= await prepare(server.client, c.data, c.sizes);
        const [begin, cpuBefore] = [performance.now(), server.cpuSeconds()];
        const replies = await RUN[load](server.port, c.texts, side.extra);
        const wallMs = performance.now() - begin;
        return summarize(replies, { wallMs, peakBytes: server.peakBytes(), cpuSeconds: server.cpuSeconds() - cpuBefore });
    } finally {
        await server.stop();
    }
}

// Every side `rounds` times, the order turned round each time: [{ name, figures }] or [{ name,
// error }].
export async function inTurns(c, sides, load, rounds) {
    const results = sides.map((side) => ({ name: side.name, runs: [] }));
    for (let round = 0; round < rounds; round++) {
        const order = [...sides.keys()];
        for (const i of round % 2 ? order.reverse() : order) {
            const result = results[i];
            if (result.error) {
                continue;
            }
            try {
                result.runs.push(await runOnce(c, sides[i], load));
                process.stderr.write(`${runLine(load, result.name, result.runs.at(-1))}\n`);
            } catch (error) {
                result.error = error.message;
                process.stderr.write(`failed   ${load}, ${result.name}: ${error.message}\n`);
            }
        }
    }
    return results.map(({ name, runs, error }) => ({ name, error, figures: error ? undefined : medians(runs) }));
}

// The fastest of several sides, or the one with the least of a figure.
export function bestOf(results, least) {
    return results.reduce((a, b) => (least === undefined ? b.figures.requestsPerSecond > a.figures.requestsPerSecond
        : b.figures[least] < a.figures[least]) ? b : a);
}

// A row for each side that failed.
export function failedSides(report, load, results) {
    for (const { name, error } of results.filter((result) => result.error)) {
        report.add({ what: `${load}, ${name}`, verdict: "failed", note: error.split("\n")[0] });
    }
}

export function figuresTable(load, results) {
    const lines = results.map((result) => (result.error ? `| ${load} | ${result.name} | failed: ${result.error.split("\n")[0]} |`
        : runLine(load, result.name, result.figures)));
    return `${RUN_HEAD}\n${lines.join("\n")}\n`;
}

// "at least" or, for isLess, "at most" a ratio: judge() compares upwards.
export function verdict(ratio, target) {
    if (!target.isLess) {
        return judge(ratio, target);
    }
    return judge(-ratio, { floor: -target.floor, aim: target.aim === undefined ? undefined : -target.aim });
}

export const bound = (value, target) => (value === undefined ? undefined : `${target.isLess ? "<=" : ">="} ${value}x`);

// A cold prefix, then the same one with another ending: { cold, cached } in seconds, medians over
// `rounds` texts.
export async function cachedPrefix(c, side, { tokens, rounds }) {
    const server = await fresh(side);
    const client = new Client(server.port);
    const ask = async (prompt) => {
        const reply = await client.stream("/v1/completions", { ...GREEDY, prompt, max_tokens: 2 });
        if (reply.error) {
            throw new Error(reply.error);
        }
        return { seconds: reply.firstMs / 1000, cached: reply.timings.cache_n };
    };
    const runs = [];
    try {
        for (let round = 0; round < rounds; round++) {
            const prefix = await c.cut(client, c.data.book.slice(round * 5 * tokens), tokens);
            const cold = await ask(`${prefix}\n\nQuestion: Who tells the story?`);
            const cached = await ask(`${prefix}\n\nQuestion: Which bill does he imagine?`);
            runs.push({ cold: cold.seconds, cached: cached.seconds, coldTokens: cold.cached, cachedTokens: cached.cached });
        }
    } finally {
        client.close();
        await server.stop();
    }
    return medians(runs);
}

// A conversation whose first prompt has `tokens` tokens, and its second turn: { cold, next } in
// seconds until the first text, medians over `rounds` conversations.
export async function secondTurn(c, side, { tokens, answerTokens, rounds }) {
    const server = await fresh(side);
    const client = new Client(server.port);
    const ask = async (round, messages) => {
        const session = side.extra?.hasSessions ? { session_id: `turn-${round}` } : {};
        const reply = await client.stream("/v1/chat/completions", { ...GREEDY, ...session, messages, max_tokens: answerTokens });
        if (reply.error) {
            throw new Error(reply.error);
        }
        return { seconds: reply.firstMs / 1000, text: reply.text, prompt: reply.usage.prompt_tokens, computed: reply.timings.prompt_n };
    };
    const runs = [];
    try {
        for (let round = 0; round < rounds; round++) {
            const messages = [{ role: "user", content: await c.cut(client, c.data.book.slice(round * 5 * tokens), tokens) }];
            const cold = await ask(round, messages);
            const next = await ask(round, [...messages, { role: "assistant", content: cold.text }, { role: "user", content: "Why?" }]);
            runs.push({ cold: cold.seconds, next: next.seconds, prompt: next.prompt, computed: next.computed });
        }
    } finally {
        client.close();
        await server.stop();
    }
    return medians(runs);
}
