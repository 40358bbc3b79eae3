// quality.mjs - losses of the KV formats: perplexity, KL divergence and top-1 agreement on real
// models.
//
//   node scripts/quality.mjs --quire build/quire [--models tinyllama,minimind2,stories15m]
//        [--sizes 6.25,4.5] [--write] [--check]
//
// `make quality` builds and calls this. Per model the f32 cache and the f16 cache are evaluated
// once and kept as logits files; every row is then one pass against the f16 file (the 8-bit row
// also against the f32 file).
//
//   --write       replaces the tables in docs/benchmarks.md and bench/results/quality.json with
//                 what was measured. Needs all models and sizes
//   --logits DIR  keep the f32 cache's logits there, by model and number of chunks, and use those
//                 that are there: they depend on the model, the text and the program's f32 path
//                 only, so a second run saves their time. Off for a release.
//   --check       the release gate: every figure must be within its error of the committed one, and
//                 every limit must hold; exits 1 otherwise, also where a model is missing
//
// A model that is missing is skipped, if neither --write nor --check needs it. Exits 1 if a model
// could not be measured.
//
// SPDX-License-Identifier: MIT
import { existsSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { readOptions, stopOf } from "./compare/options.mjs";
import { asset, machine, missing, places, runJson } from "./compare/tools.mjs";
import { ownFolder } from "./compare/work.mjs";
import { digestOf } from "./retention/models.mjs";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const at = places(root);
const data = (name) => asset(at, name);
const MODELS = {
    tinyllama: { name: "TinyLlama-1.1B IQ2_XXS, wiki.test.raw", ctx: 2048, chunks: 8, excessChunks: 24, text: data("wiki.test.raw"),
        model: data("tinyllama-1.1b-chat-iq2_xxs.gguf"), isJudged: true },
    minimind2: { name: "MiniMind2-Small Q8_0, bench/data/chinese.txt", ctx: 2048, chunks: 8,
        text: data("chinese.txt"), model: data("minimind2-small-q8_0.gguf") },
    stories15m: { name: "stories15M Q8_0, tinystories.txt", ctx: 256, chunks: 100, text: data("tinystories.txt"),
        model: data("stories15M-q8_0.gguf") },
};

// Limits and goals, in percent of perplexity above our own f16 cache with the default window; at
// 8.25 bits they bound the excess: the KL divergence from f32 minus that of f16, in nats per token.
// (A ratio of the two would be no measure of the cache: most of f16's divergence comes from the
// rounding of activations, and falls with better products.) Uniform pairs may exceed the size of
// their row on head sizes below 64: the table shows their true bits beside them. A difference of
// two divergences over few chunks is too noisy for a near bound. A model with excessChunks measures
// that row over this many chunks.
const SIZES = [
    { size: "8.25", kv: ["q8"], limit: 3.2e-4, goal: 1.1e-4, isExcess: true },
    { size: "6.25", kv: ["q6:q5", "auto:6.25"], limit: 0.6, goal: 0.4 },
    { size: "5.4", kv: ["q5", "auto:5.4"], limit: 1.2, goal: 0.8 },
    { size: "4.5", kv: ["q4", "auto:4.5"], limit: 3, goal: 2 },
    { size: "3.8", kv: ["q3", "auto:3.8"] },
];
const stop = stopOf("quality");
const options = readOptions("quality", {
    quire: { type: "string", default: join(root, "build", "quire") },
    models: { type: "string", default: Object.keys(MODELS).join(","), known: Object.keys(MODELS), isList: true },
    sizes: { type: "string", default: SIZES.map((s) => s.size).join(","), known: SIZES.map((s) => s.size), isList: true },
    chunks: { type: "string", whole: 1 },
    logits: { type: "string" },
    threads: { type: "string", default: `${Math.min(2, cpus().length)}`, whole: 1 },
    write: { type: "boolean", default: false },
    check: { type: "boolean", default: false },
});
const TABLES = { file: join(root, "docs", "benchmarks.md"), begin: "<!-- quality:begin -->", end: "<!-- quality:end -->" };
const RESULTS = join(root, "bench", "results", "quality.json");

// A calibration file of this machine would change "auto". Without the cache folder the general
// rules are measured.
process.env.XDG_CACHE_HOME = join(at.work, "no-calibrations");

function evaluate(m, chunks, args) {
    return runJson(options.quire, ["perplexity", "--json", "-m", m.model, "-f", m.text, "-c", `${m.ctx}`, "--chunks",
        `${chunks}`, "-t", options.threads, ...args]);
}

// Chunks of a size's rows.
function chunksOf(m, s) {
    return Number(options.chunks ?? (s.isExcess ? (m.excessChunks ?? m.chunks) : m.chunks));
}

// One row as a record. Differences are paired: both caches see the same tokens.
function record(kv, recent, doc) {
    const base = doc.base;
    return {
        kv, recent, bits: doc.kv.bits_per_value, formats: doc.kv.layers, hot_pairs: doc.kv.hot_pair_share, ppl: doc.ppl,
        delta_percent: 100 * (base.ppl_ratio - 1), delta_percent_95: 100 * base.ppl_ratio * 1.96 * base.nll_difference.stderr,
        kld: base.kld.mean, kld_95: 1.96 * base.kld.stderr, top1_percent: 100 * base.top1_agreement,
        top1_percent_95: 196 * base.top1_agreement_stderr,
    };
}

function say(text) {
    process.stderr.write(`${text}\n`);
}

function line(r) {
    return `${r.kv} recent ${r.recent}: ${r.bits.toFixed(3)} bits, ppl ${r.ppl.toFixed(4)} (${r.delta_percent.toFixed(3)} +/- ` +
        `${r.delta_percent_95.toFixed(3)} %), KLD ${r.kld.toExponential(3)}, top-1 ${r.top1_percent.toFixed(2)} %`;
}

function measure(m, sizes, work) {
    const f16 = join(work, "f16.logits");
    const most = Math.max(...sizes.map((s) => chunksOf(m, s)));
    // A file of fewer chunks would be taken without a word, and all rows would have as few.
    const f32 = options.logits === undefined ? join(work, "f32.logits")
        : join(options.logits, `${m.key}-${digestOf(m.model)}-${most}-chunks-f32.logits`);
    say(`${m.name}: f32 and f16 first`);
    if (!existsSync(f32)) {
        evaluate(m, most, ["--kv", "f32", "--save-logits", f32]);
    }
    const half = evaluate(m, most, ["--kv", "f16", "--logits-base", f32, "--save-logits", f16]);
    const out = { name: m.name, ctx: m.ctx, chunks: half.n_chunks, n_scored: half.n_scored, f32_ppl: half.base.ppl,
        f16_ppl: half.ppl, f16_kld_to_f32: half.base.kld.mean,
        f16_kld_to_f32_95: 1.96 * half.base.kld.stderr, rows: [] };
    for (const s of sizes) {
        for (const kv of s.kv) {
            // q8 has no sealed form: the window changes nothing.
            for (const recent of kv === "q8" ? [128] : [128, 0]) {
                const args = ["--kv", kv, "--kv-recent", `${recent}`];
                const doc = evaluate(m, chunksOf(m, s), [...args, "--logits-base", f16]);
                const r = { size: s.size, chunks: doc.n_chunks, ...record(kv, recent, doc) };
                if (s.isExcess) {
                    const { mean, stderr } = evaluate(m, chunksOf(m, s), [...args, "--logits-base", f32]).base.kld;
                    r.kld_to_f32 = mean;
                    r.kld_excess = mean - out.f16_kld_to_f32;
                    r.kld_excess_95 = Math.hypot(1.96 * stderr, out.f16_kld_to_f32_95);
                }
                say(`  ${line(r)}${s.isExcess ? `, KLD to f32 ${r.kld_excess.toExponential(2)} above f16's` : ""}`);
                out.rows.push(r);
            }
        }
    }
    rmSync(f16);
    if (options.logits === undefined) {
        rmSync(f32);
    }
    return out;
}

// The best row of a size, of those that keep it, by perplexity with the default window.
function best(result, s) {
    const rows = result.rows.filter((r) => r.size === s.size && r.recent === 128 && r.bits <= Number(s.size) + 1e-9);
    return rows.sort((a, b) => a.delta_percent - b.delta_percent)[0];
}

function verdict(result, s) {
    const r = best(result, s);
    if (s.limit === undefined || r === undefined) {
        return { row: r, text: r === undefined ? "no row keeps this size" : "reported" };
    }
    const value = s.isExcess ? r.kld_excess : r.delta_percent;
    return { row: r, value, text: value <= s.goal ? "goal met" : value <= s.limit ? "limit met" : "missed" };
}

// Text in lines of at most 100 columns.
function wrapped(text) {
    return text.replace(/(.{1,100})(?: |$)/g, "$1\n").trimEnd();
}

function markdown(result, sizes, isJudged) {
    const fewer = result.rows.filter((r) => r.chunks < result.chunks);
    const lines = [`### ${result.name}`, "",
        wrapped(`Context ${result.ctx}, ${result.chunks} chunks, ${result.n_scored} tokens scored; perplexity f32 ` +
        `${result.f32_ppl.toFixed(4)}, f16 ${result.f16_ppl.toFixed(4)}; KL divergence of f16 to f32 ` +
        `${result.f16_kld_to_f32.toExponential(2)}.` + (fewer.length === 0 ? "" :
        ` Rows of ${[...new Set(fewer.map((r) => r.size))].join(", ")} bits: the first ${fewer[0].chunks} chunks.`)), "",
        "| at most | `--kv` | bits | `--kv-recent` | pairs read at 8 bit | perplexity | to f16 | KLD to f16 | same top token |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|"];
    for (const r of result.rows) {
        lines.push(`| ${r.size} | ${r.kv} | ${r.bits.toFixed(3)} | ${r.recent} | ${(100 * r.hot_pairs).toFixed(1)} % | ` +
            `${r.ppl.toFixed(4)} | ${r.delta_percent >= 0 ? "+" : ""}${r.delta_percent.toFixed(2)} % +/- ` +
            `${r.delta_percent_95.toFixed(2)} | ${r.kld.toExponential(2)} | ${r.top1_percent.toFixed(2)} % |`);
    }
    if (isJudged) {
        lines.push("", "| at most | limit | goal | measured | by | verdict |", "|---|---:|---:|---:|---|---|");
        for (const s of sizes.filter((x) => x.limit !== undefined)) {
            const v = verdict(result, s);
            const show = (x) => (s.isExcess ? `KLD of f16 + ${x.toExponential(1)}` : `+${x.toFixed(1)} %`);
            const value = v.value === undefined ? "" : s.isExcess ? `+${v.value.toExponential(2)} +/- ${v.row.kld_excess_95.toExponential(1)}`
                : `${v.value.toFixed(2)} %`;
            lines.push(`| ${s.size} bits | ${show(s.limit)} | ${show(s.goal)} | ${value} | ${v.row?.kv ?? ""} | ${v.text} |`);
        }
    }
    return lines.join("\n");
}

function writeTables(results, sizes) {
    const facts = machine();
    const text = readFileSync(TABLES.file, "utf8");
    const begin = text.indexOf(TABLES.begin);
    const end = text.indexOf(TABLES.end);
    if (begin < 0 || end < begin) {
        throw new Error(`${TABLES.file}: no ${TABLES.begin} .. ${TABLES.end} to put the tables in`);
    }
    const body = Object.entries(results).map(([key, r]) => markdown(r, sizes, MODELS[key].isJudged)).join("\n\n");
    const stamp = wrapped(`Measured ${facts.date} with \`make quality\` on ${facts.cpu}; +/- is half of a 95 % ` +
        "interval, paired by token.");
    writeFileSync(TABLES.file, `${text.slice(0, begin + TABLES.begin.length)}\n${stamp}\n\n${body}\n${text.slice(end)}`);
    writeFileSync(RESULTS, `${JSON.stringify({ date: facts.date, cpu: facts.cpu, models: results }, null, 1)}\n`);
}

// A size asked for must be at least as good as the pair for all layers of that size, up to both
// errors.
function behindUniform(result) {
    const bad = [];
    for (const r of result.rows.filter((x) => x.kv.startsWith("auto"))) {
        const uniform = result.rows.find((u) => u.size === r.size && u.recent === r.recent && !u.kv.startsWith("auto") &&
            u.bits <= Number(r.size) + 1e-9);
        if (uniform !== undefined && r.kld - uniform.kld > r.kld_95 + uniform.kld_95) {
            bad.push(`${result.name}: ${line(r)} is behind ${line(uniform)}`);
        }
    }
    return bad;
}

// New figures against committed ones: not worse by more than both errors together. Returns the
// complaints.
function gate(results, sizes) {
    const bad = [];
    const committed = existsSync(RESULTS) ? JSON.parse(readFileSync(RESULTS, "utf8")).models : {};
    for (const [key, result] of Object.entries(results)) {
        for (const r of result.rows) {
            const old = committed[key]?.rows.find((o) => o.size === r.size && o.kv === r.kv && o.recent === r.recent);
            if (old === undefined) {
                bad.push(`${result.name}: ${r.kv} (recent ${r.recent}) is not among the committed figures: --write them`);
            } else if (r.kld - old.kld > r.kld_95 + old.kld_95 || r.bits > old.bits + 1e-6 ||
                r.delta_percent - old.delta_percent > r.delta_percent_95 + old.delta_percent_95 ||
                old.top1_percent - r.top1_percent > r.top1_percent_95 + old.top1_percent_95) {
                bad.push(`${result.name}: ${line(r)}; committed: ${line(old)}`);
            }
        }
        bad.push(...behindUniform(result));
        for (const s of MODELS[key].isJudged ? sizes.filter((x) => x.limit !== undefined) : []) {
            const v = verdict(result, s);
            if (v.text !== "goal met" && v.text !== "limit met") {
                bad.push(`${result.name}: ${s.size} bits: ${v.text} (${v.row?.kv} ${v.value?.toPrecision(3)}, limit ${s.limit})`);
            }
        }
    }
    return bad;
}

// The results by model, and the names of the models that were not measured.
function measureAll(keys, sizes) {
    const results = {}, left = [];
    const work = ownFolder(at.work, "quality");
    try {
        for (const m of keys.map((key) => ({ key, ...MODELS[key] }))) {
            const absent = [m.model, m.text].find((p) => !existsSync(p));
            try {
                if (absent) {
                    say(`skipped: ${m.name}: ${missing(absent)}`);
                    left.push(m.name);
                } else {
                    results[m.key] = measure(m, sizes, work);
                }
            } catch (error) {
                say(`failed: ${m.name}: ${error.message}`);
                left.push(m.name);
                process.exitCode = 1;
            }
        }
    } finally {
        rmSync(work, { recursive: true, force: true });
    }
    return { results, left };
}

function main() {
    const wanted = options.sizes.split(","), keys = options.models.split(",");
    const sizes = SIZES.filter((s) => wanted.includes(s.size));
    if (options.write) {
        if (sizes.length !== SIZES.length || new Set(keys).size !== Object.keys(MODELS).length || options.chunks !== undefined) {
            stop("--write replaces all tables: it goes with all models, sizes and chunks");
        }
        const absent = keys.flatMap((key) => [MODELS[key].model, MODELS[key].text]).find((path) => !existsSync(path));
        if (absent) {
            stop(`--write replaces the tables of all models: ${missing(absent)}`);
        }
    }
    const { results, left } = measureAll(keys, sizes);
    for (const [key, r] of Object.entries(results)) {
        process.stdout.write(`${markdown(r, sizes, MODELS[key].isJudged)}\n\n`);
    }
    const bad = options.check ? [...left.map((name) => `${name}: not measured`), ...gate(results, sizes)] : [];
    if (options.write && left.length === 0) {
        writeTables(results, sizes);
    }
    for (const b of bad) {
        say(`gate: ${b}`);
    }
    process.exitCode ||= bad.length === 0 ? 0 : 1;
}

main();
