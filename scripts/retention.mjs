// retention.mjs - quality against KV bytes of the retention policies, beside the KV formats.
//
//   node scripts/retention.mjs --quire build/quire [--models stories15m,minimind2,tinyllama,recall]
//        [--policies "reconstruct;snap"] [--shares 0.5,0.3]
//        [--parts continuation,tasks,conversations] [--chunks 8] [--samples 40]
//        [--lengths 2048,4096] [--tasks recall,passkey] [--conversations 40] [--svg FILE]
//        [--json FILE]
//
// `make retention` builds and calls this. Three yardsticks:
//
//   continuation   a text is read in chunks, of which the end is scored: the second half, or what
//                  follows 1,500 tokens. Tokens are dropped before the words that need them are
//                  known. KL divergence from the cache of all tokens, and the ratio of the
//                  perplexities
//   tasks          recall, passkey and instruction, answered by greedy decoding. "after": the text
//                  is condensed before the question is read; "inside": the question is among the
//                  last tokens when the text is condensed, so that policies which look at the last
//                  queries know it. Policies that look at nothing are not asked inside: they would
//                  keep the same tokens
//   conversations  four turns of two questions of mt-bench-questions.jsonl, answered by the model
//                  with all tokens. The last answer is then read again token by token (forced
//                  decoding). How many of its tokens are the likeliest ones of both caches
//
// Bytes are those of pages at their most, to those of the cache of all tokens in f16. Intervals are
// 95 %. --policies takes policies with ; between them: [KV+]POLICY[:SHARE][,KEY=VALUE], with KV
// formats and shares of their own.
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
        parts: { type: "string", default: "continuation,tasks,conversations" },
        chunks: { type: "string" },
        samples: { type: "string", default: "40" },
        lengths: { type: "string" },
        tasks: { type: "string", default: TASKS.join(",") },
        conversations: { type: "string", default: "40" },
        threads: { type: "string", default: `${Math.min(2, cpus().length)}` },
        svg: { type: "string" },
        json: { type: "string" },
    },
});

const at = places(root);
const data = (name) => asset(at, name);
// text: the text of the part continuation. lengths: bytes of the tasks' texts, for models that
// solve them. scoreFrom: tokens before the scored ones, if not half of ctx. turn: how the model's
// turns look; its chunk is the tokens between two condensings.
const MODELS = {
    stories15m: { name: "stories15M Q8_0, tinystories.txt", ctx: 256, chunk: 64, recent: 16, chunks: 40,
        text: data("tinystories.txt"), model: data("stories15M-q8_0.gguf") },
    minimind2: { name: "MiniMind2-Small Q8_0, chinese.txt", ctx: 2048, chunk: 512, recent: 64, chunks: 4,
        text: data("chinese.txt"), model: data("minimind2-small-q8_0.gguf") },
    tinyllama: { name: "TinyLlama-1.1B IQ2_XXS, wiki.test.raw", ctx: 2048, chunk: 1500, scoreFrom: 1500, recent: 128, chunks: 4,
        calibrate: { ctx: 1024, chunks: 8 },
        turn: { user: "<|user|>\n", assistant: "</s>\n<|assistant|>\n", end: "</s>\n", answer: 32, chunk: 128, recent: 32 },
        text: data("wiki.test.raw"), model: data("tinyllama-1.1b-chat-iq2_xxs.gguf") },
    recall: { name: "quire-recall", recent: 16, lengths: [2048, 4096, 8000], calibrate: { ctx: 2048, chunks: 48 }, model: data("quire-recall.gguf") },
};
const POLICIES = ["reconstruct", "predict", "entropy,full_layers=none", "snap", "expected", "heavy", "keydiff", "window",
    "last", "stride", "random"];
const FORMATS = ["q8", "q4"];
const BLIND = ["window", "last", "stride", "random"]; // policies that look at no query and no key

function say(text) {
    process.stderr.write(`${text}\n`);
}

// [KV+]POLICY[:SHARE][,KEY=VALUE...]
function parsed(policy) {
    const [, kv, name, share, keys] = policy.match(/^(?:(\w+)\+)?(\w+)(?::([\d.]+))?((?:,[^,]+)*)$/);
    return { kv: kv ?? "f16", name, share: share === undefined ? undefined : Number(share), keys: keys.split(",").slice(1) };
}

function retainOf(m, policy, share) {
    const { name, keys } = parsed(policy);
    return `${name}:${share},${[...keys, ...(name === "last" ? [] : [`recent=${m.recent}`])].join(",")}`.replace(/,$/, "");
}

function sharesOf(policy, shares) {
    const { share } = parsed(policy);
    return share === undefined ? shares : [share];
}

// ---- continuation ----

function evaluate(m, args) {
    return runJson(options.quire, ["perplexity", "--json", "-m", m.model, "-f", m.text, "-c", `${m.ctx}`, "--chunks",
        `${options.chunks ?? m.chunks}`, "-t", options.threads, ...(m.scoreFrom ? ["--score-from", `${m.scoreFrom}`] : []), ...args]);
}

function record(doc, fullBytes) {
    const base = doc.base;
    const bytes = doc.kv.retained?.peak_bytes ?? doc.kv.live_peak_bytes;
    return { bytes_ratio: bytes / fullBytes, kept: doc.kv.retained?.share, kld: base.kld.mean, kld_95: 1.96 * base.kld.stderr,
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
        for (const share of sharesOf(policy, shares)) {
            add(policy, share, ["--kv", parsed(policy).kv, "--retain", retainOf(m, policy, share), "--prefill-chunk",
                `${m.chunk}`, "-b", `${Math.min(m.chunk, 2048)}`]);
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

// The texts of a task, and whether the cache of all tokens answers them.
function samplesOf(m, task, length, n) {
    return Array.from({ length: n }, (_, i) => {
        const t = taskText(task, length, i + 1);
        const a = answer(m, t.text + t.question, t.answer.length, []);
        return { ...t, n_text: a.n - Buffer.byteLength(t.question), isSolved: a.text.startsWith(t.answer) };
    });
}

// How many of the samples a policy answers, and how many of those that are answered with all
// tokens.
function solve(m, samples, where, retain) {
    const r = { hits: 0, both: 0, kept: 0 };
    for (const t of samples) {
        // One batch for the text, the next for the question: or all of it in one, which is
        // condensed before the answer.
        const n = Math.max(64, where === "after" ? t.n_text : t.n_text + Buffer.byteLength(t.question));
        const a = answer(m, t.text + t.question, t.answer.length, ["--retain", retain, "--prefill-chunk", `${n}`, "-b", `${n}`]);
        const isSolved = a.text.startsWith(t.answer);
        r.hits += isSolved ? 1 : 0;
        r.both += isSolved && t.isSolved ? 1 : 0;
        r.kept += a.share / samples.length;
    }
    return r;
}

function tasks(m, policies, shares, n) {
    const rows = [];
    const lengths = options.lengths?.split(",").map(Number) ?? m.lengths;
    for (const length of lengths) {
        for (const task of options.tasks.split(",")) {
            const samples = samplesOf(m, task, length, n);
            const full = samples.filter((t) => t.isSolved).length;
            say(`  ${task} ${length}: all tokens ${full} of ${n}`);
            rows.push({ task, length, samples: n, full, what: "all tokens", hits: full, both: full, where: "", share: 1 });
            if (full < 0.8 * n) {
                continue; // nothing to lose
            }
            for (const policy of policies) {
                for (const share of sharesOf(policy, shares)) {
                    for (const where of BLIND.includes(parsed(policy).name) ? ["after"] : ["after", "inside"]) {
                        const r = solve(m, samples, where, retainOf(m, policy, share));
                        say(`    ${policy} ${share} ${where}: ${r.hits}, ${(100 * r.kept).toFixed(0)} % kept`);
                        rows.push({ task, length, samples: n, full, what: policy, share, where, ...r });
                    }
                }
            }
        }
    }
    return rows;
}

// ---- conversations ----

// Two questions, two turns each: all answers but the last are context.
function conversationOf(m, questions) {
    const turn = m.turn;
    let text = "";
    let before = 0;
    for (const ask of questions.flatMap((q) => q.turns)) {
        text += `${turn.user}${ask}${turn.assistant}`;
        const a = answer(m, text, turn.answer, ["-c", `${m.ctx}`, "--cache-dir", join(m.folder, "kv")]);
        before = a.n;
        text += a.text + turn.end;
    }
    return { text, before };
}

function talk(m, c, args) {
    return runJson(options.quire, ["perplexity", "--json", "-m", m.model, "-f", c.path, "-c", `${c.n}`, "--score-from",
        `${c.before - 1}`, "--chunks", "1", "-t", options.threads, ...args]);
}

function conversations(m, policies, shares, n) {
    const questions = readFileSync(data("mt-bench-questions.jsonl"), "utf8").trim().split("\n").map((line) => JSON.parse(line));
    const chosen = Array.from({ length: Math.min(n, questions.length / 2) }, (_, i) => {
        const c = conversationOf(m, [questions[i], questions[questions.length / 2 + i]]);
        const path = join(m.folder, `conversation-${i}.txt`);
        writeFileSync(path, c.text);
        return { ...c, path, logits: join(m.folder, `conversation-${i}.logits`), n: c.before + m.turn.answer };
    }).filter((c) => c.n <= m.ctx);
    const rows = [];
    for (const c of chosen) {
        talk(m, c, ["--save-logits", c.logits]);
    }
    for (const policy of policies) {
        for (const share of sharesOf(policy, shares)) {
            const agreements = [];
            for (const c of chosen) {
                const retain = retainOf({ recent: m.turn.recent }, policy, share);
                agreements.push(talk(m, c, ["--kv", parsed(policy).kv, "--retain", retain, "--prefill-chunk", `${m.turn.chunk}`,
                    "-b", `${m.turn.chunk}`, "--logits-base", c.logits]).base.top1_agreement);
            }
            const mean = agreements.reduce((a, b) => a + b, 0) / agreements.length;
            const variance = agreements.reduce((a, b) => a + (b - mean) ** 2, 0) / (agreements.length - 1);
            const half = 1.96 * Math.sqrt(variance / agreements.length);
            say(`  conversations, ${policy} ${share}: ${(100 * mean).toFixed(1)} +/- ${(100 * half).toFixed(1)} %`);
            rows.push({ what: policy, share, agreement: mean, agreement_95: half });
        }
    }
    return { n: chosen.length, tokens: chosen.reduce((sum, c) => sum + c.n, 0) / chosen.length, rows };
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
            "| policy | share | kept at the end | most bytes of pages | KL divergence | perplexity | same top token |", "|---|---:|---:|---:|---:|---:|---:|");
        for (const r of [...c.rows].sort((a, b) => (b.share ?? 2) - (a.share ?? 2) || a.kld - b.kld)) {
            lines.push(`| \`${r.what}\` | ${r.share ?? ""} | ${r.kept === undefined ? "" : `${(100 * r.kept).toFixed(1)} %`} | ${(100 * r.bytes_ratio).toFixed(1)} % | ${r.kld.toFixed(4)} +/- ` +
                `${r.kld_95.toFixed(4)} | x ${r.ppl_ratio.toFixed(4)} +/- ${r.ppl_ratio_95.toFixed(4)} | ` +
                `${(100 * r.top1).toFixed(1)} % |`);
        }
    }
    if (result.tasks) {
        lines.push(`### ${result.name}: tasks`, "", "| task | bytes | policy | share | question | kept | answered | of what all " +
            "tokens answer |", "|---|---:|---|---:|---|---:|---:|---:|");
        for (const r of result.tasks) {
            const [low, high] = wilson(r.both, r.full);
            lines.push(`| ${r.task} | ${r.length} | \`${r.what}\` | ${r.share} | ${r.where} | ` +
                `${r.kept === undefined ? "" : `${(100 * r.kept).toFixed(0)} %`} | ${r.hits} of ${r.samples} | ` +
                `${(100 * r.both / r.full).toFixed(0)} % (${(100 * low).toFixed(0)} to ${(100 * high).toFixed(0)} %) |`);
        }
    }
    if (result.conversations) {
        const c = result.conversations;
        lines.push(`### ${result.name}: ${c.n} conversations of four turns, ${c.tokens.toFixed(0)} tokens on average`, "",
            "| policy | share | same top token in the last answer |", "|---|---:|---:|");
        for (const r of c.rows) {
            lines.push(`| \`${r.what}\` | ${r.share} | ${(100 * r.agreement).toFixed(1)} +/- ${(100 * r.agreement_95).toFixed(1)} % |`);
        }
    }
    return lines.join("\n");
}

function measure(key, policies, shares) {
    const m = { ...MODELS[key], folder: mkdtempSync(join(at.work, "retention-")) };
    const result = { name: m.name };
    const parts = options.parts.split(",");
    say(m.name);
    try {
        if (policies.some((p) => parsed(p).name === "predict")) {
            result.correlation = learn(m);
        }
        if (m.text !== undefined && parts.includes("continuation")) {
            result.continuation = continuation(m, policies, shares);
        }
        if (m.lengths !== undefined && parts.includes("tasks")) {
            result.tasks = tasks(m, policies, shares, Number(options.samples));
        }
        if (m.turn !== undefined && parts.includes("conversations")) {
            result.conversations = conversations(m, policies, shares, Number(options.conversations));
        }
    } finally {
        rmSync(m.folder, { recursive: true, force: true });
    }
    return result;
}

// A text of tasks that are not asked, for a model that knows nothing else.
function writeTasks(m) {
    const path = join(m.folder, "tasks.txt");
    writeFileSync(path, Array.from({ length: 60 }, (_, i) => taskText(TASKS[i % TASKS.length], m.calibrate.ctx, 1000 + i))
        .map((t) => `${t.text}${t.question}${t.answer}\n`).join(""));
    return path;
}

function secondHalf(m) {
    const path = join(m.folder, "half.txt");
    const bytes = readFileSync(m.text);
    writeFileSync(path, bytes.subarray(bytes.indexOf(10, bytes.length / 2) + 1));
    return path;
}

// predict knows nothing before calibrate --retain. The cache folder is the work folder, so that
// only this run's predict finds the learned file. Learning uses the second half of the text; the
// beginning is scored. Returns the mean correlation of predicted and measured scores.
function learn(m) {
    const text = m.text !== undefined ? secondHalf(m) : writeTasks(m);
    process.env.XDG_CACHE_HOME = m.folder;
    try {
        const { ctx, chunks } = m.calibrate ?? { ctx: Math.min(1024, m.ctx / 2), chunks: 16 };
        const doc = runJson(options.quire, ["calibrate", "--retain", "--json", "-m", m.model, "-f", text, "-c", `${ctx}`,
            "--chunks", `${chunks}`, "-t", options.threads]);
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
