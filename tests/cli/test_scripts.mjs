// test_scripts.mjs - scripts that measure: wrong options, programs that fail, results of other
// programs, and what a run leaves behind. Small programs of this test stand for Quire and its
// peers.
//
//   node test_scripts.mjs
//
// SPDX-License-Identifier: MIT
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";
import { exactPerplexity } from "../../scripts/compare/quality.mjs";
import { race } from "../../scripts/compare/speed.mjs";
import { Report, places } from "../../scripts/compare/tools.mjs";
import { ownFolder } from "../../scripts/compare/work.mjs";
import { Meter } from "../../scripts/retention/measure.mjs";
import { keep, keptPath } from "../../scripts/schemes/kept.mjs";
import { settingsFacts, settingsName, sharedSettings } from "../../scripts/schemes/plan.mjs";
import { sides } from "../../scripts/serve/agents.mjs";
import { hasFailed } from "../../scripts/serve/qos.mjs";
import { bestOf, failedSides } from "../../scripts/serve/race.mjs";

const folder = mkdtempSync(join(tmpdir(), "quire-scripts-"));
const at = (...names) => join(folder, ...names);
const path = (name) => new URL(`../../scripts/${name}`, import.meta.url).pathname;
const FIGURES = new URL("../../bench/results/", import.meta.url).pathname;

// A program in sh.
function program(name, body) {
    mkdirSync(dirname(at(name)), { recursive: true });
    writeFileSync(at(name), `#!/bin/sh\n${body}\n`, { mode: 0o755 });
    return at(name);
}

// A run of a script: no model, no text and no cache of this machine is seen.
const script = (name, list, env = {}) => spawnSync(process.execPath, [path(name), ...list], { encoding: "utf8",
    env: { ...process.env, XDG_CACHE_HOME: at("cache"), QUIRE_MODELS_DIR: at("models"), ...env } });

// What a file with lines holds.
const lines = (name) => (existsSync(at(name)) ? readFileSync(at(name), "utf8").trim().split("\n") : []);

const PEER = ["--peer", "/nowhere"];
const WRONG = [
    ["bench-7b.mjs", ["--rows", "q8_0"], /--rows 'q8_0' is no WEIGHTS\/KV/],
    ["bench-7b.mjs", ["--rows", "q8_0/q8,q4"], /--rows 'q8_0\/q8,q4' is no WEIGHTS\/KV/],
    ["bench-7b.mjs", ["--limit", "24GB"], /--limit 24GB: a number above 0/],
    ["bench-7b.mjs", ["--text", "/nowhere"], /\/nowhere is missing/],
    ["bench-qos.mjs", ["--only", "quire,pear"], /--only 'pear' is unknown: it takes quire, unclassed, peer/],
    ["bench-qos.mjs", ["--requests", "many"], /--requests many: a whole number from 1/],
    ["bench-tiers.mjs", ["--only", "restrat"], /--only 'restrat' is unknown/],
    ["bench-tiers.mjs", ["--rounds", "0"], /--rounds 0: a whole number from 1/],
    ["compare.mjs", [...PEER, "--only", "sped"], /--only 'sped' is unknown: it takes families, quality/],
    ["compare.mjs", ["--only", "speed"], /--peer DIR/],
    ["compare.mjs", [...PEER, "--chunks", "x"], /--chunks x: a whole number from 1/],
    ["compare-schemes.mjs", ["--schemes", "mha,mla"], /--schemes 'mla' is unknown/],
    ["compare-serve.mjs", [...PEER, "--repeats", "x"], /--repeats x: a whole number from 1/],
    ["compare-serve.mjs", [...PEER, "--tune", "--settings=-np 9"], /--settings '-np 9' is in no name/],
    ["compare-tiers.mjs", [...PEER, "--rounds", "x"], /--rounds x: a whole number/],
    ["quality.mjs", ["--sizes", "6.52"], /--sizes '6.52' is unknown: it takes 8.25/],
    ["quality.mjs", ["--models", "stories15m,tinylama"], /--models 'tinylama' is unknown/],
    ["quality.mjs", ["--repets", "3"], /quality: Unknown option '--repets'/],
    ["retention.mjs", ["--lengths", "2k"], /--lengths 2k: a whole number from 64/],
    ["retention.mjs", ["--shares", "0.5,x"], /--shares x: a number above 0/],
    ["retention.mjs", ["--only", "table", "--write", "--models", "recall"], /--write replaces all tables and the chart: it does not go with --models/],
    ["retention.mjs", ["--only", "table", "--write", "--samples", "5"], /it does not go with --samples/],
    ["tool-calls.mjs", ["--ajv", "/nowhere", "--url", "http://127.0.0.1:1", "--only", "grpe"], /--only 'grpe' is unknown: it takes /],
    ["agents/replay.mjs", ["--url", "http://127.0.0.1:1", "--sizes", "x"], /--sizes x: a number above 0/],
    ["serve/soak.mjs", ["--kv", "q4"], /--kv 'q4' is unknown: it takes f32, f16, q8/],
    ["traces.mjs", [at("traces"), "one"], /usage: .*whole number/],
];

// One line and status 2, before anything is made.
function testOptions() {
    for (const [name, list, message] of WRONG) {
        const done = script(name, list);
        assert.equal(done.status, 2, `${name} ${list.join(" ")}: ${done.stderr}`);
        assert.match(done.stderr, message);
        assert.equal(done.stderr.trim().split("\n").length, 1, done.stderr);
    }
    assert.ok(!existsSync(at("traces")));
    // A name that only the generator knows is asked for before the first row.
    const generator = program("generator", "echo 'llama plain'");
    const done = script("compare.mjs", [...PEER, "--generator", generator, "--only", "quality,perplexity-families", "--families", "lama"]);
    assert.deepEqual([done.status, done.stderr], [2, "compare: --families 'lama' is unknown: it takes llama, comma-separated\n"]);
}

// ---- programs that fail ----

const POINT = { name: "a shape", model: folder, depth: 0, gen: 1, rounds: 2, repeats: 1, ours: ["f16"], peer: [{ kv: "f16", fa: "on" }],
    rows: [{ test: "decode", kv: "f16", to: "peer" }] };

// A side that fails in a later round has no figure: the rounds before do not stand for all.
function testLaterRounds() {
    const bench = `echo $1 >>'${at("rounds")}'\necho '[{"test":"decode","tokens_per_second":2,"repeats":[2]}]'`;
    const c = { quire: program("quire", bench), peer: folder, threads: 1 };
    const verdict = (peer) => {
        program("llama-bench", peer);
        const report = new Report();
        race(c, report, POINT);
        return report.rows[0];
    };
    const answer = `echo '[{"n_prompt":0,"avg_ts":1,"samples_ts":[1]}]'`;
    assert.deepEqual([verdict(answer).verdict, verdict(answer).ratio], ["reported", 2]);
    const row = verdict(`if [ -e '${at("once")}' ]; then echo broken >&2; exit 1; fi\ntouch '${at("once")}'\n${answer}`);
    assert.equal(row.verdict, "failed");
    assert.match(row.note, /broken/);
}

// Files of logits, of hundreds of MB, are removed when a program fails.
function testLogitsAreRemoved() {
    program("llama-perplexity", `while [ "$1" != --kl-divergence-base ]; do shift; done\necho x >"$2"\necho 'Final estimate: PPL = 2.0 +/- 0.1'`);
    mkdirSync(at("work"));
    const c = { quire: program("quire", "exit 1"), peer: folder, work: at("work"), threads: 1 };
    const s = { name: "a model", model: folder, text: folder, ctx: 8, chunks: 1 };
    assert.throws(() => exactPerplexity(c, new Report(), s), /exit 1/);
    assert.deepEqual(readdirSync(at("work")), []);
}

// Sides without a row of their own, and errors of a part: each is a row, and the others stay.
function testServe() {
    const side = (name, requestsPerSecond, ttftP95) => ({ name, figures: { requestsPerSecond, ttftP95 } });
    const peers = [side("slow", 1, 2), side("fast", 2, 3)];
    assert.deepEqual([bestOf(peers).name, bestOf(peers, "ttftP95").name], ["fast", "slow"]);
    const report = new Report();
    failedSides(report, "arrivals", [...peers, { name: "quire --kv f16", error: "it ended\nwith 1" }]);
    assert.deepEqual(report.rows, [{ what: "arrivals, quire --kv f16", verdict: "failed", note: "it ended" }]);
    assert.deepEqual([{}, { error: "cancelled" }, { error: "busy", status: 429 }, { error: "status 500", status: 500 }, { error: "closed early", status: 200 }]
        .map(hasFailed), [false, false, false, true, true]);
    mkdirSync(at("models"), { recursive: true });
    writeFileSync(at("models", "moby-dick.txt"), "CHAPTER 1. Loomings. Call me Ishmael.");
    writeFileSync(at("models", "mt-bench-questions.jsonl"), '{"turns":["a","b"]}\n');
    writeFileSync(at("models", "sharegpt-prompts.json"), "[]");
    const generator = program("generator", 'while [ "$1" != -o ]; do shift; done\necho model >"$2"');
    const quire = program("quire", '[ "$1" = --version ] || { echo no memory >&2; exit 1; }');
    const done = script("compare-serve.mjs", [...PEER, "--quire", quire, "--generator", generator, "--quick", "--only", "prefix,fit"]);
    assert.equal(done.status, 1, done.stderr);
    assert.match(done.stdout, /\| TTFT with a cached prefix .*, quire \(.*no memory\) .*\| failed \|[\s\S]*\| fit \(.*no memory\) .*\| failed \|/);
}

// Of llama-server's settings one has KV in f16, with which its attention is fastest.
function testAgents() {
    const all = sides({ quire: "quire", peer: "/peer", model: "m", threads: 2 }, places(folder)).map(({ name, args }) => [name, args.includes("-ctk")]);
    assert.deepEqual(all, [["quire", false], ["llama-server f16", false], ["llama-server q8_0", true], ["llama-server f16 --cache-reuse 256", false]]);
}

// ---- results that stay ----

// A part that was skipped leaves its section.
function testSections() {
    const out = at("tiers.md"), before = "# Pages on disk\n\n## A shared store that fails\n\nFigures.\n";
    writeFileSync(out, before);
    const quire = program("quire", "exit 0");
    const done = script("bench-tiers.mjs", ["--only", "hung", "--quire", quire, "--model", folder, "--out", out], { PATH: "/nowhere", TMPDIR: folder });
    assert.equal(done.status, 0, done.stderr);
    assert.match(done.stderr, /tiers\.md: the section of hung stays as it is: skipped, neither valkey-server nor redis-server/);
    assert.equal(readFileSync(out, "utf8"), before);
    assert.ok(!readdirSync(folder).some((name) => name.startsWith("quire-tiers-")));
}

// A comparison of one run is not written over the published one.
function testSchemes() {
    const facts = settingsFacts("small", { ...sharedSettings("small", {}), questions: 50 }), name = settingsName("small", facts);
    keep(keptPath(at("results"), name, "mha-1"), facts, { cpu: "a CPU", cores: 1, date: "today" }, { scheme: "mha", seed: 1, loss: 3, cacheBytes: 1, flop: 1,
        parameters: 1, recall: [], gates: [], seconds: 1, log: { train: [[1, 3]], held: [[1, 3]] } });
    const published = readFileSync(join(FIGURES, "schemes-small.md"), "utf8");
    const done = script("compare-schemes.mjs", ["--only", "table", "--results", at("results"), "--runs", at("runs")]);
    assert.equal(done.status, 0, done.stderr);
    assert.equal(readFileSync(join(FIGURES, "schemes-small.md"), "utf8"), published);
    assert.match(readFileSync(at("runs", name, "schemes-small.md"), "utf8"), /1 of 21 runs are finished/);
}

// ---- quality ----

// Writes the logits that it is asked for, and names them in a file. Beside those of --logits-base
// all figures are made up.
const PERPLEXITY = (seen) => {
    const interval = '{"mean":0.01,"stderr":0.001}';
    const base = `{"ppl":2,"ppl_ratio":1,"nll_difference":${interval},"kld":${interval},"top1_agreement":1,"top1_agreement_stderr":0}`;
    return `for word; do\n[ "$last" != --save-logits ] || { echo "$word" >>'${seen}'; echo x >"$word"; }\nlast=$word\ndone\n` +
        `echo '{"n_chunks":2,"n_scored":9,"nll":1,"nll_stderr":0.1,"ppl":2,"base":${base},` +
        `"kv":{"bits_per_value":4,"layers":1,"hot_pair_share":0,"live_peak_bytes":8,"computed_bytes":4}}'`;
};

function testQuality() {
    const done = (...list) => script("quality.mjs", ["--quire", at("quire"), ...list]);
    assert.deepEqual([done("--check").status, done().status], [1, 0]);
    assert.match(done("--check", "--models", "stories15m").stderr, /gate: stories15M Q8_0, tinystories.txt: not measured/);
    const write = done("--write");
    assert.equal(write.status, 2);
    assert.match(write.stderr, /--write replaces the tables of all models: .*is missing/);
    // Kept logits are of a model's bytes and a number of chunks.
    for (const name of ["stories15M-q8_0.gguf", "tinystories.txt"]) {
        writeFileSync(at("models", name), name);
    }
    mkdirSync(at("logits"));
    program("quire", PERPLEXITY(at("saved")));
    const made = (chunks) => {
        rmSync(at("saved"), { force: true });
        const one = done("--models", "stories15m", "--sizes", "4.5", "--chunks", chunks, "--logits", at("logits"));
        assert.equal(one.status, 0, one.stderr);
        return lines("saved").filter((file) => file.endsWith("f32.logits")).length;
    };
    assert.deepEqual([made("2"), made("2"), made("3"), made("2")], [1, 0, 1, 0]);
    writeFileSync(at("models", "stories15M-q8_0.gguf"), "another");
    assert.equal(made("2"), 1);
    // A run that failed leaves no gigabytes, and its model is told.
    program("quire", "exit 1");
    const failed = done("--models", "stories15m");
    assert.equal(failed.status, 1);
    assert.match(failed.stderr, /failed: stories15M Q8_0/);
    assert.deepEqual(readdirSync(at("cache", "quire", "compare")).filter((name) => name.startsWith("quality-")), []);
}

// Folders of killed runs are removed; the folder of a running script stays.
function testFolders() {
    const ended = spawnSync("true").pid, parent = at("parent");
    mkdirSync(join(parent, `a-${ended}-abcdef`), { recursive: true });
    mkdirSync(join(parent, `b-${ended}-abcdef`));
    const [one, two] = [ownFolder(parent, "a"), ownFolder(parent, "a")];
    assert.deepEqual(readdirSync(parent).sort(), [one, two].map((name) => name.slice(parent.length + 1)).concat(`b-${ended}-abcdef`).sort());
}

// ---- retention ----

// Predictions with all tokens are those of the program and the text that are measured.
async function testBaseline() {
    const text = at("a.txt"), saved = () => lines("saved").length;
    writeFileSync(text, "a text");
    rmSync(at("saved"), { force: true });
    const m = { key: "a", digest: "d", model: folder, text, ctx: 8 }, full = { id: "full", policy: "all tokens", part: "continuation", settings: "ctx 8, 2 chunks" };
    const cell = { ...full, id: "cell", policy: "q4" };
    const measured = async () => {
        const meter = new Meter({ quire: at("quire"), work: at("meter"), threads: "1" });
        await meter.prepare(m, cell, full);
        return [await meter.measure(m, cell, full), await meter.measure(m, full)];
    };
    program("quire", PERPLEXITY(at("saved")));
    const [result, all] = await measured();
    assert.deepEqual([result.state, all], [0.5, { chunks: 2, scored: 9, nll: 1, nll_stderr: 0.1, bytes: 8 }]);
    await measured();
    assert.equal(saved(), 1);
    program("quire", `# newer\n${PERPLEXITY(at("saved"))}`);
    await measured();
    assert.equal(saved(), 2);
    writeFileSync(text, "another text");
    await measured();
    assert.equal(saved(), 3);
    // A run that was killed after it had the file and before it had the figures.
    rmSync(at("meter", "a-d", "ctx-8-2-chunks.logits.json"));
    await measured();
    assert.equal(saved(), 4);
    program("quire", "echo no room >&2; exit 1");
    await assert.rejects(measured(), (error) => error.constructor === Error && /with all tokens: no room/.test(error.message));
}

// A cell with all tokens that fails is no refusal. The other lengths of a refused policy are asked.
function testFailures() {
    const stories = ["--models", "recall", "--parts", "tasks", "--tasks", "recall", "--samples", "1", "--policies", "q4", "--jobs", "1", "--only", "measure"];
    const run = (...list) => script("retention.mjs", ["--quire", at("quire"), "--cells", at("cells.jsonl"), ...stories, ...list]);
    program("quire", "echo no room >&2; exit 1");
    const failed = run("--lengths", "300");
    assert.equal(failed.status, 1, failed.stderr);
    assert.match(failed.stderr, /all tokens.*: failed: no room/);
    program("quire", "echo nothing");
    assert.match(run("--lengths", "300").stderr, /failed: .*its output is no JSON/);
    const answers = '{"text":"","prompt_tokens":9,"kv":{"charged_bytes":1}}';
    program("quire", `case "$*" in *q4*) echo no >&2; exit 1 ;; esac\necho '${answers}'`);
    const refused = run("--lengths", "300,200");
    assert.equal(refused.status, 0, refused.stderr);
    assert.equal(refused.stderr.match(/all tokens.*: 0 of 1/g).length, 2, refused.stderr);
}

// Programs end with the script that a signal ends.
async function testSignals() {
    program("sleeper", `echo $$ >'${at("pid")}'\nexec sleep 600`);
    for (const call of ['(await import(runs)).runJson(sleeper, [])', '(await import(tools)).watch(sleeper, [])']) {
        rmSync(at("pid"), { force: true });
        const values = `const [runs, tools, sleeper] = ${JSON.stringify([pathToFileURL(path("retention/runs.mjs")).href, pathToFileURL(path("compare/tools.mjs")).href, at("sleeper")])};`;
        const child = spawn(process.execPath, ["--input-type=module", "-e", `${values} await ${call};`], { stdio: "ignore" });
        const ended = new Promise((done) => child.on("close", done));
        while (lines("pid").join("") === "") {
            await new Promise((done) => setTimeout(done, 10));
        }
        const pid = Number(lines("pid")[0]);
        child.kill("SIGTERM");
        assert.equal(await ended, 143);
        const state = () => (existsSync(`/proc/${pid}/stat`) ? readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)[0] : "gone");
        while (!["gone", "Z"].includes(state())) {
            await new Promise((done) => setTimeout(done, 10)); // the test's time limit ends a wait in vain
        }
    }
}

try {
    testOptions();
    testLaterRounds();
    testLogitsAreRemoved();
    testServe();
    testAgents();
    testSections();
    testSchemes();
    testQuality();
    testFolders();
    await testBaseline();
    testFailures();
    await testSignals();
    console.log("ok - options, failures, results that stay, logits of other programs, folders, signals");
} finally {
    rmSync(folder, { recursive: true, force: true });
}
