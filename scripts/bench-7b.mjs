// bench-7b.mjs - memory and decode rate of a 7B model of Llama-2's shape with 32,768 tokens of KV.
//
//   node scripts/bench-7b.mjs --quire build/quire --generator build/make_gguf
//                             [--rows q8_0/q8,f16/q4] [--limit 23.8e9] [--depth 32768] [--gen 8]
//                             [--repeats 3] [--threads 2] [--keep] [--out FILE] [--chunk 512]
//                             [--batch 512] [--text FILE]
//
// A row is weights/KV, or weights/KV+POLICY for a text that keeps a share of its tokens (--retain;
// --chunk tokens are held in full beside the share, and steps have --batch tokens, by default as
// many as a chunk). The prompt of a row with a policy is computed, which takes most of an hour; the
// KV of other rows is filled fast. The need that `quire info` (or the run itself) computes stands
// beside the peak of resident memory, from VmHWM of the process and from the program's own report.
// A row with a need over the limit must be refused before anything is loaded; any other row must
// stay below the limit. The models (7.2 and 13.5 GB) are made in the cache folder when they are
// missing, and the one with f16 weights is removed again (--keep leaves it). Exits 1 if a row
// failed, stayed unrefused or went over the limit; a row that failed leaves the others.
//
// SPDX-License-Identifier: MIT
import { existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { readOptions, stopOf } from "./compare/options.mjs";
import { asset, machine, missing, places, runJson, shapeModel, watch } from "./compare/tools.mjs";

const SHAPE = "llama2-7b";
const REFUSED_BYTES_MAX = 256e6; // resident when refused: the vocabulary and the program, no weights

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const stop = stopOf("bench-7b");
const options = readOptions("bench-7b", {
    quire: { type: "string", default: join(root, "build", "quire") },
    generator: { type: "string", default: join(root, "build", "make_gguf") },
    rows: { type: "string", default: "q8_0/f16,q8_0/q8,q8_0/q4,f16/q8,f16/q4,f16/f16+entropy:0.5" },
    chunk: { type: "string", default: "512", whole: 1 },
    batch: { type: "string", whole: 1 },
    text: { type: "string" },
    limit: { type: "string", default: "23.8e9", above: 0 },
    depth: { type: "string", default: "32768", whole: 1 },
    gen: { type: "string", default: "8", whole: 1 },
    repeats: { type: "string", default: "3", whole: 1 },
    threads: { type: "string", default: `${Math.min(2, cpus().length)}`, whole: 1 },
    keep: { type: "boolean", default: false },
    out: { type: "string" },
});
const limit = Number(options.limit);
const ctx = Number(options.depth) + Number(options.gen);
const work = places(root).work;
const gb = (bytes) => (bytes === undefined ? "" : (bytes / 1e9).toFixed(2));
const lastLine = (text) => text.trim().split("\n").at(-1);
const textFile = options.text ?? asset(places(root), "moby-dick.txt");

// The number of tokens of a file. `quire run` counts them before it loads the model, and its
// refusal of a prompt that is larger than the context (64 tokens here) names the number.
async function countTokens(model, path) {
    const { status, stderr } = await watch(options.quire, ["run", "-m", model, "-f", path, "-c", "64", "-n", "1"]);
    const found = stderr.match(/the prompt has (\d+) tokens/)?.[1];
    if (found === undefined && status !== 0) {
        throw new Error(`the tokens of ${path} cannot be counted: ${lastLine(stderr)}`);
    }
    return Number(found ?? 0);
}

// The beginning of the text that has at most --depth tokens, in a file.
async function promptOf(model) {
    const bytes = readFileSync(textFile);
    const path = join(work, "bench-7b.txt");
    const depth = Number(options.depth);
    let n = depth;
    for (let i = 0; i < 20; i++) {
        writeFileSync(path, bytes.subarray(0, n));
        const found = await countTokens(model, path);
        if (found <= depth && (found > 0.999 * depth || n >= bytes.length)) {
            return path;
        }
        n = Math.min(bytes.length, Math.floor(n * (0.9995 * depth / Math.max(1, found))));
    }
    throw new Error(`no beginning of the text has about ${depth} tokens`);
}

// The need in the error of a run with a limit that is far too low.
function needOf(stderr) {
    const bytes = (name) => {
        const [, value, unit] = stderr.match(new RegExp(`${name} ([\\d.]+) ([kMG])B`)) ?? [undefined, "NaN", "G"];
        return Number(value) * { k: 1e3, M: 1e6, G: 1e9 }[unit];
    };
    return { total_bytes: bytes("need"), weights_bytes: bytes("weights"), kv_bytes: bytes("KV"), buffers_bytes: bytes("buffers"),
        program_bytes: bytes("program") };
}

function refusal(done, missingBytes) {
    const isRefused = done.status === 1 && done.stderr.includes("too much") && done.peakBytes < REFUSED_BYTES_MAX;
    return isRefused ? `refused, ${gb(missingBytes)} GB too much` : "NOT REFUSED";
}

async function measureRetained(model, row) {
    const [kv, policy] = row.kv.split("+");
    const common = ["run", "--json", "-m", model, "-f", await promptOf(model), "-n", options.gen, "-c", `${ctx}`,
        "-t", options.threads, "--ignore-eos", "--temp", "0", "--kv", kv, "--retain", policy, "--prefill-chunk", options.chunk,
        "-b", options.batch ?? options.chunk];
    const need = needOf((await watch(options.quire, [...common, "--memory-limit", "1e6"])).stderr);
    const done = await watch(options.quire, [...common, "--memory-limit", `${limit}`]);
    if (need.total_bytes > limit) {
        return { ...row, need, peak: done.peakBytes, verdict: refusal(done, need.total_bytes - limit) };
    }
    if (done.status !== 0) {
        return { ...row, need, peak: done.peakBytes, verdict: `FAILED: ${lastLine(done.stderr)}` };
    }
    const d = JSON.parse(done.stdout);
    const retained = `${d.prompt_tokens} tokens read at ${d.prompt_tokens_per_second.toFixed(1)} a second, KV at most ` +
        `${gb(d.kv.retained.peak_bytes)} GB`;
    return { ...row, need, peak: done.peakBytes, decode: d.decode_tokens_per_second,
        verdict: done.peakBytes < limit ? `fits: ${retained}` : `OVER THE LIMIT: ${retained}` };
}

async function measure(model, row) {
    if (row.kv.includes("+")) {
        return measureRetained(model, row);
    }
    const common = ["--kv", row.kv, "--memory-limit", `${limit}`];
    const need = runJson(options.quire, ["info", model, "--json", "-c", `${ctx}`, ...common]).need;
    const done = await watch(options.quire, ["bench", "--json", "-m", model, "-p", "0", "-n", options.gen, "-r",
        options.repeats, "-d", options.depth, "-t", options.threads, "--fill", "fast", ...common]);
    const result = { ...row, need, peak: done.peakBytes };
    if (!need.fits) {
        return { ...result, verdict: refusal(done, need.missing_bytes) };
    }
    if (done.status !== 0) {
        return { ...result, verdict: `FAILED: ${lastLine(done.stderr)}` };
    }
    const [measured] = JSON.parse(done.stdout);
    const peak = Math.max(done.peakBytes, measured.resident_peak_bytes);
    return { ...result, measured, verdict: peak < limit ? "fits" : "OVER THE LIMIT" };
}

function line(r) {
    const m = r.measured, need = r.need;
    const cells = [r.weights, r.kv, gb(need?.weights_bytes), gb(need?.kv_bytes), gb(need && need.buffers_bytes + need.program_bytes),
        gb(need?.total_bytes), gb(r.peak), m ? gb(m.resident_peak_bytes) : "",
        m || r.decode ? (1000 / (r.decode ?? m.tokens_per_second)).toFixed(0) : "",
        m ? `${(100 * m.attention_roofline_share).toFixed(0)} %` : "", m ? `${(100 * m.roofline_share).toFixed(0)} %` : "",
        r.verdict];
    return `| ${cells.join(" | ")} |`;
}

const rows = options.rows.split(/,(?=\w+\/)/).map((text) => {
    const [, weights, kv] = text.match(/^(\w+)\/([\w:.]+(?:\+\S+)?)$/) ?? stop(`--rows '${text}' is no WEIGHTS/KV or WEIGHTS/KV+POLICY, such as q8_0/q4`);
    return { weights, kv };
});
if (rows.some((row) => row.kv.includes("+")) && !existsSync(textFile)) {
    stop(`the text of rows with a policy: ${options.text ? `${textFile} is missing` : missing(textFile)}`);
}

// A row, or why there is none.
async function tried(row, task) {
    try {
        return await task();
    } catch (error) {
        return { ...row, verdict: `FAILED: ${error.message.replace(/\s+/g, " ")}` };
    }
}

const results = [];
for (const weights of new Set(rows.map((row) => row.weights))) {
    let model;
    for (const row of rows.filter((r) => r.weights === weights)) {
        results.push(await tried(row, () => {
            model ??= shapeModel(options.generator, work, SHAPE, weights);
            return measure(model, row);
        }));
        process.stderr.write(`${line(results.at(-1))}\n`);
    }
    if (weights === "f16" && model !== undefined && !options.keep) {
        rmSync(model);
    }
}

const facts = machine();
const batch = options.batch ?? options.chunk;
const computed = results.some((r) => r.kv.includes("+"))
    ? ` (with a policy computed, in chunks of ${options.chunk} and steps of ${batch})` : "";
const bandwidth = results.find((r) => r.measured)?.measured.read_bandwidth_bytes_per_second;
const table = `Machine: ${facts.cpu}, ${facts.cores} cores, ${facts.memory_gib} GiB; ${facts.date}; ${options.threads} threads` +
    `${bandwidth ? `, reads ${gb(bandwidth)} GB/s` : ""}. Llama-2-7B's shape, ${options.depth} tokens of KV filled fast${computed}, limit ` +
    `${gb(limit)} GB. Sizes in GB; "VmHWM" is seen from outside, "told" by the program.\n\n` +
    "| weights | KV | weights | + KV | + buffers, program | = need | VmHWM | told | ms/token | attention of its roofline | " +
    "step of its roofline | |\n" +
    `|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|\n${results.map(line).join("\n")}\n`;
process.stdout.write(table);
if (options.out) {
    writeFileSync(options.out, `# Seven billion parameters at 32K\n\n\`make bench-7b\`. ${table}`);
}
process.exit(results.some((r) => /^[A-Z]{2}/.test(r.verdict)) ? 1 : 0);
