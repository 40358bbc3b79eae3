// compare-schemes.mjs - models with layers that share K and V, trained side by side: validation
// loss, recall by distance, cache bytes, work of a prompt, learned gates; and the speed of such
// models with the shapes of real models.
//
//   node scripts/compare-schemes.mjs [--quire build/quire] [--data DIR] [--size small|second]
//        [--schemes mha,gqa,...] [--seeds 3] [--tokens 8e6] [--tokenizer bpe:1024] [--jobs 2]
//        [--runs DIR] [--out bench/results/schemes-small] [--results bench/results/schemes]
//        [--only table] [--only speed [--rounds 3] [--type q8_0] [--threads 2]] [--quick]
//
// `make compare-schemes` builds Quire and calls this; `make bench-schemes` is --only speed. --data:
// a folder of texts or a file; without it the models learn tasks alone. Training takes
// hours. Finished work stays in --runs (by default in the cache folder), and the same command goes
// on from there, also after Ctrl-C. Runs with other settings or texts lie in other folders. Each
// finished run leaves a small file in --results, and a run with such a file of the same settings
// and texts is not trained again: machines can share the work through the repository. --only table:
// no training, the runs that are there. Writes OUT.md and OUT.json, and a page with all curves in
// the folder of the runs. Without --out, a comparison of tasks alone, of fewer schemes, seeds or
// questions, of other tokens, or one whose runs are not all finished is written into the folder of
// the runs.
//
// SPDX-License-Identifier: MIT
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { readOptions, stopOf } from "./compare/options.mjs";
import { machine, places, Report, runJson } from "./compare/tools.mjs";
import { curvesPage, findingParts } from "./schemes/curves.mjs";
import { findingsOf, markdown } from "./schemes/findings.mjs";
import { gatesOf } from "./schemes/gates.mjs";
import { readGguf } from "./schemes/gguf.mjs";
import { keep, keptPath, keptResult, machinesText } from "./schemes/kept.mjs";
import { cacheBytes, prefillFlop, recallSettings, SCHEMES, settingsFacts, settingsName, shapeOf, sharedSettings, SIZES, textSetName } from "./schemes/plan.mjs";
import { recallOf } from "./schemes/recall.mjs";
import { lastHeld, readLog, recallName, runFiles, runName, secondsOf, sharedTokenizer, stopRunsOnSignals, trainAll } from "./schemes/runs.mjs";
import { DEPTHS, QUICK_DEPTHS, QUICK_SHAPES, SHAPES, speedOfShapes } from "./schemes/shapes.mjs";

const PROMPT_TOKENS = 8192; // of the counted work
const SEEDS = 3, QUESTIONS = 50;

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const stop = stopOf("compare-schemes");
const options = readOptions("compare-schemes", {
    quire: { type: "string", default: join(root, "build", "quire") },
    generator: { type: "string", default: join(root, "build", "make_gguf") },
    data: { type: "string" },
    size: { type: "string", known: Object.keys(SIZES) },
    schemes: { type: "string", known: SCHEMES, isList: true },
    seeds: { type: "string", default: `${SEEDS}`, whole: 1 },
    tokens: { type: "string", above: 0 },
    tokenizer: { type: "string" },
    questions: { type: "string", default: `${QUESTIONS}`, whole: 1 },
    jobs: { type: "string", default: `${cpus().length}`, whole: 1 },
    threads: { type: "string", whole: 1 },
    runs: { type: "string" },
    results: { type: "string" },
    out: { type: "string" },
    only: { type: "string", known: ["speed", "table"] },
    rounds: { type: "string", default: "3", whole: 1 },
    type: { type: "string", default: "q8_0" },
    quick: { type: "boolean", default: false },
});

const size = options.size ?? (options.quick ? "quick" : "small");
const schemes = options.schemes?.split(",") ?? SIZES[size].schemes ?? SCHEMES;
const nSeeds = Number(options.seeds), nJobs = Number(options.jobs), tokens = options.tokens && Number(options.tokens);
if (options.data && !existsSync(options.data)) {
    stop(`--data ${options.data}: no such file or folder`);
}

async function trained() {
    const settings = sharedSettings(size, { tokens, data: options.data && resolve(options.data), tokenizer: options.tokenizer });
    const questions = options.quick ? 2 : Number(options.questions), facts = settingsFacts(size, { ...settings, questions });
    const name = settingsName(size, facts), folder = join(resolve(options.runs ?? join(places(root).cache, "schemes")), name);
    const c = { quire: options.quire, folder, jobs: nJobs, threads: 1, facts, questions };
    const results = resolve(options.results ?? (options.quick ? join(folder, "results") : join(root, "bench", "results", "schemes")));
    const pathOf = (run) => keptPath(results, name, runName(run.scheme, run.seed));
    mkdirSync(folder, { recursive: true });
    // Seed by seed, so that a comparison that is stopped has whole rows.
    const list = Array.from({ length: nSeeds }, (_, i) => schemes.map((scheme) => ({ scheme, seed: i + 1 }))).flat();
    const missing = list.filter((run) => !keptResult(pathOf(run), facts));
    if (options.only !== "table" && missing.length > 0) {
        stopRunsOnSignals();
        settings.tokenizer = await sharedTokenizer(c, settings);
        await trainAll(c, settings, recallSettings(size), missing, async (run) => keep(pathOf(run), facts, machine(), await resultOf(c, settings, run)));
    }
    const runs = list.map((run) => keptResult(pathOf(run), facts)).filter((r) => r !== undefined)
        .map((r) => ({ ...r, name: runName(r.scheme, r.seed), group: r.scheme }));
    if (runs.length === 0) {
        stop(`--only table: no run of these settings is finished in ${join(results, name)}`);
    }
    return { settings, texts: facts.texts, folder, runs, nPlanned: list.length };
}

// The results of a complete run.
async function resultOf(c, settings, { scheme, seed }) {
    const name = runName(scheme, seed), files = runFiles(c.folder, name), gguf = readGguf(files.model), shape = shapeOf(gguf);
    const log = readLog(files.log);
    if (lastHeld(log) === undefined) {
        throw new Error(`${name} has no validation loss: of --data no document is held out; more text is needed`);
    }
    const recall = recallSettings(size), model = recall ? runFiles(c.folder, recallName(scheme, seed)).model : files.model;
    return { scheme, seed, log, loss: lastHeld(log), cacheBytes: cacheBytes(shape), flop: prefillFlop(shape, PROMPT_TOKENS),
        parameters: runJson(c.quire, ["info", files.model, "--json"]).n_params, gates: gatesOf(gguf),
        recall: await recallOf(c, model, { taskBytes: (recall ?? settings).task_bytes, questions: c.questions }),
        seconds: secondsOf(readFileSync(files.log, "utf8")) };
}

const mixText = ({ tasks, task_kinds: kinds }, texts) =>
    `${texts ? `text (${textSetName(texts)}), and ${100 * tasks} % of the tokens` : "all tokens"} of tasks (${kinds.replaceAll(",", ", ")})`;

const recallText = (recall) => (!recall ? "" : `Recall is that of models of the same shape after ` +
    `${(recall.steps * recall.rows * recall.ctx / 1e6).toPrecision(3)} M tokens of tasks alone (${recall.task_kinds.replaceAll(",", ", ")}), from first weights with heads that look back and heads that match.`);

// Whether a comparison has all that the published one of its size has.
const isWhole = (runs, nPlanned) => runs.length === nPlanned && options.data !== undefined && nSeeds >= SEEDS &&
    schemes.length >= (SIZES[size].schemes ?? SCHEMES).length && tokens === undefined && options.tokenizer === undefined &&
    Number(options.questions) >= QUESTIONS;

function writeTrained({ settings, texts, folder, runs, nPlanned }) {
    const found = findingsOf(runs);
    const what = `${settings.n_layer} layers of ${settings.d_model}, ${settings.n_head} heads of ${settings.d_head} (gqa: half as many KV heads), ` +
        `feed-forward ${settings.d_ff}, ${(settings.steps * settings.rows * settings.ctx / 1e6).toPrecision(3)} M tokens in rows of ${settings.ctx}`;
    const about = `\`make compare-schemes\`, size ${size}: ${what}; ${mixText(settings, texts)}; ` +
        `${nSeeds === 1 ? "seed 1" : `seeds 1 to ${nSeeds}`}: ${runs.length} of ${nPlanned} runs are finished. FLOP of a prompt of ${PROMPT_TOKENS} tokens are counted from the shape. ${recallText(recallSettings(size))}`;
    const body = `# Schemes of sharing K and V, size ${size}\n\n${markdown(found, about)}\n## Machines\n\n${machinesText(runs)}\n`;
    const page = join(folder, "curves.html");
    writeFileSync(page, curvesPage({ title: `Schemes of sharing K and V, size ${size}`, about: what, runs, parts: findingParts(found) }));
    // No paths: the files may be published.
    const { data, tokenizer, ...shown } = settings;
    const json = { size, texts, settings: { ...shown, tokenizer: options.tokenizer ?? SIZES[size].tokenizer }, ...found,
        runs: runs.map(({ log, group, settings: _, version, texts: __, ...r }) => ({ ...r, held: log.held })) };
    const out = options.out ?? join(options.quick || !isWhole(runs, nPlanned) ? folder : join(root, "bench", "results"), `schemes-${size}`);
    writeFileSync(`${out}.md`, body);
    writeFileSync(`${out}.json`, `${JSON.stringify(json, null, 1)}\n`);
    process.stdout.write(`${body}\n`);
    process.stderr.write(`written: ${out}.md, ${out}.json, ${page}\n`);
}

function speed() {
    const threads = options.threads ?? `${Math.min(2, cpus().length)}`, report = new Report(), quick = options.quick;
    speedOfShapes({ quire: options.quire, generator: options.generator, work: places(root).work, threads, type: options.type, report,
        depths: quick ? QUICK_DEPTHS : DEPTHS, rounds: quick ? 1 : Number(options.rounds), shapes: quick ? QUICK_SHAPES : SHAPES,
        kinds: ["gqa", "mha"] });
    const body = `# Speed of shapes whose layers share K and V\n\n\`make bench-schemes\`. Random weights in ${options.type}; "plain" is the same ` +
        `shape in which all layers store, with KV in f16. Medians of rounds in turns.\n\n${report.markdown({ ...machine(), threads })}`;
    process.stdout.write(body);
    if (options.out) {
        writeFileSync(`${options.out}.md`, body);
    }
    return report.failed();
}

let failed = 0;
if (options.only === "speed") {
    failed = speed();
} else {
    try {
        writeTrained(await trained());
    } catch (error) {
        process.stderr.write(`compare-schemes: ${error.message}\n`);
        failed = 1;
    }
}
process.exit(failed > 0 && !(options.quick && options.only === "speed") ? 1 : 0); // quick speeds say nothing
