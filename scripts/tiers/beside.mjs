// beside.mjs - the cost of the directory for other requests: an answer beside requests that are
// read from disk; bytes written by a directory that is full.
//
// SPDX-License-Identifier: MIT
import { join } from "node:path";
import { median } from "../compare/tools.mjs";
import { addRow, ANSWER, ask, diskArgs, metric, metrics, on, say, serveArgs, SETTLE_MS, sleep, text } from "./setting.mjs";

const DECODE = { floor: 0.93, aim: 0.97 };
const AMPLIFICATION = { floor: 1.6, aim: 1.2, isLess: true };
const REQUESTS = 12, TEXTS = 8, SEED = 100, GAP_MS = 150; // requests while another answer is written, and their texts
const ANSWER_SEED = 1000, ANSWER_PROMPT = 64;
const FULL_SEED = 2000, FULL_TEXTS_A_ROUND = 4;

// The tokens/s of one long answer beside other requests. The texts of these are in memory, or have
// to be read. Each of them computes one token, so the difference is the cost of reading.
async function answerRate(c, server, isFetching) {
    const answer = ask(server, text(ANSWER_SEED, ANSWER_PROMPT), ANSWER);
    const others = Promise.all(Array.from({ length: REQUESTS }, async (_, i) => {
        await sleep(GAP_MS * i);
        return ask(server, text(SEED + (isFetching ? i % TEXTS : 0), c.tokens), 1);
    }));
    const reply = await answer;
    await others;
    return (reply.pieces - 1) / (reply.lastMs - reply.firstMs) * 1e3;
}

// Store the texts; bytes of one of them.
async function storeTexts(c, args) {
    await on(c.quire, args, async (server) => {
        for (let i = 0; i < TEXTS; i++) {
            await ask(server, text(SEED + i, c.tokens), 1);
        }
    });
    return on(c.quire, args, async (server) => {
        await ask(server, text(SEED, c.tokens), 1);
        return metric(server, "quire_tier_read_bytes_total");
    });
}

export async function beside(c) {
    const args = [...serveArgs(c, c.model, c.tokens), ...diskArgs(join(c.folder, "beside")), "--store-all"];
    // The KV budget holds half of the texts: each text that is read drives out an earlier one.
    const budget = Math.ceil((TEXTS / 2 + 1) * await storeTexts(c, args));
    const inMemory = [], fetched = [], read = [];
    for (let i = 0; i < c.rounds; i++) {
        await on(c.quire, [...args, "--kv-budget", `${budget}`], async (server) => {
            await ask(server, text(ANSWER_SEED, ANSWER_PROMPT), 8);
            // The kernel clears memory at its first use. A server that has run for a while uses its
            // whole KV budget. So the texts fill the budget here, and neither of the two answers
            // pays for the clearing.
            for (let k = TEXTS - 1; k >= 0; k--) {
                await ask(server, text(SEED + k, c.tokens), 1);
            }
            await sleep(SETTLE_MS);
            inMemory.push(await answerRate(c, server, false));
            await sleep(SETTLE_MS);
            const before = await metric(server, "quire_tier_read_bytes_total");
            fetched.push(await answerRate(c, server, true));
            read.push((await metric(server, "quire_tier_read_bytes_total") - before) / 1e6);
        });
        say(`answer ${i + 1}: beside hits in memory ${inMemory.at(-1).toFixed(1)} tokens/s, beside fetches ` +
            `${fetched.at(-1).toFixed(1)} (${read.at(-1).toFixed(0)} MB read)`);
    }
    addRow(c, "tokens/s of an answer beside requests read from disk : in memory", median(fetched), median(inMemory), DECODE,
        `${REQUESTS} requests, ${median(read).toFixed(0)} MB read`);
}

export async function full(c) {
    const args = [...serveArgs(c, c.model, c.tokens), ...diskArgs(join(c.folder, "full"), "512MiB"), "--store-all"];
    const written = await on(c.quire, args, async (server) => {
        for (let i = 0; i < FULL_TEXTS_A_ROUND * c.rounds; i++) {
            await ask(server, text(FULL_SEED + i, c.tokens), 1);
            await ask(server, text(FULL_SEED + Math.max(0, i - 3), c.tokens), 1); // some are used again
        }
        await sleep(SETTLE_MS);
        const body = await metrics(server);
        const of = (what) => Number(body.match(new RegExp(`^quire_tier_written_bytes_total\\{[^}]*what="${what}"[^}]*\\} (\\S+)$`, "m"))?.[1]);
        return { all: of("all"), records: of("records") };
    });
    addRow(c, "MB written : MB of records, a full directory", written.all / 1e6, written.records / 1e6, AMPLIFICATION);
}
