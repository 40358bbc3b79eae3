// bench-7b.mjs - a 7B model of Llama-2's shape with 32,768 tokens of KV: what it takes and how fast it decodes.
//
//   node scripts/bench-7b.mjs --quire build/quire --generator build/make_gguf [--rows q8_0/q8,f16/q4] [--limit 23.8e9]
//                             [--depth 32768] [--gen 8] [--repeats 3] [--threads 2] [--keep] [--out FILE]
//
// A row is weights/KV. The need that `quire info` works out stands beside the peak of resident memory, which is
// read from outside (VmHWM of the process) and told by the program itself. A row whose need is over the limit must
// be refused before anything is loaded; any other must stay below it. The models (7.2 and 13.5 GB) are made in
// the cache folder when they are missing, and the one with f16 weights is removed again (--keep leaves it).
// Exits 1 if a row failed, stayed unrefused or went over the limit.
//
// SPDX-License-Identifier: MIT
import { rmSync, writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { machine, places, runJson, shapeModel, watch } from "./compare/tools.mjs";

const SHAPE = "llama2-7b";
const REFUSED_BYTES_MAX = 256e6; // resident when refused: the vocabulary and the program, no weights

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const { values: options } = parseArgs({
    options: {
        quire: { type: "string", default: join(root, "build", "quire") },
        generator: { type: "string", default: join(root, "build", "make_gguf") },
        rows: { type: "string", default: "q8_0/f16,q8_0/q8,q8_0/q4,f16/q8,f16/q4" },
        limit: { type: "string", default: "23.8e9" },
        depth: { type: "string", default: "32768" },
        gen: { type: "string", default: "8" },
        repeats: { type: "string", default: "3" },
        threads: { type: "string", default: `${Math.min(2, cpus().length)}` },
        keep: { type: "boolean", default: false },
        out: { type: "string" },
    },
});
const limit = Number(options.limit);
const ctx = Number(options.depth) + Number(options.gen);
const work = places(root).work;
const gb = (bytes) => (bytes / 1e9).toFixed(2);

async function measure(model, row) {
    const common = ["--kv", row.kv, "--memory-limit", `${limit}`];
    const need = runJson(options.quire, ["info", model, "--json", "-c", `${ctx}`, ...common]).need;
    const done = await watch(options.quire, ["bench", "--json", "-m", model, "-p", "0", "-n", options.gen, "-r",
        options.repeats, "-d", options.depth, "-t", options.threads, "--fill", "fast", ...common]);
    const result = { ...row, need, peak: done.peakBytes };
    if (!need.fits) {
        const isRefused = done.status === 1 && done.stderr.includes("too much") && done.peakBytes < REFUSED_BYTES_MAX;
        return { ...result, verdict: isRefused ? `refused, ${gb(need.missing_bytes)} GB too much` : "NOT REFUSED" };
    }
    if (done.status !== 0) {
        return { ...result, verdict: `FAILED: ${done.stderr.trim().split("\n").at(-1)}` };
    }
    const [measured] = JSON.parse(done.stdout);
    const peak = Math.max(done.peakBytes, measured.resident_peak_bytes);
    return { ...result, measured, verdict: peak < limit ? "fits" : "OVER THE LIMIT" };
}

function line(r) {
    const m = r.measured;
    const cells = [r.weights, r.kv, gb(r.need.weights_bytes), gb(r.need.kv_bytes), gb(r.need.buffers_bytes + r.need.program_bytes),
        gb(r.need.total_bytes), gb(r.peak), m ? gb(m.resident_peak_bytes) : "", m ? (1000 / m.tokens_per_second).toFixed(0) : "",
        m ? `${(100 * m.attention_roofline_share).toFixed(0)} %` : "", m ? `${(100 * m.roofline_share).toFixed(0)} %` : "",
        r.verdict];
    return `| ${cells.join(" | ")} |`;
}

const rows = options.rows.split(",").map((text) => {
    const [weights, kv] = text.split("/");
    return { weights, kv };
});
const results = [];
for (const weights of new Set(rows.map((row) => row.weights))) {
    const model = shapeModel(options.generator, work, SHAPE, weights);
    for (const row of rows.filter((r) => r.weights === weights)) {
        results.push(await measure(model, row));
        process.stderr.write(`${line(results.at(-1))}\n`);
    }
    if (weights === "f16" && !options.keep) {
        rmSync(model);
    }
}

const facts = machine();
const bandwidth = results.find((r) => r.measured)?.measured.read_bandwidth_bytes_per_second;
const table = `Machine: ${facts.cpu}, ${facts.cores} cores, ${facts.memory_gib} GiB; ${facts.date}; ${options.threads} threads` +
    `${bandwidth ? `, reads ${gb(bandwidth)} GB/s` : ""}. Llama-2-7B's shape, ${options.depth} tokens of KV filled fast, limit ` +
    `${gb(limit)} GB. Sizes in GB; "VmHWM" is seen from outside, "told" by the program.\n\n` +
    "| weights | KV | weights | + KV | + buffers, program | = need | VmHWM | told | ms/token | attention of its roofline | " +
    "step of its roofline | |\n" +
    `|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n${results.map(line).join("\n")}\n`;
process.stdout.write(table);
if (options.out) {
    writeFileSync(options.out, `# Seven billion parameters at 32K\n\n\`make bench-7b\`. ${table}`);
}
process.exit(results.some((r) => /^[A-Z]{2}/.test(r.verdict)) ? 1 : 0);
