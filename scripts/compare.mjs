// compare.mjs - Quire and llama.cpp side by side, in one run, on one machine.
//
//   node scripts/compare.mjs --quire build/quire --peer DIR [--only quality,speed,...]
//        [--threads 2] [--out FILE]
//
// `make compare` builds both sides and calls this. Prints one line per row as it is measured and a
// Markdown table at the end; exits 1 if a floor was missed or a row failed. A row without its model
// is skipped, and the output names it.
//
// Parts: quality, speed, 32k (decode at that depth), cascade (sequences that share a prefix) and
// memory by default; 1b, 1b-32k and 7b repeat the first rows of speed on larger shapes; their
// models are made in the cache folder (0.7 and 7.2 GB). families races models with experts,
// windows, delta nets and latent attention; qwen3-30b-a3b, gpt-oss, gemma3, qwen3.5 and deepseek-v2
// name one of them (17, 12, 2.2, 2.7 and 9 GB; an absent one is made). llama-bench computes its
// depths, so 32k takes minutes and 7b an hour. perplexity-families scores a random text with small
// models of all architectures in all quantisations, half an hour; --families llama,gemma3 and
// --types q4_k_m,iq2_xxs choose some. --quick runs toy depths and toys of the larger shapes, to try
// the scripts out.
//
// SPDX-License-Identifier: MIT
import { writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { choice, perplexityFamilies } from "./compare/families.mjs";
import { cacheBytes, fits, longContext } from "./compare/memory.mjs";
import { readOptions, stopOf } from "./compare/options.mjs";
import { bandPerplexity, exactPerplexity, q8Divergence } from "./compare/quality.mjs";
import { shapedModels } from "./compare/shapes.mjs";
import { cascade, race } from "./compare/speed.mjs";
import { cascades, families, familyMemory, quick, races } from "./compare/targets.mjs";
import { Report, asset, measuredOn, places } from "./compare/tools.mjs";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const stop = stopOf("compare");
const parts = ["quality", "perplexity-families", "memory", ...Object.keys(races), "cascade"];
const options = readOptions("compare", {
    quire: { type: "string", default: join(root, "build", "quire") },
    peer: { type: "string" },
    generator: { type: "string", default: join(root, "build", "make_gguf") },
    only: { type: "string", default: "quality,speed,32k,cascade,memory", known: ["families", ...parts], isList: true },
    threads: { type: "string", default: `${Math.min(2, cpus().length)}`, whole: 1 },
    chunks: { type: "string", default: "3", whole: 1 },
    families: { type: "string" },
    types: { type: "string" },
    quick: { type: "boolean", default: false },
    out: { type: "string" },
});
if (!options.peer) {
    stop("--peer DIR (with llama-bench and llama-perplexity) is needed; use `make compare`");
}

const at = places(root);
const c = { quire: options.quire, generator: options.generator, peer: options.peer, threads: Number(options.threads), work: at.work };
const report = new Report();
const only = new Set(options.only.split(",").flatMap((part) => (part === "families" ? families : [part])));
// Asked for before the first row: a wrong name must not cost the rows that were measured.
let chosenFamilies;
try {
    chosenFamilies = only.has("perplexity-families") ? choice(c.generator, options) : undefined;
} catch (error) {
    stop(error.message);
}
const data = (name) => asset(at, name);
const model = data;

const stories260K = { headDim: 8, name: "stories260K-f32", model: model("stories260K-f32.gguf"), text: data("tinystories.txt"),
    ctx: 512, chunks: 20 };
const tinyLlama = { headDim: 64, name: "TinyLlama IQ2_XXS", model: model("tinyllama-1.1b-chat-iq2_xxs.gguf"),
    text: data("wiki.test.raw"), ctx: 2048, chunks: Number(options.chunks) };
const stories15M = { headDim: 48, name: "stories15M Q8_0", model: model("stories15M-q8_0.gguf"), text: data("tinystories.txt"),
    ctx: 256, chunks: 100 };
const miniMind = { headDim: 64, name: "minimind2-small Q8_0", model: model("minimind2-small-q8_0.gguf"), text: data("moby-dick.txt"),
    ctx: 8192, chunks: 4 };

// When a side fails, its row fails; earlier rows stay.
function row(measure, s) {
    try {
        measure(c, report, s.raced ? point(s) : s);
    } catch (error) {
        report.add({ what: `${measure.name}, ${s.name ?? s.raced}`, verdict: "failed", note: error.message.replaceAll("\n", " ") });
    }
}

const raced = { tinyLlama, ...shapedModels(options.generator, at.work, { isQuick: options.quick }) };
function point(p) {
    return { ...(options.quick ? quick(p) : p), ...raced[p.raced] };
}

if (only.has("quality")) {
    row(exactPerplexity, stories260K);
    row(bandPerplexity, stories15M);
    row(bandPerplexity, miniMind);
    row(bandPerplexity, { ...tinyLlama, agreement: true });
    row(q8Divergence, { ...stories260K, chunks: 10 });
    row(q8Divergence, { ...stories15M, chunks: 20 });
    row(q8Divergence, { ...miniMind, ctx: 2048, chunks: 2 });
    row(q8Divergence, { ...tinyLlama, bar: 1.15 });
}
if (only.has("memory")) {
    row(longContext, { ...miniMind, ctx: 32768, kv: "f16" });
    row(longContext, { ...miniMind, ctx: 32768, kv: "q8" });
}
const memoryRows = { fits, cacheBytes };
for (const [part, points] of Object.entries(races)) {
    for (const p of only.has(part) ? points : []) {
        row(race, p);
    }
    for (const { measure, ...s } of only.has(part) ? familyMemory[part] ?? [] : []) {
        row(memoryRows[measure], s);
    }
}
for (const p of only.has("cascade") ? cascades : []) {
    row(cascade, p);
}

let cells = "";
if (chosenFamilies !== undefined) {
    try {
        cells = perplexityFamilies(c, report, chosenFamilies);
    } catch (error) {
        report.add({ what: "perplexity of all families", verdict: "failed", note: error.message.replaceAll("\n", " ") });
    }
}

const table = report.markdown(measuredOn(options.quire, c.threads)) + cells;
process.stdout.write(table);
if (options.out) {
    writeFileSync(options.out, `# quire and llama.cpp side by side\n\n\`make compare\`. ${table}`);
}
process.exit(report.failed() > 0 ? 1 : 0);
