// setting.mjs - helpers that the parts of `make bench-tiers` share: servers, texts of token ids,
// requests, the disk's rate.
//
// SPDX-License-Identifier: MIT
import { execFileSync, spawn } from "node:child_process";
import { readFileSync, statSync, writeFileSync, existsSync } from "node:fs";
import { bound, verdict } from "../serve/race.mjs";
import { Server } from "../serve/server.mjs";
import { randomFrom } from "../serve/texts.mjs";

export const ANSWER = 256; // tokens of a long answer
export const SETTLE_MS = 3000; // writing goes on after a request

export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
export const say = (text) => process.stderr.write(`${text}\n`);

// A text of n random token ids; vocabularies from 32,000 tokens have them all.
export function text(seed, n) {
    const random = randomFrom(seed);
    return Array.from({ length: n }, () => 1000 + Math.floor(random() * 20000));
}

export async function ask(server, prompt, maxTokens = 4) {
    const reply = await server.client.stream("/v1/completions", { model: "m", prompt, max_tokens: maxTokens, temperature: 0, stream: true,
        ignore_eos: true });
    if (reply.error) {
        throw new Error(`${reply.error}\n${server.said}`);
    }
    return reply;
}

export async function metrics(server) {
    return (await server.client.json("GET", "/metrics")).body;
}

export async function metric(server, name) {
    const line = (await metrics(server)).split("\n").find((l) => l.startsWith(`${name} `) || l.startsWith(`${name}{`));
    return Number(line?.split(" ").at(-1));
}

// A task with a server of its own, which ends afterwards.
export async function on(program, args, task) {
    const server = await Server.start(program, args);
    try {
        return await task(server);
    } finally {
        await server.stop();
    }
}

// quire serve: the context has room for n tokens and a long answer.
export function serveArgs(c, model, n) {
    const context = 64 * Math.ceil((n + 2 * ANSWER) / 64);
    return ["serve", "-m", model, "-t", c.threads, "-c", `${context}`, "--kv", c.kv];
}

export const diskArgs = (dir, disk = "8GiB") => ["--cache-dir", dir, "--cache-disk", disk, "--store-write-rate", "0"];

// A row with a ratio, judged by its target: { floor, aim, isLess }.
export function addRow(c, what, ours, theirs, target, note) {
    c.report.add({ what, ours, theirs, ratio: ours / theirs, floor: bound(target.floor, target), aim: bound(target.aim, target),
        verdict: target.floor === undefined ? "reported" : verdict(ours / theirs, target), note });
}

// Bytes per second of dd with O_DIRECT that reads files in order, in blocks of 1 MiB.
export function directRate(files) {
    const bytes = files.reduce((sum, f) => sum + statSync(f).size, 0);
    const begin = performance.now();
    files.forEach((f) => execFileSync("dd", [`if=${f}`, "of=/dev/null", "bs=1M", "iflag=direct"], { stdio: "ignore" }));
    return bytes / (performance.now() - begin) * 1e3;
}

// The same with n processes at once, each with a part of the file.
export async function directRateAtOnce(file, n) {
    const part = Math.floor(statSync(file).size / n / 2 ** 20);
    const begin = performance.now();
    const ends = await Promise.all(Array.from({ length: n }, (_, i) => new Promise((done) => {
        const child = spawn("dd", [`if=${file}`, "of=/dev/null", "bs=1M", "iflag=direct", `skip=${i * part}`, `count=${part}`],
            { stdio: "ignore" });
        child.on("error", (error) => done(error.message));
        child.on("close", done);
    })));
    if (ends.some((end) => end !== 0)) {
        throw new Error(`dd with O_DIRECT of ${file} failed: ${ends.join(", ")}`);
    }
    return n * part * 2 ** 20 / (performance.now() - begin) * 1e3;
}

// A result file has a section by part: replace that one, or add it at the end.
export function writeSection(file, title, section) {
    const head = "# Pages on disk\n\n";
    const old = existsSync(file) ? readFileSync(file, "utf8") : head;
    const sections = old.split(/^(?=## )/m);
    const i = sections.findIndex((s) => s.startsWith(`## ${title}\n`));
    sections.splice(i < 0 ? sections.length : i, i < 0 ? 0 : 1, `## ${title}\n\n${section.trimEnd()}\n\n`);
    writeFileSync(file, `${sections.map((s) => s.trimEnd()).join("\n\n")}\n`);
}
