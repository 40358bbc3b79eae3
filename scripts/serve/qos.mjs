// qos.mjs - the loads of `make bench-qos`: open loop, so that a server that falls behind is asked
// all the same.
//
// Prompts are arrays of token ids cut from one book, each from a place of its own: their lengths
// are exact and no two of them begin alike, so that nothing comes from a cache.
//
// SPDX-License-Identifier: MIT
import { Client } from "./client.mjs";
import { percentile } from "./summary.mjs";
import { arrivals, tokenize } from "./texts.mjs";
import { GREEDY } from "./workloads.mjs";

const COMPLETIONS = "/v1/completions";
const CAPACITY_CLIENTS = 64;
const CAPACITY_MS = 30 * 1000;
const BOOK_CHARS = 400 * 1000;
const STEP = 61; // tokens between the beginnings of prompts

const wait = (ms) => new Promise((done) => setTimeout(done, ms));

// Ids of the book's beginning, and a function that gives the next prompt of n of them.
export async function tokenStream(client, { book }) {
    const ids = await tokenize(client, book.slice(0, BOOK_CHARS));
    let at = 0;
    return (n) => {
        at = (at + STEP) % (ids.length - n);
        return ids.slice(at, at + n);
    };
}

const ask = (client, shape, tokens, extra, signal) => client.stream(COMPLETIONS,
    { ...GREEDY, ...extra, prompt: tokens, max_tokens: shape.answer, cache_prompt: false }, { signal });

// Tokens per second of batch requests when there are always enough of them.
export async function capacity(server, c) {
    const client = new Client(server.port);
    const stop = new AbortController();
    let isOver = false;
    const work = async () => {
        while (!isOver) {
            const reply = await ask(client, c.batch, c.tokens(c.batch.prompt), {}, stop.signal);
            if (reply.error && !isOver) {
                throw new Error(reply.error);
            }
        }
    };
    const workers = Array.from({ length: CAPACITY_CLIENTS }, work);
    const failed = Promise.all(workers);
    await Promise.race([failed, wait(c.warmMs)]);
    const before = await computed(server);
    await Promise.race([failed, wait(CAPACITY_MS)]);
    const after = await computed(server);
    isOver = true;
    stop.abort();
    await Promise.allSettled(workers);
    client.close();
    return rate(before, after);
}

// Tokens of prompts and answers that the server has computed so far. A token that was computed
// twice counts once. The figure is NaN for llama-server, which runs without --metrics here.
async function computed(server) {
    const { status, body } = await server.client.json("GET", "/v1/cache/stats");
    return { at: performance.now(), stats: status === 200 ? body : undefined,
        tokens: status === 200 ? body.tokens.computed_prompt_total + body.tokens.generated_total - body.tokens.recomputed_total : NaN };
}

const rate = (before, after) => (after.tokens - before.tokens) / ((after.at - before.at) / 1000);

// An error of the server: neither a refusal, nor the end of the run.
export const hasFailed = (reply) => reply.error !== undefined && reply.error !== "cancelled" && reply.status !== 429;

// Batch requests arrive until the signal; replies are counted as they come.
async function pour(server, c, extra, signal, counts) {
    const client = new Client(server.port);
    const pending = new Set();
    const times = arrivals(1e5, c.batchPerSecond, c.seed);
    const begin = performance.now();
    for (const at of times) {
        await wait(Math.max(0, at - (performance.now() - begin)));
        if (signal.aborted) {
            break;
        }
        const one = ask(client, c.batch, c.tokens(c.batch.prompt), extra, signal).then((reply) => {
            counts.finished += reply.error === undefined;
            counts.refused += reply.status === 429;
            counts.failed += hasFailed(reply);
            pending.delete(one);
        });
        pending.add(one);
    }
    await Promise.all(pending);
    client.close();
}

// Realtime requests at even distances; none waits for another. Some time after the last one was
// sent, unfinished requests are cancelled. The TTFT of a request without a token by then, or of a
// refused one, is the time to the end of the run.
async function drip(server, c, extra) {
    const client = new Client(server.port);
    const gapMs = 1000 / c.realtimePerSecond;
    const stop = new AbortController();
    const begin = performance.now();
    const asked = Array.from({ length: c.requests }, async (_, i) => {
        await wait(Math.max(0, i * gapMs - (performance.now() - begin)));
        const sent = performance.now();
        return { ...await ask(client, c.realtime, c.tokens(c.realtime.prompt), extra, stop.signal), sent };
    });
    const all = Promise.all(asked);
    await Promise.race([all, wait(c.requests * gapMs + Math.max(10 * gapMs, 20000))]);
    stop.abort();
    const replies = await all;
    const end = performance.now();
    client.close();
    return replies.map((reply) => ({ ...reply, firstMs: reply.firstMs ?? end - reply.sent, isLate: reply.firstMs === undefined }));
}

// One run: batch from the beginning, realtime when batch has filled the server. batchPerSecond 0:
// realtime alone.
export async function figures(server, c, side) {
    const counts = { finished: 0, refused: 0, failed: 0 };
    const tier = (name) => side.tier?.(name) ?? {};
    const stop = new AbortController();
    const batch = c.batchPerSecond > 0 ? pour(server, c, tier("batch"), stop.signal, counts) : Promise.resolve();
    await wait(c.warmMs);
    const [before, finishedBefore] = [await computed(server), counts.finished];
    const replies = await drip(server, c, tier("realtime"));
    const [after, finishedAfter] = [await computed(server), counts.finished];
    stop.abort();
    await batch;
    const failed = replies.filter(hasFailed);
    if (counts.failed + failed.length > 0) {
        throw new Error(`${counts.failed} batch and ${failed.length} realtime requests failed${failed.length > 0 ? `: ${failed[0].error}` : ""}`);
    }
    const late = replies.filter((reply) => reply.isLate);
    const whole = replies.filter((reply) => reply.error === undefined);
    const ttft = replies.map((reply) => reply.firstMs / 1000);
    const tpot = whole.map((reply) => (reply.lastMs - reply.firstMs) / (c.realtime.answer - 1));
    return {
        runs: 1, sent: replies.length, unanswered: late.length, turnedAway: replies.filter((reply) => reply.status === 429).length, unfinished: replies.length - whole.length,
        ttftP50: percentile(ttft, 0.5), ttftP99: percentile(ttft, 0.99),
        tpotP50: percentile(tpot, 0.5), tpotP99: percentile(tpot, 0.99),
        seconds: (after.at - before.at) / 1000, tokensPerSecond: rate(before, after),
        batchFinished: finishedAfter - finishedBefore, refused: counts.refused, classes: after.stats?.classes,
    };
}

export const TABLE_HEAD = "| run | server | realtime sent | without a token | of them refused | unfinished | TTFT p50 s | p99 s | TPOT p50 ms | p99 ms | batch finished/s | " +
    "batch refused | tokens/s | batch: parked | preempted | steps given up | limit cut |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|";

export function tableLine(what, name, f) {
    const low = f.classes?.find((one) => one.name === "batch");
    const fixed = (value, digits) => (Number.isFinite(value) ? value.toFixed(digits) : "");
    return `| ${[what, name, f.sent, f.unanswered, f.turnedAway, f.unfinished, fixed(f.ttftP50, 3), fixed(f.ttftP99, 3), fixed(f.tpotP50, 1), fixed(f.tpotP99, 1),
        fixed(f.batchFinished / f.seconds, 3), f.refused, fixed(f.tokensPerSecond, 0), low?.parked_total ?? "",
        low?.preempted_total ?? "", low?.interrupted_total ?? "", low?.cuts_total ?? ""].join(" | ")} |`;
}
