// compare.mjs - Quire and llama.cpp side by side, in one run, on one machine.
//
//   node scripts/compare.mjs --quire build/quire --peer DIR [--only quality,speed,memory] [--threads 2] [--out FILE]
//
// `make compare` builds both sides and calls this. Prints one line per row as it is measured and a
// Markdown table at the end; exits 1 if a bar was missed or a row failed. Rows whose model is absent are skipped by name.
//
// SPDX-License-Identifier: MIT
import { writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { longContext } from "./compare/memory.mjs";
import { bandPerplexity, exactPerplexity, q8Divergence } from "./compare/quality.mjs";
import { race } from "./compare/speed.mjs";
import { Report, machine, places, run } from "./compare/tools.mjs";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const { values: options } = parseArgs({
    options: {
        quire: { type: "string", default: join(root, "build", "quire") },
        peer: { type: "string" },
        generator: { type: "string", default: join(root, "build", "make_gguf") },
        only: { type: "string", default: "quality,speed,memory" },
        threads: { type: "string", default: `${Math.min(2, cpus().length)}` },
        chunks: { type: "string", default: "3" },
        out: { type: "string" },
    },
});
if (!options.peer) {
    process.stderr.write("compare: --peer DIR (with llama-bench and llama-perplexity) is needed; use `make compare`\n");
    process.exit(2);
}

const at = places(root);
const c = { quire: options.quire, peer: options.peer, threads: Number(options.threads), work: at.work };
const report = new Report();
const parts = ["quality", "speed", "memory"];
const only = new Set(options.only.split(","));
for (const part of only) {
    if (!parts.includes(part)) {
        process.stderr.write(`compare: --only '${part}' is unknown: it takes ${parts.join(", ")}, comma-separated\n`);
        process.exit(2);
    }
}
const data = (name) => join(at.shared, "data", name);
const model = (name) => join(at.shared, "models", name);

const stories260K = { headDim: 8, name: "stories260K-f32", model: model("stories260K-f32.gguf"), text: data("tinystories.txt"),
    ctx: 512, chunks: 20 };
const tinyLlama = { headDim: 64, name: "TinyLlama IQ2_XXS", model: join(at.cache, "models", "tinyllama-1.1b-chat-iq2_xxs.gguf"),
    text: data("wiki.test.raw"), ctx: 2048, chunks: Number(options.chunks) };
const stories15M = { headDim: 48, name: "stories15M Q8_0", model: model("stories15M-q8_0.gguf"), text: data("tinystories.txt"),
    ctx: 256, chunks: 100 };
const miniMind = { headDim: 64, name: "minimind2-small Q8_0", model: model("minimind2-small-q8_0.gguf"), text: data("moby-dick.txt"),
    ctx: 8192, chunks: 4 };

// A side that fails costs its row, not what was measured before.
function row(measure, s) {
    try {
        measure(c, report, s);
    } catch (error) {
        report.add({ what: `${measure.name}, ${s.name}`, verdict: "failed", note: error.message.replaceAll("\n", " ") });
    }
}

// A model of SmolLM2-135M's shape with random weights, generated once per format version.
function smolShape() {
    const path = join(at.work, "smollm2-135m-shape-q8_0.gguf");
    run(options.generator, ["--shape", "smollm2-135m", "--type", "q8_0", "--ctx", "65536", "--seed", "1", "-o", path]);
    return { name: "SmolLM2-135M shape Q8_0", model: path };
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
if (only.has("speed")) {
    const smol = smolShape();
    const f16 = [{ kv: "f16", fa: "off" }, { kv: "f16", fa: "on" }];
    for (const m of [tinyLlama, smol]) {
        row(race, { ...m, depth: 0, prompt: 512, kv: "f16", peer: f16, bar: 0.95 });
        row(race, { ...m, depth: 0, gen: 32, kv: "f16", peer: f16, bar: 0.95 });
    }
    row(race, { ...smol, depth: 8192, gen: 32, kv: "q8", peer: f16, bar: 1.5, rounds: 2 });
    row(race, { ...smol, depth: 8192, gen: 32, kv: "f16", peer: f16, rounds: 1 });
    row(race, { ...smol, depth: 8192, prompt: 512, kv: "q8", peer: f16, rounds: 1 });
}

const version = run(options.quire, ["--version"]).stdout.match(/ggml ([\d.]+)/)?.[1] ?? "unknown";
const table = report.markdown({ ...machine(), threads: c.threads, ggml: version });
process.stdout.write(table);
if (options.out) {
    writeFileSync(options.out, `# quire and llama.cpp side by side\n\n\`make compare\`. ${table}`);
}
process.exit(report.failed() > 0 ? 1 : 0);
