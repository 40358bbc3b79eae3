// restart.mjs - a text that comes back after a restart of the server: its pages are read from the
// directory.
//
// In each round, with a text of its own:
//
//   cold      the text's first request on a server that has not seen it
//   warm      the same text again after a restart of the server
//   plain     cold again, without a directory: the difference is the directory's cost for a miss
//
// SPDX-License-Identifier: MIT
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { median } from "../compare/tools.mjs";
import { addRow, ask, directRate, diskArgs, metric, on, say, serveArgs, text } from "./setting.mjs";

const RATE = { floor: 0.7, aim: 0.85 };
const DISK_RATES = 3;

async function round(c, { model, nTokens }, dir, seed) {
    const plainArgs = serveArgs(c, model, nTokens), args = [...plainArgs, ...diskArgs(dir)];
    const prompt = text(seed, nTokens);
    const cold = (await on(c.quire, args, (server) => ask(server, prompt))).firstMs;
    const figures = await on(c.quire, args, async (server) => {
        const warm = (await ask(server, prompt)).firstMs;
        return { warm, cached: await metric(server, "quire_tier_fetched_tokens_total"),
            rate: await metric(server, "quire_tier_read_bytes_total") / await metric(server, "quire_tier_fetch_seconds_sum") };
    });
    const plain = (await on(c.quire, plainArgs, (server) => ask(server, prompt))).firstMs;
    say(`round ${seed}: cold ${cold.toFixed(0)} ms, after a restart ${figures.warm.toFixed(1)} ms (${figures.cached} tokens read at ` +
        `${(figures.rate / 1e6).toFixed(0)} MB/s), without a directory ${plain.toFixed(0)} ms`);
    return { ...figures, cold, plain };
}

// of: { model, name, nTokens, target, rounds }: target of the ratio warm : cold.
export async function restart(c, of) {
    const dir = mkdtempSync(join(c.folder, "restart-"));
    const rounds = [];
    for (let i = 0; i < of.rounds; i++) {
        rounds.push(await round(c, of, dir, i + 1));
    }
    const segments = readdirSync(dir).filter((name) => name.startsWith("segment-")).map((name) => join(dir, name));
    const disk = median(Array.from({ length: DISK_RATES }, () => directRate(segments)));
    const middle = (field) => median(rounds.map((r) => r[field]));
    addRow(c, `TTFT ms, ${of.nTokens} tokens, ${of.name}, after a restart : cold`, middle("warm"), middle("cold"), of.target,
        `${middle("cached")} tokens read`);
    addRow(c, "TTFT ms, cold with an empty directory : without a directory", middle("cold"), middle("plain"), {});
    addRow(c, "MB/s of records while fetching : dd with O_DIRECT", middle("rate") / 1e6, disk / 1e6, of.isRateJudged ? RATE : {});
    rmSync(dir, { recursive: true });
}
