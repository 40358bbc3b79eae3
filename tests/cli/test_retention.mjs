// test_retention.mjs - scripts/retention.mjs: policies, intervals, cells, tables, the chart, and a
// whole small run that is stopped and goes on.
//
//   node test_retention.mjs --quire PROGRAM
//
// SPDX-License-Identifier: MIT
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { Cells } from "../../scripts/retention/cells.mjs";
import { chart, panelsOf } from "../../scripts/retention/chart.mjs";
import { floorRows } from "../../scripts/retention/floors.mjs";
import { gathered, isSolved, longest } from "../../scripts/retention/gather.mjs";
import { enough, ofLog, ofMean, ofShare, ofTokens, verdict } from "../../scripts/retention/intervals.mjs";
import { Meter } from "../../scripts/retention/measure.mjs";
import { digestOf, models } from "../../scripts/retention/models.mjs";
import { Clock, fullCells, fullOf, policyCells } from "../../scripts/retention/plan.mjs";
import { POLICIES, argsOf, chosen, parsed, placesOf, retainOf } from "../../scripts/retention/policies.mjs";
import { memo, pool } from "../../scripts/retention/runs.mjs";
import { recallLines } from "../../scripts/retention/tasks.mjs";
import { markdown } from "../../scripts/retention/table.mjs";

const { values: args } = parseArgs({ options: { quire: { type: "string" } } });
const folder = mkdtempSync(join(tmpdir(), "quire-retention-"));
const testData = (name) => new URL(`../data/${name}`, import.meta.url).pathname;
const near = (a, b, what) => assert.ok(Math.abs(a - b) < 1e-3 * Math.max(1, Math.abs(b)), `${what}: ${a}, not ${b}`);
const ASKED = { parts: ["tasks", "continuation", "conversations"], tasks: ["recall", "passkey", "instruction"], conversations: 40 };

function testPolicies() {
    assert.deepEqual(parsed("q4+predict:0.5,pool=3"), { kind: "retain", kv: "q4", name: "predict", share: 0.5, keys: ["pool=3"] });
    assert.deepEqual(parsed("top:0.125"), { kind: "attend", kv: "f16", name: "top", share: 0.125, keys: [] });
    assert.deepEqual(parsed("q3"), { kind: "format", kv: "q3", name: "q3", keys: [] });
    for (const bad of ["", "nothing", "top", "q9+snap:0.5", "snap:0.5,recent", "top:0.5,sinks=4"]) {
        assert.throws(() => parsed(bad), /is none of/, bad);
    }
    POLICIES.forEach(parsed);
    for (const asked of ["reconstruct:0.3", "predict:0.3", "predict:0.5", "entropy:0.5", "entropy,threshold=0.5", "expected:0.5", "snap:0.5",
        "heavy:0.5", "keydiff:0.5", "window:0.5", "last:0.5", "stride:0.5", "random:0.5", "window:0.3",
        "reconstruct:0.3,merge=fit", "q4+predict:0.5", "top:0.125", "q8", "q6", "q5", "q4", "q3"]) {
        assert.ok(POLICIES.includes(asked), asked);
    }
    assert.deepEqual(chosen(undefined, undefined), POLICIES);
    assert.deepEqual(chosen(["snap", "q8", "window:0.2"], [0.7, 0.3]), ["snap:0.7", "snap:0.3", "q8", "window:0.2"]);
    assert.deepEqual(chosen(["snap"], undefined), ["snap:0.5"]);
    const reshared = chosen(undefined, [0.4]);
    assert.ok(reshared.includes("window:0.4") && reshared.includes("q4+predict:0.4") && reshared.includes("entropy,threshold=0.5"));
    assert.ok(!reshared.some((p) => p.startsWith("window:0.5")));
    const m = { recent: 16, wholeLayers: "none" };
    assert.equal(retainOf(parsed("entropy:0.5"), m), "entropy:0.5,recent=16,full_layers=none");
    assert.equal(retainOf(parsed("last:0.5"), m), "last:0.5");
    assert.equal(retainOf(parsed("snap:0.5,recent=8"), m), "snap:0.5,recent=8");
    assert.deepEqual(argsOf(parsed("q4+snap:0.5"), m, 64), ["--kv", "q4", "--retain", "snap:0.5,recent=16", "--prefill-chunk", "64", "-b", "64"]);
    assert.deepEqual(argsOf(parsed("q4"), { ...m, isShort: true }, 64), ["--kv", "q4", "--kv-recent", "0", "--kv-sinks", "0"]);
    assert.deepEqual([argsOf(parsed("q4"), m, 64), argsOf(parsed("q8"), { ...m, isShort: true }, 64)], [["--kv", "q4"], ["--kv", "q8"]]);
    assert.deepEqual(argsOf(parsed("top:0.5"), m, 64), ["--kv", "f16", "--attend", "top:0.5"]);
    assert.deepEqual([placesOf(parsed("snap:0.5")), placesOf(parsed("window:0.5")), placesOf(parsed("q4"))], [["after", "inside"], ["after"], ["after"]]);
}

function testIntervals() {
    near(ofShare(10, 10).low, 0.7225, "Wilson's bound of 10 of 10");
    near(ofShare(5, 10).high, 0.7634, "Wilson's bound of 5 of 10");
    assert.equal(enough(0.95), 73);
    assert.ok(ofShare(73, 73).low >= 0.95 && ofShare(72, 72).low < 0.95);
    near(ofMean([1, 2, 3]).high, 2 + 4.303 / Math.sqrt(3), "Student's t");
    near(ofTokens(1, 0.1).low, 0.804, "of tokens");
    near(ofLog(0, 0.01).high, Math.exp(0.0196), "of a ratio");
    const above = { floor: 0.95, aim: 0.99, aboveIsGood: true };
    assert.equal(verdict({ value: 1, low: 0.995, high: 1 }, above), "aim met");
    assert.equal(verdict({ value: 1, low: 0.96, high: 1 }, above), "aim met, interval reaches beyond the aim");
    assert.equal(verdict({ value: 1, low: 0.84, high: 1 }, above), "aim met, interval reaches beyond both");
    assert.equal(verdict({ value: 0.96, low: 0.9, high: 0.98 }, above), "floor met, interval reaches beyond the floor");
    assert.equal(verdict({ value: 0.9, low: 0.8, high: 0.94 }, above), "**floor missed**");
    assert.equal(verdict({ value: 0.9, low: 0.8, high: 0.96 }, above), "**floor missed**, within the interval");
    assert.equal(verdict({ value: 1.02, low: 1.01, high: 1.025 }, { floor: 1.03, aim: 1.01, aboveIsGood: false }), "floor met");
}

// Each asked pair stands in the first part of its chunk.
function testLines() {
    const text = recallLines({ ctx: 128, scoreFrom: 96, chunks: 2 }, 1);
    assert.equal(text.length, 256);
    for (const chunk of [text.slice(0, 128), text.slice(128)]) {
        const lines = chunk.match(/[a-z]{3}=\d{3}\n/g);
        assert.deepEqual([lines.length, new Set(lines.slice(0, 12)).size], [16, 12]);
        assert.ok(lines.slice(12).every((line) => lines.slice(1, 12).includes(line)));
    }
}

async function testPool() {
    const once = memo(), seen = [];
    let running = 0, most = 0, calls = 0;
    await pool([1, 2, 3, 4, 5], 2, async (item) => {
        most = Math.max(most, ++running);
        await once("key", async () => { calls++; });
        seen.push(item);
        running--;
    }, () => seen.length < 4);
    assert.deepEqual([seen.slice(0, 4), most, calls], [[1, 2, 3, 4], 2, 1]);
}

function testCells() {
    const path = join(folder, "cells", "a.jsonl"), cell = { id: "a", digest: "d" };
    new Cells(path).add({ ...cell, refused: "no" });
    writeFileSync(path, `${readFileSync(path, "utf8")}{"id":"b","dig`); // killed while it wrote
    const again = new Cells(path);
    assert.deepEqual([again.broken, again.result(cell), again.of(cell).refused], [1, undefined, "no"]);
    again.add({ ...cell, result: { right: 1 } });
    assert.equal(new Cells(path).result(cell).right, 1);
    assert.equal(new Cells(path).result({ ...cell, digest: "other" }), undefined);
    rmSync(path);
}

const MADE = [...POLICIES, "reconstruct:0.3,merge=keep"]; // the last one is refused

// Made-up results of all cells: policies answer all but one text of each block, the longest
// instruction texts are not solved.
function madeCells(list) {
    const cells = new Cells(join(folder, "made.jsonl"));
    for (const m of list) {
        for (const c of fullCells([m], ASKED)) {
            const solved = c.task === "instruction" && c.length === 8000 ? [] : Array.from({ length: c.texts }, (_, i) => [i]);
            cells.add({ ...c, seconds: 2 * c.guess, machine: "made", date: "today", result: c.part === "tasks" ? { texts: c.texts, solved }
                : c.part === "continuation" ? { chunks: 8, scored: 4376, nll: 3, nll_stderr: 0.02, bytes: 100 } : { texts: c.texts, tokens: Array(c.texts).fill(400) } });
        }
        policyCells([m], MADE, ASKED).forEach((c, i) => {
            const state = parsed(c.policy).share ?? { q8: 0.53, q6: 0.41, q5: 0.35, q4: 0.29, q3: 0.23 }[c.policy] ?? 0.8;
            const bytes = { kept: state, state, peak: Math.min(1, state + 0.2) };
            cells.add({ ...c, seconds: 2 * c.guess, machine: "made", date: "today", ...(c.policy.endsWith("keep") ? { refused: "quire: no such rule" }
                : { result: c.part === "tasks" ? { texts: c.texts, right: c.texts - (parsed(c.policy).name === "window" ? 10 : 1), ...bytes }
                    : c.part === "continuation" ? { kld: 0.01 * (1 + i % 7), kld_stderr: 0.001, log_ratio: 0.02, log_ratio_stderr: 0.002, top1: 0.9,
                        top1_stderr: 0.01, read: 1, ...bytes }
                        : { agreement: Array.from({ length: c.texts }, (_, k) => 0.8 + 0.02 * (k % 5)), kld: Array(c.texts).fill(0.1), ...bytes } }) });
        });
    }
    return cells;
}

function testTables() {
    const all = models((name) => testData(name), (name) => name), list = Object.entries(all).map(([key, m]) => ({ key, digest: "d", ...m }));
    const cells = madeCells(list), groups = gathered(cells, list, MADE, ASKED);
    const [recall, tiny] = ["recall", "tinyllama"].map((key) => list.find((m) => m.key === key));
    assert.ok(!isSolved(cells, recall, "instruction", 8000, ASKED) && isSolved(cells, recall, "recall", 8000, ASKED));
    assert.equal(longest(cells, recall, ["instruction"], ASKED), 4096);
    // 100 texts of recall in five blocks, one wrong in each.
    const floors = floorRows(cells, list, ASKED).map((r) => r.join(" | "));
    assert.ok(floors.includes("recall, 8000 bytes, `reconstruct:0.3` | 95 of 100: 95.0 % (89 % to 98 %) | 95 % | 99 % | " +
        "floor met, interval reaches beyond the floor"), floors.join("\n"));
    assert.ok(floors.some((f) => f.startsWith("all tasks, 8000 bytes, `window:0.5`, beside `entropy:0.5` | 80 of 160: 50.0 %") && f.endsWith("| met")));
    // One measured task makes no rows of all tasks.
    const recallOnly = new Cells(join(folder, "recall-only.jsonl"));
    for (const c of [...fullCells(list, ASKED), ...policyCells(list, MADE, ASKED)].filter((x) => x.task === "recall" && cells.result(x))) {
        recallOnly.add({ ...c, machine: "made", date: "today", seconds: 1, result: cells.result(c) });
    }
    const fewer = floorRows(recallOnly, list, ASKED).map((r) => r[0]);
    assert.ok(fewer.length > 0 && fewer.every((what) => what.startsWith("recall, ")), fewer.join("\n"));
    assert.ok(floors.some((f) => f.startsWith("TinyLlama-1.1B IQ2_XXS after 1500 tokens, `q4+predict:0.5`: perplexity | +2.0 % (+1.6 to") ||
        f.startsWith("TinyLlama-1.1B IQ2_XXS after 1500 tokens, `q4+predict:0.5`: perplexity | +2.0 % (+1.6 % to +2.4 %) | +4.0 % | +2.0 %")), floors.join("\n"));
    const text = markdown(cells, groups, ASKED);
    assert.match(text, /\| `--attend top:0.125` \| after \|/);
    assert.match(text, /\| `reconstruct:0.3` \| inside \|/);
    assert.doesNotMatch(text, /\| `window:0.5` \| inside \|/);
    assert.match(text, /\| `q4\+predict:0.5` \| 50 % \| 50 % \| 70 % \| 0\.0\d+ \(0\.\d+ to 0\.\d+\) \| 1\.0202 \(1\.0162 to 1\.0242\) \| 90\.0 \(88\.0 to 92\.0\) \|/);
    assert.match(text, /40 conversations of four turns, 400 tokens on average/);
    assert.match(text, /- TinyLlama-1.1B IQ2_XXS, `reconstruct:0.3,merge=keep`: no such rule/);
    assert.ok(text.split("\n").every((line) => line.startsWith("|") || line.length <= 102), "width of text");
    assert.ok(text.split("\n").filter((l) => l.startsWith("|")).every((l) => !/undefined|NaN|Infinity/.test(l)));
    const clock = new Clock([...cells.records.values()]), cell = policyCells([tiny], ["snap:0.5"], ASKED)[0];
    near(clock.seconds(cell), 2 * cell.guess, "a cell as slow as its kind");
    assert.equal(fullOf(tiny, cell, ASKED).policy, "all tokens");
    rmSync(cells.path);
    return groups;
}

// All panels, no point outside of its panel, formats and policies in each.
function testChart(groups) {
    const panels = panelsOf(groups), text = chart(groups);
    assert.equal(panels.length, 10);
    for (const p of panels.filter((x) => !x.about.includes("inside"))) {
        assert.ok(p.points.some((x) => x.shape === "square") && p.points.some((x) => x.name === "predict"), p.about);
    }
    assert.doesNotMatch(text, /NaN|undefined|Infinity/);
    const [width, height] = text.match(/viewBox="0 0 (\d+) (\d+)"/).slice(1).map(Number);
    assert.ok(width === 1200 && height > 4 * 330);
    for (const [, x, y] of text.matchAll(/<circle cx="([\d.-]+)" cy="([\d.-]+)"/g)) {
        assert.ok(x >= 0 && x <= width && y >= 0 && y <= height, `${x}, ${y}`);
    }
}

const script = (list, more = {}) => spawnSync(process.execPath, [new URL("../../scripts/retention.mjs", import.meta.url).pathname, "--quire", args.quire,
    "--cells", join(folder, "run.jsonl"), ...list], { encoding: "utf8", env: { ...process.env, XDG_CACHE_HOME: join(folder, "cache"), ...more } });

const RUN = ["--models", "recall,stories260k", "--lengths", "300", "--samples", "2", "--chunks", "1", "--jobs", "2", "--policies",
    "reconstruct:0.5;snap;q4+window:0.6;window:0.6;top:0.5;q4;snap:0.5,merge=keep"];

function testRun() {
    const lines = () => readFileSync(join(folder, "run.jsonl"), "utf8").trim().split("\n");
    const measured = () => lines().filter((line) => JSON.parse(line).result !== undefined).length;
    const plan = script([...RUN, "--only", "plan"]);
    assert.equal(plan.status, 0, plan.stderr);
    assert.match(plan.stdout, /all: \d+ cells, 2 at once/);
    const first = script([...RUN, "--only", "measure"]);
    assert.equal(first.status, 0, first.stderr);
    assert.match(first.stderr, /refused: quire: --retain .*merge=keep/);
    assert.match(first.stderr, /\[\d+\/\d+, .* to go\]/);
    const n = measured(), records = lines().map((line) => JSON.parse(line));
    assert.ok(records.some((r) => r.model === "stories260k" && r.policy === "reconstruct:0.5" && r.result.kld > 0 && r.result.state < 1));
    assert.ok(records.some((r) => r.model === "recall" && r.part === "continuation" && r.policy === "window:0.6" && r.result.kld > 0));
    assert.ok(records.some((r) => r.part === "tasks" && r.policy === "top:0.5" && r.result.right >= 0));
    // A run that was killed: one cell is missing, and is measured alone. What was refused is asked
    // again.
    const kept = lines(), lost = kept.findIndex((line) => JSON.parse(line).policy === "top:0.5");
    writeFileSync(join(folder, "run.jsonl"), `${kept.filter((_, i) => i !== lost).join("\n")}\n`);
    const second = script([...RUN, "--svg", join(folder, "a.svg"), "--json", join(folder, "a.json")]);
    assert.equal(second.status, 0, second.stderr);
    assert.equal(measured(), n);
    assert.equal((second.stderr.match(/^\[.*(?<!refused: .*)$/gm) ?? []).length, 1, second.stderr);
    assert.match(second.stdout, /### quire-recall: answers[\s\S]*### stories260K F32: continuation[\s\S]*### Refused/);
    assert.match(readFileSync(join(folder, "a.svg"), "utf8"), /<svg/);
    assert.deepEqual(JSON.parse(readFileSync(join(folder, "a.json"))).map((m) => m.model), ["recall", "stories260k"]);
    const table = script([...RUN, "--only", "table", "--quire", "/nothing"]);
    assert.equal(table.stdout, second.stdout);
    assert.equal(script([...RUN, "--minutes", "0.0000001", "--samples", "3"]).status, 0);
    assert.equal(measured(), n);
}

function testUsage() {
    for (const [list, message] of [[["--models", "none"], /--models 'none' is unknown/], [["--policies", "none:0.5"], /'none:0.5' is none of/],
        [["--only", "cells"], /--only 'cells' is unknown/], [["--jobs", "0"], /--jobs 0: a whole number from 1/]]) {
        const done = script(list);
        assert.equal(done.status, 2);
        assert.match(done.stderr, message);
    }
    const none = script(["--models", "tinyllama", "--only", "measure"], { QUIRE_MODELS_DIR: folder });
    assert.equal(none.status, 0, none.stderr);
    assert.match(none.stderr, /skipped: TinyLlama.* is missing/);
}

// Conversations and maps of predict, which no model of the repository is asked by default.
async function testTalks() {
    const talk = join(folder, "questions.jsonl");
    writeFileSync(talk, Array.from({ length: 4 }, (_, i) => `${JSON.stringify({ turns: [`Once there was a cat ${i}.`, "And then?"] })}\n`).join(""));
    mkdirSync(join(folder, "text"));
    copyFileSync(testData("fables.txt"), join(folder, "text", "fables.txt"));
    const m = { key: "tiny", name: "tiny", model: testData("stories260K-f32.gguf"), digest: digestOf(testData("stories260K-f32.gguf")), ctx: 512, chunk: 64,
        recent: 16, chunks: 1, text: join(folder, "text", "fables.txt"), talk, wholeLayers: "none", cost: () => 1, repeat: 2,
        calibrate: { ctx: 64, chunks: 4 }, turn: { user: "Q: ", assistant: "\nA: ", end: "\n", answer: 8, chunk: 64, recent: 8 } };
    const meter = new Meter({ quire: args.quire, work: join(folder, "work"), threads: "1" }), asked = { ...ASKED, conversations: 2 };
    const of = async (policy) => {
        const cell = (policy === undefined ? fullCells([m], asked) : policyCells([m], [policy], asked)).find((c) => c.part === "conversations");
        const full = policy && fullOf(m, cell, asked);
        await meter.prepare(m, cell, full);
        return meter.measure(m, cell, full);
    };
    const full = await of(undefined);
    assert.equal(full.texts, 2);
    assert.ok(full.tokens.every((n) => n > 40 && n < 512));
    const all = await of("window:1");
    assert.ok(all.agreement.every((v) => v === 1) && all.kld.every((v) => Math.abs(v) < 1e-3), JSON.stringify(all));
    const some = await of("predict:0.4");
    assert.ok(some.kept < 1 && some.state < 1 && some.agreement.length === 2 && some.kld.some((v) => v > 1e-4), JSON.stringify(some));
}

try {
    testPolicies();
    testIntervals();
    testLines();
    await testPool();
    testCells();
    testChart(testTables());
    testUsage();
    testRun();
    await testTalks();
    console.log("ok - policies, intervals, cells, tables, chart, a run that goes on, conversations");
} finally {
    rmSync(folder, { recursive: true, force: true });
}
