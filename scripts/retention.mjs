// retention.mjs - quality against KV bytes of the retention policies, beside the KV formats.
//
//   node scripts/retention.mjs --quire build/quire [--only plan|measure|table] [--jobs 2]
//        [--minutes N] [--cells FILE] [--models recall,tinyllama,stories15m,minimind2,stories260k]
//        [--policies "reconstruct:0.3;q4+predict:0.5;top:0.125;q4"] [--shares 0.5,0.3]
//        [--parts tasks,continuation,conversations] [--lengths 2048,4096] [--tasks recall,passkey]
//        [--samples 100] [--chunks 8] [--conversations 40] [--svg FILE] [--json FILE] [--write]
//
// `make retention` builds and calls this. Three yardsticks:
//
//   tasks          recall, passkey and instruction, answered by greedy decoding. "after": the text
//                  is condensed before the question is read; "inside": the question is among the
//                  last tokens when the text is condensed, so that policies which look at the last
//                  queries know it. Policies that look at nothing are not asked inside: they would
//                  keep the same tokens. Only texts that the cache of all tokens answers count
//   continuation   a text is read in chunks, of which the end is scored: the second half, or what
//                  follows 1,500 tokens. Tokens are dropped before the words that need them are
//                  known. KL divergence from the cache of all tokens, the ratio of the perplexities
//                  and how often the likeliest token is the same
//   conversations  four turns of two questions of mt-bench-questions.jsonl, answered by the model
//                  with all tokens. The last answer is then read again token by token (forced
//                  decoding). How many of its tokens are the likeliest ones of both caches
//
// Bytes are those of pages, at the end and at their most, to those of the cache of all tokens in
// f16. Intervals are 95 %.
//
// A cell is one model, yardstick and policy, and of tasks and conversations a block of texts. Each
// measured cell is a line of --cells FILE. A later call goes on where an earlier one was stopped.
// Lines of several machines may be put together.
//
//   --only plan    the cells that are missing, with estimates of their time
//   --only table   tables from the cells that are there, without a program or a model; with --write
//                  they go into bench/results/retention.md, and the chart into docs/retention.svg.
//                  --write goes with all models, policies, parts and texts
//   --jobs N       cells at once, each with --threads threads (1)
//   --minutes N    no cell begins later than that
//
// Exits 1 if a cell failed. A policy that the program refuses is a result and no failure. A cell
// with all tokens is never refused: it fails.
//
// SPDX-License-Identifier: MIT
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { readOptions, stopOf } from "./compare/options.mjs";
import { asset, machine, missing, places } from "./compare/tools.mjs";
import { Cells } from "./retention/cells.mjs";
import { chart } from "./retention/chart.mjs";
import { gathered, isSolved } from "./retention/gather.mjs";
import { Meter } from "./retention/measure.mjs";
import { digestOf, models } from "./retention/models.mjs";
import { Clock, fullCells, fullOf, policyCells } from "./retention/plan.mjs";
import { FULL, chosen } from "./retention/policies.mjs";
import { markdown } from "./retention/table.mjs";
import { Refused, pool } from "./retention/runs.mjs";
import { TASKS, recallLines } from "./retention/tasks.mjs";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const at = places(root);
const WORK = join(at.work, "retention");
const ALL = models((name) => asset(at, name), (name) => join(WORK, name));
const CONVERSATIONS = 40;
const PARTS = ["tasks", "continuation", "conversations"];
const PAGE = { file: join(root, "bench", "results", "retention.md"), begin: "<!-- retention:begin -->", end: "<!-- retention:end -->" };
const CHART = join(root, "docs", "retention.svg");

const say = (text) => process.stderr.write(`${text}\n`);
const stop = stopOf("retention");
const options = readOptions("retention", {
    quire: { type: "string", default: join(root, "build", "quire") },
    only: { type: "string", default: "all", known: ["all", "plan", "measure", "table"] },
    cells: { type: "string", default: join(WORK, "cells.jsonl") },
    jobs: { type: "string", default: `${Math.min(2, cpus().length)}`, whole: 1 },
    threads: { type: "string", default: "1", whole: 1 },
    minutes: { type: "string", above: 0 },
    models: { type: "string", default: Object.keys(ALL).join(","), known: Object.keys(ALL), isList: true },
    policies: { type: "string" },
    shares: { type: "string", above: 0, isList: true },
    parts: { type: "string", default: PARTS.join(","), known: PARTS, isList: true },
    tasks: { type: "string", default: TASKS.join(","), known: TASKS, isList: true },
    lengths: { type: "string", whole: 64, isList: true },
    samples: { type: "string", whole: 1 },
    chunks: { type: "string", whole: 1 },
    conversations: { type: "string", default: `${CONVERSATIONS}`, whole: 1 },
    svg: { type: "string" },
    json: { type: "string" },
    write: { type: "boolean", default: false },
});
const numberOf = (name) => (options[name] === undefined ? undefined : Number(options[name]));

// The options that leave something out of the tables, of those that are given.
function narrowing() {
    const isFewer = { models: options.models.split(",").length < Object.keys(ALL).length, parts: options.parts.split(",").length < PARTS.length,
        tasks: options.tasks.split(",").length < TASKS.length, conversations: numberOf("conversations") !== CONVERSATIONS };
    return [...Object.keys(isFewer).filter((name) => isFewer[name]),
        ...["policies", "shares", "lengths", "samples", "chunks"].filter((name) => options[name] !== undefined)].map((name) => `--${name}`);
}

// Models whose files are there, with the digest of the model. For tables: all, with the digest of
// the file, or else of the last line of the file of cells.
function present(keys, cells, isTable) {
    return keys.flatMap((key) => {
        const m = { key, ...ALL[key] };
        const absent = [m.model, m.text].find((path) => path !== undefined && !existsSync(path));
        if (isTable) {
            const known = [...cells.records.values()].filter((r) => r.model === key).at(-1)?.digest;
            return [{ ...m, digest: existsSync(m.model) ? digestOf(m.model) : known }];
        }
        if (m.isMade && m.text === absent) {
            mkdirSync(WORK, { recursive: true });
            writeFileSync(m.text, recallLines(m, 1));
        } else if (absent !== undefined) {
            say(`skipped: ${m.name}: ${missing(absent)}`);
            return [];
        }
        if (m.talk !== undefined && !existsSync(m.talk) && options.parts.includes("conversations")) {
            say(`skipped: ${m.name}, conversations: ${missing(m.talk)}`);
        }
        return [{ ...m, turn: m.talk !== undefined && existsSync(m.talk) ? m.turn : undefined, digest: digestOf(m.model) }];
    });
}

function readable(seconds) {
    return seconds < 90 ? `${Math.round(seconds)} s` : seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

function told(result) {
    const shares = result.right !== undefined ? `${result.right} of ${result.texts}` : result.solved !== undefined ? `${result.solved.length} of ${result.texts}`
        : result.kld !== undefined && result.kld.length === undefined ? `KL divergence ${result.kld.toFixed(4)}, perplexity x ${Math.exp(result.log_ratio).toFixed(4)}`
            : result.agreement !== undefined ? `${(100 * result.agreement.reduce((a, b) => a + b, 0) / result.agreement.length).toFixed(1)} % the same` : "";
    return `${shares}${result.state === undefined ? "" : `, ${(100 * result.state).toFixed(0)} % of the bytes`}`;
}

// Runs through cells once: what to do, the time to go, refusals.
class Run {
    constructor(cells, chosenModels, asked) {
        Object.assign(this, { cells, asked });
        this.models = new Map(chosenModels.map((m) => [m.key, m]));
        const { cpu, cores, date } = machine();
        Object.assign(this, { machine: `${cpu}, ${cores} cores`, date });
        this.clock = new Clock([...cells.records.values()].filter((r) => r.result !== undefined && r.machine === this.machine && r.date === date));
        this.meter = new Meter({ quire: options.quire, work: WORK, threads: options.threads });
        this.refused = new Set();
        this.failed = 0;
        this.ends = Date.now() + 60000 * (numberOf("minutes") ?? Infinity);
    }

    missing(list) {
        return list.filter((c) => this.cells.result(c) === undefined &&
            (c.part !== "tasks" || isSolved(this.cells, this.models.get(c.model), c.task, c.length, this.asked)));
    }

    seconds(list) {
        return list.reduce((sum, c) => sum + this.clock.seconds(c), 0) / this.jobs;
    }

    get jobs() {
        return numberOf("jobs");
    }

    async measure(list) {
        const waiting = new Set(list);
        let done = 0;
        await pool(list, this.jobs, async (cell) => {
            const text = await this.#one(cell);
            waiting.delete(cell);
            done++;
            if (text !== undefined) {
                say(`[${done}/${list.length}, ${readable(this.seconds([...waiting]))} to go] ${cell.id.replaceAll(" | ", " ")}: ${text}`);
            }
        }, () => Date.now() < this.ends);
    }

    // The line to say about a cell.
    async #one(cell) {
        const m = this.models.get(cell.model), kind = [cell.model, cell.part, cell.length, cell.policy].join(" ");
        if (this.refused.has(kind)) {
            return undefined;
        }
        const full = cell.policy === FULL ? undefined : fullOf(m, cell, this.asked);
        const fullResult = full && this.cells.result(full);
        if (full !== undefined && fullResult === undefined && cell.part === "tasks") {
            return "left: not measured with all tokens";
        }
        const { guess, ...names } = cell;
        const record = { ...names, guess: Number(guess.toFixed(2)), machine: this.machine, date: this.date };
        try {
            await this.meter.prepare(m, cell, full);
            const start = Date.now();
            const result = await this.meter.measure(m, cell, full, fullResult);
            const seconds = (Date.now() - start) / 1000;
            this.cells.add({ ...record, seconds, result });
            this.clock.add(cell, seconds);
            return `${told(result)}, ${readable(seconds)}`;
        } catch (error) {
            if (!(error instanceof Refused) || cell.policy === FULL) {
                this.failed++;
                return `failed: ${error.message}`;
            }
            this.refused.add(kind);
            this.cells.add({ ...record, refused: error.message });
            return `refused: ${error.message}`;
        }
    }
}

function printPlan(run, cells) {
    const groups = new Map();
    for (const c of cells) {
        const key = `${c.model} ${c.part}${c.length === undefined ? "" : ` ${c.length}`}, ${c.policy}`;
        groups.set(key, [...(groups.get(key) ?? []), c]);
    }
    for (const [key, list] of groups) {
        process.stdout.write(`${readable(run.seconds(list)).padStart(8)}  ${key}: ${list.length} cells\n`);
    }
    process.stdout.write(`${readable(run.seconds(cells)).padStart(8)}  all: ${cells.length} cells, ${run.jobs} at once\n`);
}

function write(text, groups) {
    const page = readFileSync(PAGE.file, "utf8");
    const [begin, end] = [page.indexOf(PAGE.begin), page.indexOf(PAGE.end)];
    if (begin < 0 || end < begin) {
        throw new Error(`${PAGE.file}: no ${PAGE.begin} .. ${PAGE.end} to put the tables in`);
    }
    writeFileSync(PAGE.file, `${page.slice(0, begin + PAGE.begin.length)}\n\n${text}\n\n${page.slice(end)}`);
    writeFileSync(CHART, chart(groups));
}

function printTables(cells, tabled, policies, asked) {
    const groups = gathered(cells, tabled, policies, asked);
    if (groups.length === 0) {
        say(`retention: ${cells.path} has no cells of these models, parts and policies`);
        return;
    }
    const text = markdown(cells, groups, asked);
    process.stdout.write(`${text}\n`);
    if (options.write) {
        write(text, groups);
    }
    if (options.svg !== undefined) {
        writeFileSync(options.svg, chart(groups));
    }
    if (options.json !== undefined) {
        writeFileSync(options.json, `${JSON.stringify(groups.map(({ model, ...g }) => ({ model: model.key, digest: model.digest, ...g })), null, 1)}\n`);
    }
}

async function main() {
    const { only } = options, keys = options.models.split(","), fewer = narrowing();
    const asked = { parts: options.parts.split(","), tasks: options.tasks.split(","), lengths: options.lengths?.split(",").map(Number),
        samples: numberOf("samples"), chunks: numberOf("chunks"), conversations: numberOf("conversations") };
    if (options.write && fewer.length > 0) {
        stop(`--write replaces all tables and the chart: it does not go with ${fewer.join(", ")}`);
    }
    let policies;
    try {
        policies = chosen(options.policies?.split(";"), options.shares?.split(",").map(Number));
    } catch (error) {
        stop(`--policies ${error.message}`);
    }
    const cells = new Cells(options.cells);
    if (cells.broken > 0) {
        say(`retention: ${options.cells}: ${cells.broken} lines are damaged and count as not measured`);
    }
    if (only !== "table") {
        const run = new Run(cells, present(keys, cells, false), asked), chosenModels = [...run.models.values()];
        const first = run.missing(fullCells(chosenModels, asked)), rest = () => run.missing(policyCells(chosenModels, policies, asked));
        if (only === "plan") {
            printPlan(run, [...first, ...rest()]);
            return;
        }
        say(`${first.length + rest().length} cells to measure into ${options.cells}, about ${readable(run.seconds([...first, ...rest()]))}`);
        await run.measure(first);
        await run.measure(rest());
        process.exitCode = run.failed > 0 ? 1 : 0;
    }
    if (only !== "measure") {
        printTables(cells, present(keys, cells, true), policies, asked);
    }
}

await main();
