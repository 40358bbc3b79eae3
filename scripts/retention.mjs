// retention.mjs - quality against KV bytes of the retention policies, beside the KV formats.
//
//   node scripts/retention.mjs --quire build/quire [--models stories15m,minimind2,tinyllama,recall]
//        [--policies "reconstruct;snap"] [--shares 0.5,0.3] [--chunks 8] [--samples 40] [--svg FILE] [--json FILE]
//
// `make retention` builds and calls this. Two yardsticks:
// continuation  a text is read in chunks; the second half is scored. Tokens are dropped before the words that need
//               them are known. KL divergence from the cache of all tokens, and the ratio of the perplexities
// tasks         recall, passkey and instruction, answered by greedy decoding. "after": the text is condensed before
//               the question is read; "inside": the question is among the last tokens when the text is condensed,
//               so that policies which look at the last queries know it
// Bytes are those of pages at their most, to those of the cache of all tokens in f16. Intervals are 95 %. --policies
// takes policies with ; between them.
//
// SPDX-License-Identifier: MIT
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { asset, machine, missing, places, runJson } from "./compare/tools.mjs";
import { TASKS, taskText } from "./retention/tasks.mjs";
import { chart } from "./retention/chart.mjs";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const { values: options } = parseArgs({
    options: {
        quire: { type: "string", default: join(root, "build", "quire") },
        models: { type: "string", default: "stories15m,minimind2,tinyllama,recall" },
        policies: { type: "string" },
        shares: { type: "string", default: "0.7,0.5,0.3" },
        chunks: { type: "string" },
        samples: { type: "string", default: "40" },
        threads: { type: "string", default: `${Math.min(2, cpus().length)}` },
        svg: { type: "string" },
        json: { type: "string" },
    },
});

const at = places(root);
const data = (name) => asset(at, name);
// text: what is continued. lengths: bytes of the tasks' texts, for models that solve them.
const MODELS = {
    stories15m: { name: "stories15M Q8_0, tinystories.txt", ctx: 256, chunk: 64, recent: 16, chunks: 40,
        text: data("tinystories.txt"), model: data("stories15M-q8_0.gguf") },
    minimind2: { name: "MiniMind2-Small Q8_0, chinese.txt", ctx: 2048, chunk: 512, recent: 64, chunks: 4,
        text: data("chinese.txt"), model: data("minimind2-small-q8_0.gguf") },
    tinyllama: { name: "TinyLlama-1.1B IQ2_XXS, wiki.test.raw", ctx: 2048, chunk: 512, recent: 128, chunks: 4,
        text: data("wiki.test.raw"), model: data("tinyllama-1.1b-chat-iq2_xxs.gguf") },
    recall: { name: "quire-recall", recent: 16, lengths: [256, 1024, 2048, 4096], model: data("quire-recall.gguf") },
};
const POLICIES = ["reconstruct", "predict", "entropy,full_layers=none", "snap", "expected", "heavy", "keydiff", "window",
    "last", "stride", "random"];
const FORMATS = ["q8", "q4"];

function say(text) {
    process.stderr.write(`${text}\n`);
}

function retainOf(m, policy, share) {
    const [name, ...keys] = policy.split(",");
    return `${name}:${share},${[...keys, ...(name === "last" ? [] : [`recent=${m.recent}`])].join(",")}`.replace(/,$/, "");
}

// ---- continuation ----

function evaluate(m, args) {
    return runJson(options.quire, ["perplexity", "--json", "-m", m.model, "-f", m.text, "-c", `${m.ctx}`, "--chunks",
        `${options.chunks ?? m.chunks}`, "-t", options.threads, ...args]);
}

function record(doc, fullBytes) {
    const base = doc.base;
    const bytes = doc.kv.retained?.peak_bytes ?? doc.kv.live_peak_bytes;
    return { bytes_ratio: bytes / fullBytes, kld: base.kld.mean, kld_95: 1.96 * base.kld.stderr,
        ppl_ratio: base.ppl_ratio, ppl_ratio_95: base.ppl_ratio * 1.96 * base.nll_difference.stderr,
        top1: base.top1_agreement, top1_95: 1.96 * base.top1_agreement_stderr };
}

function continuation(m, policies, shares) {
    const logits = join(m.folder, "f16.logits");
    const full = evaluate(m, ["--kv", "f16", "--save-logits", logits]);
    const fullBytes = full.kv.live_peak_bytes;
    const rows = [];
    const add = (what, share, args) => {
        try {
            const r = { what, share, ...record(evaluate(m, [...args, "--logits-base", logits]), fullBytes) };
            say(`  ${what} ${share ?? ""}: ${r.bytes_ratio.toFixed(3)} of the bytes, KLD ${r.kld.toFixed(4)} ` +
                `+/- ${r.kld_95.toFixed(4)}, ppl x ${r.ppl_ratio.toFixed(4)}, top-1 ${(100 * r.top1).toFixed(1)} %`);
            rows.push(r);
        } catch (error) {
            say(`  ${what} ${share ?? ""}: ${error.message}`);
        }
    };
    for (const kv of FORMATS) {
        add(`--kv ${kv}`, undefined, ["--kv", kv]);
    }
    for (const policy of policies) {
        for (const share of shares) {
            add(policy, share, ["--kv", "f16", "--retain", retainOf(m, policy, share), "--prefill-chunk", `${m.chunk}`]);
        }
    }
    rmSync(logits, { force: true });
    return { name: m.name, ctx: m.ctx, chunk: m.chunk, chunks: full.n_chunks, scored: full.n_scored, ppl: full.ppl, rows };
}

// ---- tasks ----

// Wilson's interval of a share of n.
function wilson(hits, n) {
    const z = 1.96;
    const p = hits / n;
    const middle = (p + z * z / (2 * n)) / (1 + z * z / n);
    const half = (z / (1 + z * z / n)) * Math.sqrt(p * (1 - p) / n + z * z / (4 * n * n));
    return [Math.max(0, middle - half), Math.min(1, middle + half)];
}

function answer(m, prompt, nAnswer, args) {
    const doc = runJson(options.quire, ["run", "--json", "-m", m.model, "-p", prompt, "-n", `${nAnswer}`, "--temp", "0",
        "--ignore-eos", "-t", options.threads, ...args]);
    return { text: doc.text, n: doc.prompt_tokens, share: doc.kv.retained?.share ?? 1 };
}

// How many of the samples are answered, where the full cache answers them.
function solve(m, task, length, samples, where, retain) {
    let hits = 0;
    let share = 0;
    for (let seed = 1; seed <= samples; seed++) {
        const t = taskText(task, length, seed);
        const args = [];
        if (retain !== undefined) {
            // One batch for the text, the next for the question: or all of it in one.
            const n = answer(m, where === "after" ? t.text : t.text + t.question, 1, []).n;
            args.push("--retain", retain, "--prefill-chunk", `${Math.max(64, n)}`, "-b", `${Math.max(64, n)}`);
        }
        const a = answer(m, t.text + t.question, t.answer.length, args);
        hits += a.text.startsWith(t.answer) ? 1 : 0;
        share += a.share / samples;
    }
    return { hits, share };
}

function tasks(m, policies, shares, samples) {
    const rows = [];
    for (const task of TASKS) {
        for (const length of m.lengths) {
            const full = solve(m, task, length, samples, "after");
            say(`  ${task} ${length}: all tokens ${full.hits} of ${samples}`);
            rows.push({ task, length, samples, what: "all tokens", hits: full.hits, where: "", share: 1 });
            if (full.hits < 0.8 * samples) {
                continue; // nothing to lose
            }
            for (const policy of policies) {
                for (const share of shares) {
                    for (const where of ["after", "inside"]) {
                        const r = solve(m, task, length, samples, where, retainOf(m, policy, share));
                        say(`    ${policy}:${share} ${where}: ${r.hits}, ${(100 * r.share).toFixed(0)} % kept`);
                        rows.push({ task, length, samples, what: policy, share, where, hits: r.hits, kept: r.share });
                    }
                }
            }
        }
    }
    return rows;
}

// ---- output ----

function markdown(result) {
    const lines = [];
    if (result.continuation) {
        const c = result.continuation;
        lines.push(`### ${c.name}`, "", `Context ${c.ctx}, condensed every ${c.chunk} tokens, ${c.chunks} chunks, ` +
            `${c.scored} tokens scored, perplexity with all tokens ${c.ppl.toFixed(3)}.` +
            (result.correlation === undefined ? "" : ` Predicted and measured scores correlate by ` +
            `${result.correlation.toFixed(2)} on average.`), "",
            "| policy | share | most bytes of pages | KL divergence | perplexity | same top token |", "|---|---:|---:|---:|---:|---:|");
        for (const r of [...c.rows].sort((a, b) => (b.share ?? 2) - (a.share ?? 2) || a.kld - b.kld)) {
            lines.push(`| \`${r.what}\` | ${r.share ?? ""} | ${(100 * r.bytes_ratio).toFixed(1)} % | ${r.kld.toFixed(4)} +/- ` +
                `${r.kld_95.toFixed(4)} | x ${r.ppl_ratio.toFixed(4)} +/- ${r.ppl_ratio_95.toFixed(4)} | ` +
                `${(100 * r.top1).toFixed(1)} % |`);
        }
    }
    if (result.tasks) {
        lines.push(`### ${result.name}: tasks`, "", "| task | bytes | policy | share | question | answered |", "|---|---:|---|---:|---|---:|");
        for (const r of result.tasks) {
            const [low, high] = wilson(r.hits, r.samples);
            lines.push(`| ${r.task} | ${r.length} | ${r.what} | ${r.share} | ${r.where} | ${r.hits} of ${r.samples} ` +
                `(${(100 * low).toFixed(0)} to ${(100 * high).toFixed(0)} %) |`);
        }
    }
    return lines.join("\n");
}

function measure(key, policies, shares) {
    const m = { ...MODELS[key], folder: mkdtempSync(join(at.work, "retention-")) };
    const result = { name: m.name };
    say(m.name);
    try {
        if (policies.includes("predict")) {
            result.correlation = learn(m);
        }
        if (m.text !== undefined) {
            result.continuation = continuation(m, policies, shares);
        }
        if (m.lengths !== undefined) {
            result.tasks = tasks(m, policies, shares, Number(options.samples));
        }
    } finally {
        rmSync(m.folder, { recursive: true, force: true });
    }
    return result;
}

// A text of tasks that are not asked, for a model that knows nothing else.
function writeTasks(m) {
    const path = join(m.folder, "tasks.txt");
    const length = m.lengths[Math.min(1, m.lengths.length - 1)];
    writeFileSync(path, Array.from({ length: 60 }, (_, i) => taskText(TASKS[i % TASKS.length], length, 1000 + i))
        .map((t) => `${t.text}${t.question}${t.answer}\n`).join(""));
    return path;
}

function secondHalf(m) {
    const path = join(m.folder, "half.txt");
    const bytes = readFileSync(m.text);
    writeFileSync(path, bytes.subarray(bytes.indexOf(10, bytes.length / 2) + 1));
    return path;
}

// predict knows nothing before calibrate --retain. The cache folder is the work folder, so that predict finds what was
// learned, and no other run does. It learns from the second half of the text, of which the beginning is scored. Returns the mean correlation of predicted and measured scores.
function learn(m) {
    const text = m.text !== undefined ? secondHalf(m) : writeTasks(m);
    process.env.XDG_CACHE_HOME = m.folder;
    try {
        const doc = runJson(options.quire, ["calibrate", "--retain", "--json", "-m", m.model, "-f", text, "-c",
            `${Math.min(1024, (m.ctx ?? 2048) / 2)}`, "--chunks", "16", "-t", options.threads]);
        return doc.correlation.reduce((a, b) => a + b, 0) / doc.correlation.length;
    } catch (error) {
        say(`  predict was not fitted: ${error.message}`);
        return undefined;
    }
}

function main() {
    const policies = options.policies?.split(";") ?? POLICIES;
    const shares = options.shares.split(",").map(Number);
    const results = {};
    for (const key of options.models.split(",")) {
        const m = MODELS[key];
        if (m === undefined) {
            say(`retention: --models '${key}' is unknown: it takes ${Object.keys(MODELS).join(", ")}, comma-separated`);
            process.exit(2);
        }
        const absent = [m.model, m.text].find((p) => p !== undefined && !existsSync(p));
        if (absent) {
            say(`skipped: ${m.name}: ${missing(absent)}`);
            continue;
        }
        results[key] = measure(key, policies, shares);
        process.stdout.write(`${markdown(results[key])}\n\n`);
    }
    if (options.svg !== undefined) {
        writeFileSync(options.svg, chart(Object.values(results).map((r) => r.continuation).filter((c) => c !== undefined)));
    }
    if (options.json !== undefined) {
        writeFileSync(options.json, `${JSON.stringify({ ...machine(), models: results }, null, 1)}\n`);
    }
}

main();
