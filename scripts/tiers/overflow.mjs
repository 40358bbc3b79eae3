// overflow.mjs - decode of a text with KV of four times the budget, beside the bound by the disk's
// bandwidth.
//
// Each token reads the three quarters of the KV that do not fit from the disk once. So the bound is
// the bandwidth divided by these bytes. dd with O_DIRECT measures the bandwidth right before and
// after each run, alone and several at once; the fastest rate counts.
//
// SPDX-License-Identifier: MIT
import { execFileSync } from "node:child_process";
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { median, runJson } from "../compare/tools.mjs";
import { addRow, directRate, directRateAtOnce, say } from "./setting.mjs";

const DECODE = { floor: 0.6, aim: 0.8 };
const DEPTH = 32768, QUICK_DEPTH = 8192;
const SHARE_IN_MEMORY = 1 / 4;
const FILE_MIB = 1024;
const AT_ONCE = 4;

async function diskRates(file) {
    return { one: directRate([file]), atOnce: await directRateAtOnce(file, AT_ONCE) };
}

const show = (rates) => `${(rates.one / 1e6).toFixed(0)} MB/s, ${AT_ONCE} at once ${(rates.atOnce / 1e6).toFixed(0)} MB/s`;

export async function overflow(c) {
    const depth = c.isQuick ? QUICK_DEPTH : DEPTH;
    const dir = join(c.folder, "overflow"), file = join(dir, "random");
    mkdirSync(dir, { recursive: true });
    execFileSync("dd", ["if=/dev/urandom", `of=${file}`, "bs=1M", `count=${FILE_MIB}`, "conv=fsync"], { stdio: "ignore" });
    const args = ["bench", c.model, "-t", c.threads, "--fill", "fast", "-d", `${depth}`, "--kv", c.kv, "-p", "0", "-n", "32", "-r", "3", "--json"];
    const [whole] = runJson(c.quire, args);
    const bytes = whole.kv_computed_bytes, budget = Math.ceil(SHARE_IN_MEMORY * bytes);
    const outside = bytes - budget;
    say(`all in memory: ${whole.tokens_per_second.toFixed(1)} tokens/s, KV ${(bytes / 1e6).toFixed(0)} MB`);
    const rates = [], alloweds = [], allowedByOne = [], read = [];
    for (let i = 0; i < c.rounds; i++) {
        const before = await diskRates(file);
        const [part] = runJson(c.quire, [...args, "--kv-budget", `${budget}`, "--cache-dir", dir]);
        const after = await diskRates(file);
        rates.push(part.tokens_per_second);
        read.push(part.step_file_bytes);
        alloweds.push(Math.max(before.one, before.atOnce, after.one, after.atOnce) / outside);
        allowedByOne.push((before.one + after.one) / 2 / outside);
        say(`overflow ${i + 1}: ${rates.at(-1).toFixed(2)} tokens/s, ${(read.at(-1) / 1e6).toFixed(0)} MB read per token; disk before: ` +
            `${show(before)}; after: ${show(after)}; allows ${alloweds.at(-1).toFixed(2)} tokens/s`);
    }
    const what = `tokens/s at ${depth} tokens with memory for a quarter of the KV`;
    const note = `${(budget / 1e6).toFixed(0)} of ${(bytes / 1e6).toFixed(0)} MB; ${(median(read) / 1e6).toFixed(0)} MB read per token`;
    addRow(c, `${what} : what the disk's bandwidth allows`, median(rates), median(alloweds), DECODE, note);
    addRow(c, `${what} : what one dd's rate allows`, median(rates), median(allowedByOne), {});
    addRow(c, `${what} : all in memory`, median(rates), whole.tokens_per_second, {});
}
