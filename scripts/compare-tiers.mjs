// compare-tiers.mjs - conversations that come back after a restart: quire serve --cache-dir beside
// llama-server's --cache-ram and slot files.
//
//   node scripts/compare-tiers.mjs --quire build/quire --peer DIR [--model FILE] [--rounds 3]
//                                  [--threads 2] [--dir DIR] [--quick] [--out FILE]
//
// `make compare-tiers` builds both sides and calls this. The load is in tiers/returning.mjs. Both
// servers have the same file of weights, the same number of threads, and KV of 16 bits and of 8.
// llama-server keeps prompts of other conversations in memory (--cache-ram); its slot is saved by
// hand after each turn, and restored by hand before the next one. Prints Markdown; --out writes it
// into a section of FILE.
//
// SPDX-License-Identifier: MIT
import { rmSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { readOptions, stopOf } from "./compare/options.mjs";
import { measuredOn, median, places, Report, shapeModel } from "./compare/tools.mjs";
import { ownFolder } from "./compare/work.mjs";
import { addRow, on, say, writeSection } from "./tiers/setting.mjs";
import { peerSide, QUICK_SIZES, quireSide, returning, SIZES, systems } from "./tiers/returning.mjs";

const TITLE = "A conversation after a restart, beside llama-server";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const options = readOptions("compare-tiers", {
    quire: { type: "string", default: join(root, "build", "quire") },
    peer: { type: "string" },
    generator: { type: "string", default: join(root, "build", "make_gguf") },
    model: { type: "string" },
    rounds: { type: "string", default: "3", whole: 1 },
    threads: { type: "string", default: `${Math.min(2, cpus().length)}`, whole: 1 },
    dir: { type: "string", default: tmpdir() },
    quick: { type: "boolean", default: false },
    out: { type: "string" },
});
if (!options.peer) {
    stopOf("compare-tiers")("--peer DIR (with llama-server) is needed; use `make compare-tiers`");
}
const at = places(root);
const folder = ownFolder(resolve(options.dir), "quire-returning");
process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
const c = { quire: options.quire, peer: options.peer, threads: options.threads, folder, report: new Report(),
    sizes: options.quick ? QUICK_SIZES : SIZES, model: options.model ?? shapeModel(options.generator, at.work, "smollm2-135m", "q8_0") };
const rounds = options.quick ? 1 : Number(options.rounds);

const sides = [quireSide(c, "q8"), quireSide(c, "f16"), peerSide(c, "f16"), peerSide(c, "q8_0")];
c.systems = await on(c.quire, sides[0].args(), (server) => systems(server.client, root, c.sizes));
const runs = sides.map(() => []);
for (let i = 0; i < rounds; i++) {
    for (const k of i % 2 ? [...sides.keys()].reverse() : sides.keys()) {
        runs[k].push(await returning(c, sides[k]));
        say(`${sides[k].name} ${i + 1}: ${JSON.stringify(runs[k].at(-1))}`);
    }
}

// Medians over rounds and conversations.
const all = (k, field) => runs[k].flatMap((figures) => figures[field] ?? []);
const ttft = (k, field) => median(all(k, field).map((turn) => turn.ms));
const cached = (k, field) => `${median(all(k, field).map((turn) => turn.cached))} of ${median(all(k, field).map((turn) => turn.tokens))}`;
const cell = (k, field) => (all(k, field).length === 0 ? "" : `${ttft(k, field).toFixed(0)} (${cached(k, field)})`);
const table = ["| server | next turn, no restart | cold | after SIGTERM | after SIGKILL | after SIGKILL, slot restored by hand | " +
    "one save by hand | MB on disk |", "|---|---:|---:|---:|---:|---:|---:|---:|"];
for (const k of sides.keys()) {
    const saves = all(k, "saves");
    table.push(`| ${sides[k].name} | ${["memory", "cold", "term", "kill", "restored"].map((f) => cell(k, f)).join(" | ")} | ` +
        `${saves.length === 0 ? "none" : median(saves).toFixed(0)} | ${(median(runs[k].map((r) => r.bytes)) / 1e6).toFixed(1)} |`);
}
for (const [ours, peers] of [[0, 3], [1, 2]]) {
    const what = `TTFT ms of the next turn after SIGKILL, ${sides[ours].name} : ${sides[peers].name}`;
    addRow(c, `${what}, slot restored by hand`, ttft(ours, "kill"), ttft(peers, "restored"), {});
    addRow(c, `${what}, nothing done by hand`, ttft(ours, "kill"), ttft(peers, "kill"), {});
}
const { conversations, turns, systemTokens, answerTokens } = c.sizes;
const head = `\`make compare-tiers\`. ${conversations} conversations with a system prompt of ${systemTokens} tokens each; ${turns} turns each ` +
    `with answers of ${answerTokens} tokens, then a restart, then the next turn. Cells are the TTFT in ms of that turn, with the time of a restore ` +
    "by hand; in brackets the tokens that were not computed, of those of the prompt. Medians of all rounds and conversations.";
const body = `${head}\n\n${c.report.markdown(measuredOn(options.quire, options.threads))}\n${table.join("\n")}\n`;
process.stdout.write(`## ${TITLE}\n\n${body}`);
if (options.out) {
    writeSection(options.out, TITLE, body);
}
