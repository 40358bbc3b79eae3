// bench-tiers.mjs - stores below memory: time to the first token after a restart, rates, what they
// cost others, faults.
//
//   node scripts/bench-tiers.mjs --quire build/quire
//                                [--only restart,tinyllama,beside,full,overflow,hung] [--rounds 5]
//                                [--tokens 4096] [--kv q8] [--threads 2] [--model FILE]
//                                [--tinyllama FILE] [--dir DIR] [--prompts 100] [--quick]
//                                [--out FILE]
//
// `make bench-tiers` builds the program and calls this. The parts, each in a file of tiers/:
//
//   restart    a text of --tokens comes back after a restart: TTFT, reading rate
//   tinyllama  the same with 1,900 tokens and TinyLlama's shape; --tinyllama FILE takes the real
//              model, or another one
//   beside     the tokens/s of an answer beside requests whose texts are read
//   full       the bytes that a full directory writes
//   overflow   decode of a text whose KV is four times the budget
//   hung       the TTFT of a server whose shared store hangs, is dead, or is full (needs
//              redis-server or valkey-server)
//
// Models are generated shapes unless a file is given. Targets stand in the parts. Prints Markdown;
// --out writes it into the sections of FILE, one by part. A section stays as it is if its part was
// skipped or failed. Exits 1 if a part failed or a floor was missed. `make compare-tiers` compares
// with llama-server.
//
// SPDX-License-Identifier: MIT
import { rmSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { readOptions } from "./compare/options.mjs";
import { measuredOn, places, Report, shapeModel } from "./compare/tools.mjs";
import { ownFolder } from "./compare/work.mjs";
import { beside, full } from "./tiers/beside.mjs";
import { hung } from "./tiers/hung.mjs";
import { overflow } from "./tiers/overflow.mjs";
import { restart } from "./tiers/restart.mjs";
import { writeSection } from "./tiers/setting.mjs";

const RESTART = { floor: 0.04, aim: 0.02, isLess: true };
const TINYLLAMA = { floor: 0.015, aim: 0.01, isLess: true };
const TINYLLAMA_TOKENS = 1900; // its context is 2,048

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const NAMES = ["restart", "tinyllama", "beside", "full", "overflow", "hung"];
const options = readOptions("bench-tiers", {
    quire: { type: "string", default: join(root, "build", "quire") },
    generator: { type: "string", default: join(root, "build", "make_gguf") },
    only: { type: "string", default: NAMES.join(","), known: NAMES, isList: true },
    model: { type: "string" },
    tinyllama: { type: "string" },
    tokens: { type: "string", default: "4096", whole: 1 },
    rounds: { type: "string", default: "5", whole: 1 },
    prompts: { type: "string", default: "100", whole: 1 },
    kv: { type: "string", default: "q8" },
    threads: { type: "string", default: `${Math.min(2, cpus().length)}`, whole: 1 },
    dir: { type: "string", default: tmpdir() },
    quick: { type: "boolean", default: false },
    out: { type: "string" },
});

const at = places(root);
const folder = ownFolder(resolve(options.dir), "quire-tiers");
process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
const shape = (name) => shapeModel(options.generator, at.work, name, "q8_0");
const c = {
    quire: options.quire, folder, threads: options.threads, kv: options.kv, isQuick: options.quick,
    model: options.model ?? shape("smollm2-135m"), tokens: options.quick ? 1024 : Number(options.tokens),
    rounds: options.quick ? 1 : Number(options.rounds), prompts: options.quick ? 10 : Number(options.prompts),
};

const PARTS = {
    restart: { title: "After a restart", task: () => restart(c, { model: c.model, name: options.model ? basename(options.model) :
        "SmolLM2-135M's shape", nTokens: c.tokens, target: RESTART, rounds: c.rounds, isRateJudged: true }) },
    tinyllama: { title: "TinyLlama after a restart", task: () => restart(c, { model: options.tinyllama ?? shape("tinyllama-1.1b"),
        name: options.tinyllama ? basename(options.tinyllama) : "TinyLlama-1.1B's shape", nTokens: TINYLLAMA_TOKENS,
        target: TINYLLAMA, rounds: c.rounds }) },
    beside: { title: "Others while pages are read", task: () => beside(c) },
    full: { title: "A full directory", task: () => full(c) },
    overflow: { title: "Texts larger than memory", task: () => overflow(c) },
    hung: { title: "A shared store that fails", task: () => hung(c) },
};

let failed = 0;
for (const part of options.only.split(",")) {
    c.report = new Report();
    try {
        await PARTS[part].task();
    } catch (error) {
        c.report.add({ what: part, verdict: "failed", note: error.message.split("\n")[0] });
        process.stderr.write(`${error.message}\n`);
    }
    failed += c.report.failed();
    const body = c.report.markdown(measuredOn(options.quire, options.threads));
    process.stdout.write(`## ${PARTS[part].title}\n\n${body}\n`);
    const left = c.report.rows.find((row) => ["failed", "skipped"].includes(row.verdict));
    if (options.out && left) {
        process.stderr.write(`bench-tiers: ${options.out}: the section of ${part} stays as it is: ${left.verdict}, ${left.note}\n`);
    } else if (options.out) {
        writeSection(options.out, PARTS[part].title, `\`make bench-tiers ARGS="--only ${part}"\`. ${body}`);
    }
}
process.exit(failed > 0 ? 1 : 0);
