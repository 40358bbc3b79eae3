// test_schemes.mjs - scripts/compare-schemes.mjs and train-page.mjs: statistics, files, logs,
// pages, and a whole small comparison that is stopped and goes on; text that a model writes for its
// own cut; the tutorial of docs/training.md.
//
//   node test_schemes.mjs --quire PROGRAM --generator PROGRAM
//
// SPDX-License-Identifier: MIT
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { thinned } from "../../scripts/schemes/curves.mjs";
import { gatesOf, gatesVerdict, meanGates } from "../../scripts/schemes/gates.mjs";
import { readGguf } from "../../scripts/schemes/gguf.mjs";
import { cacheBytes, prefillFlop, settingsFacts, shapeOf, sharedSettings, storedLayers, textSet, textSetName } from "../../scripts/schemes/plan.mjs";
import { distances, pairsOf, recallTask } from "../../scripts/schemes/recall.mjs";
import { parseLog } from "../../scripts/schemes/runs.mjs";
import { difference, differenceBySeed, interval, judgeBelow, quantile } from "../../scripts/schemes/statistics.mjs";
import { Server } from "../../scripts/serve/server.mjs";
import { beginning, complete, storiesOf, written } from "../../scripts/train/stories-text.mjs";

const { values: args } = parseArgs({ options: { quire: { type: "string" }, generator: { type: "string" } } });
const folder = mkdtempSync(join(tmpdir(), "quire-schemes-"));
const near = (a, b, what) => assert.ok(Math.abs(a - b) < 1e-3 * Math.max(1, Math.abs(b)), `${what}: ${a}, not ${b}`);

function testStatistics() {
    near(quantile(2), 4.303, "t at 2");
    assert.ok(quantile(2.5) < quantile(2) && quantile(2.5) > quantile(3));
    near(quantile(1e9), 1.96, "t at infinity");
    const one = interval([1, 2, 3]);
    near(one.mean, 2, "mean");
    near(one.half, 4.303 / Math.sqrt(3), "half of the interval");
    assert.equal(interval([5]).half, undefined);
    // Equal variances and sizes: Welch's degrees of freedom are 2 n - 2.
    near(difference([1, 2, 3], [4, 5, 6]).half, quantile(4) * Math.sqrt(2 / 3), "half of Welch's interval");
    const seeds = (...values) => new Map(values.map((value, i) => [i + 1, value]));
    assert.equal(judgeBelow(seeds(1, 1.1, 0.9), seeds(2, 2.1, 1.9)).verdict, "seen");
    assert.equal(judgeBelow(seeds(2, 2.1, 1.9), seeds(1, 1.1, 0.9)).verdict, "not seen: the opposite is");
    assert.equal(judgeBelow(seeds(1, 2, 3), seeds(2.5, 1.5, 3.5)).verdict, "within noise");
    assert.equal(judgeBelow(seeds(1), seeds(2)).verdict, "one seed: no interval");
    // Seeds far apart: the differences seed by seed say what the means do not.
    const paired = judgeBelow(seeds(1, 2, 3), seeds(1.4, 2.5, 3.6));
    assert.deepEqual([paired.verdict, paired.isPaired], ["seen", true]);
    near(paired.mean, -0.5, "mean of differences");
    near(paired.half, 4.303 * 0.1 / Math.sqrt(3), "half of the paired interval");
    // Pairs go by seed, and not by place.
    near(differenceBySeed(new Map([[1, 1], [2, 5]]), new Map([[2, 4], [1, 0]])).half, 0, "equal differences");
    const other = differenceBySeed(seeds(1, 2, 3), new Map([[2, 4], [3, 5], [4, 6]]));
    assert.ok(!other.isPaired);
    near(other.half, quantile(4) * Math.sqrt(2 / 3), "Welch's, of other seeds");
}

function made(scheme) {
    const path = join(folder, `made-${scheme}.gguf`);
    const done = spawnSync(args.generator, ["--shape", "tiny-quire", "--layers", "8", "--scheme", scheme, "--type", "f32", "-o", path]);
    assert.equal(done.status, 0, `${done.stderr}`);
    return readGguf(path);
}

function testFiles() {
    const [plain, lite, fused, cla] = ["gqa", "fusedkv-lite", "fusedkv", "cla2"].map(made);
    const shapes = [plain, lite, fused, cla].map(shapeOf);
    assert.deepEqual(shapes.map(storedLayers), [8, 4, 4, 4]);
    assert.equal(cacheBytes(shapes[0]), 8 * 2 * 2 * 2 * 32);
    assert.equal(cacheBytes(shapes[1]) * 2, cacheBytes(shapes[0]));
    const flop = shapes.map((s) => prefillFlop(s, 8192));
    // Of 8 layers 7, 3, 3 and 6 run for all tokens, and attention dominates.
    assert.ok(Math.abs(flop[1] / flop[0] - 3 / 7) < 0.01, `lite : plain ${flop[1] / flop[0]}`);
    assert.ok(flop[2] > flop[1] && flop[2] < 1.01 * flop[1] && flop[3] < flop[0] && flop[3] > flop[1]);
    assert.deepEqual(gatesOf(plain), []);
    const gates = gatesOf(fused);
    assert.deepEqual(gates.map((g) => g.layer), [4, 5, 6, 7]);
    assert.deepEqual([gates[0].k.sources, gates[0].v.sources], [[0, 3], [0, 3]]);
    assert.ok(gates.every((g) => g.k.share > 0 && g.k.share < 1));
    const lists = [[{ layer: 1, k: { sources: [0, 1], sizes: [1, 3], share: 0.25 } }], [{ layer: 1, k: { sources: [0, 1], sizes: [3, 1], share: 0.75 } }]];
    assert.deepEqual(meanGates(lists)[0].k, { sources: [0, 1], sizes: [2, 2], share: 0.5 });
    testGates(fused);
    writeFileSync(join(folder, "no.gguf"), "no model");
    assert.throws(() => readGguf(join(folder, "no.gguf")), /no\.gguf: not a GGUF file/);
}

// The set of texts is its bytes and names, and neither the folder nor hidden files.
function testTexts() {
    const at = (name) => join(folder, name);
    for (const name of ["one", "two", "three"]) {
        mkdirSync(join(at(name), "more"), { recursive: true });
        writeFileSync(join(at(name), "a.txt"), "a text");
        writeFileSync(join(at(name), "more", name === "three" ? "c.txt" : "b.txt"), "another");
        writeFileSync(join(at(name), ".hidden"), name);
    }
    const [one, two, three] = ["one", "two", "three"].map((name) => textSet(at(name)));
    assert.deepEqual([one.files, one.bytes], [2, 13]);
    assert.deepEqual(one, two);
    assert.notEqual(one.digest, three.digest);
    const facts = settingsFacts("quick", sharedSettings("quick", { data: at("one") }));
    assert.deepEqual(facts.texts, one);
    assert.ok(!JSON.stringify(facts).includes(folder), "facts name no path");
    assert.match(textSetName(one), /^2 files of 13 bytes, digest [0-9a-f]{16}$/);
}

// Shares weigh gates by the K and V that they are for, and the verdict has an interval over seeds.
function testGates(fused) {
    const shape = shapeOf(fused), width = shape.nKvHead * shape.dHead;
    // V of the bottom layer three times as large, and so are K by their norms; equal gates.
    const floats = (name) => (name.includes("_gate.") ? new Float32Array(shape.dHead / 2).fill(0.5)
        : name.includes("attn_v.weight") ? new Float32Array(width * shape.dModel).fill(name.startsWith("blk.0.") ? 3 : 1)
            : new Float32Array(name.includes("_k_norm") ? shape.dHead : shape.dModel).fill(name === "blk.0.attn_k_norm.weight" ? 3 : 1));
    const [layer] = gatesOf({ ...fused, tensors: new Map([...fused.tensors, ["blk.0.attn_k_norm.weight", {}], ["blk.3.attn_k_norm.weight", {}]]), floats });
    near(layer.v.share, 0.75, "share in V");
    near(layer.k.share, 0.75, "share in K");
    assert.deepEqual(layer.k.sizes, [0.5, 0.5]);
    const run = (k, v) => [{ layer: 1, k: { share: k }, v: { share: v } }];
    const said = gatesVerdict([run(0.2, 0.4), run(0.21, 0.41), run(0.19, 0.39)]).text;
    assert.match(said, /keys .*: seen \(bottom 20 % ± 2\); values .*: not seen: the opposite is \(bottom 40 % ± 2\)/);
    assert.match(gatesVerdict([run(0.4, 0.6), run(0.55, 0.45)]).text, /keys .*: within noise .* values .*: within noise/);
    assert.match(gatesVerdict([run(0.4, 0.6)]).text, /keys .*: one seed: no interval \(bottom 40 %\)/);
    assert.equal(gatesVerdict([[{ layer: 1, k: {}, v: {} }]]), undefined);
}

// Steps that a resumed run says again count once; half a line does not count.
function testLogs() {
    const log = parseLog('{"step": 2, "loss": 5, "tokens": 20}\n{"step": 2, "held_loss": 6}\n{"step": 4, "loss": 4.5, "tokens": 40}\n' +
        '{"step": 4, "loss": 4, "tokens": 40}\n{"step": 4, "held_loss": 4.25}\n{"step": 6, "lo');
    assert.deepEqual(log, { train: [[20, 5], [40, 4]], held: [[20, 6], [40, 4.25]] });
    const thin = thinned(Array.from({ length: 1000 }, (_, i) => [i, i]));
    assert.ok(thin.length <= 400);
    assert.deepEqual([thin[0], thin.at(-1)], [[2, 1], [999, 999]]);
}

function testTasks() {
    const { prompt, answer } = recallTask(8, 3, 1), lines = prompt.split("\n");
    assert.equal(lines.length, 9);
    assert.equal(lines[4], `${lines[8].slice(0, 3)}=${answer}`);
    assert.equal(new Set(lines.slice(0, 8).map((line) => line.slice(0, 3))).size, 8);
    assert.deepEqual([64, 384, 640].map(pairsOf), [4, 24, 48]);
    assert.deepEqual(distances(64), [0, 1, 2, 3]);
    assert.deepEqual(distances(640), [0, 1, 2, 4, 8, 16, 32, 47]);
}

function testStories() {
    const story = (name) => `${name} ${"went home and ".repeat(20)}slept.`;
    const [a, b] = [story("Tom"), `${story("Lily")}\n\nThe end.`];
    assert.deepEqual(storiesOf(`${a}\n${b}\n${a}\n`), [a, b, a]);
    assert.deepEqual(storiesOf(`${a}\n\n\n${b}\n\n\nToo short.\n\n\n${a}`), [a, b, a]);
    assert.deepEqual(storiesOf(written([a, b])), [a, b]);
    assert.equal(beginning([a, b], 1, 4), "Lily went home and");
    assert.equal(beginning([a, b], 7, 20), b);
    assert.equal(beginning([a, b], 5, 20), b.split(" ").slice(0, 60).join(" "));
    assert.equal(complete('He said. "Yes." And th'), 'He said. "Yes."');
}

const testData = (name) => new URL(`../data/${name}`, import.meta.url).pathname;

function done(program, list) {
    const ended = spawnSync(program, list, { cwd: folder, encoding: "utf8" });
    assert.equal(ended.status, 0, `${program} ${list.join(" ")}: ${ended.stderr}`);
    return ended;
}

// A model tells stories, a second call goes on, and the model's cut learns from them.
function testTold() {
    const model = testData("stories260K-f32.gguf"), told = join(folder, "told"), given = join(folder, "given.txt");
    const tell = (n) => done(process.execPath, [script("train/stories-text.mjs"), "--out", told, "--text", given, "--model", model, "--stories",
        `${n}`, "--tokens", "40", "--quire", args.quire]);
    writeFileSync(given, written(["Tom", "Lily"].map((name) => `One day ${name} ${"went home and ".repeat(20)}slept.`)));
    for (const n of [3, 5]) {
        tell(n);
        assert.equal(readFileSync(join(told, "told.txt"), "utf8").split("<|endoftext|>\n").length, n + 1);
    }
    assert.match(readFileSync(join(told, "told.txt"), "utf8"), /One day Lily/);
    const { stdout } = done(args.quire, ["train", "--from", model, "--scheme", "fusedkv-lite", "--data", told, "-c", "64", "--rows", "2",
        "--steps", "2", "--log-every", "1", "--checkpoint", "told.checkpoint", "-o", "told.gguf"]);
    assert.match(stdout, /step 2 of 2 .*divergence/);
}

// The commands of docs/training.md, with few steps of few tokens: from a folder of texts to a
// served model.
async function testTutorial() {
    const tutorial = readFileSync(new URL("../../docs/training.md", import.meta.url), "utf8").match(/```sh\n(.*?)```/s)[1];
    const [, config] = tutorial.match(/^cat > run\.yaml <<END\n(.*?)^END$/ms);
    assert.match(tutorial, /^quire train run\.yaml$/m);
    mkdirSync(join(folder, "texts"));
    copyFileSync(testData("fables.txt"), join(folder, "texts", "fables.txt"));
    writeFileSync(join(folder, "run.yaml"), config);
    done(args.quire, ["train", "run.yaml", "--steps", "2", "--rows", "1", "-c", "64", "--held-batches", "1"]);
    const [, ran] = tutorial.match(/^quire run (.*) -p "[^"]*"$/m), [, served] = tutorial.match(/^quire serve (.*) &$/m);
    done(args.quire, ["run", ...ran.split(" "), "-p", "Once", "-n", "4"]);
    const [, path, body] = tutorial.match(/^curl http:\/\/127\.0\.0\.1:8080(\S+) -d '(.*)'$/m);
    const server = await Server.start(args.quire, ["serve", ...served.replace("stories.gguf", join(folder, "stories.gguf")).split(" ")]);
    try {
        const answer = await server.client.json("POST", path, JSON.parse(body));
        assert.equal(answer.status, 200, JSON.stringify(answer.body));
        assert.ok(answer.body.usage.completion_tokens > 0);
    } finally {
        await server.stop();
    }
}

const script = (name) => new URL(`../../scripts/${name}`, import.meta.url).pathname;
const comparison = ["--quick", "--quire", args.quire, "--schemes", "mha,fusedkv", "--seeds", "2", "--jobs", "2", "--runs", folder];

// The training is stopped at once or in the middle, depending on the machine's speed. The next call
// goes on.
async function testStops() {
    const child = spawn(process.execPath, [script("compare-schemes.mjs"), ...comparison], { stdio: "ignore" });
    const ended = new Promise((done) => child.on("close", done));
    while (!readdirSync(folder).some((name) => name.startsWith("quick-") && readdirSync(join(folder, name)).includes("mha-1.jsonl"))) {
        await new Promise((done) => setTimeout(done, 10));
    }
    child.kill("SIGTERM");
    assert.ok([0, 143].includes(await ended));
}

function compared() {
    const done = spawnSync(process.execPath, [script("compare-schemes.mjs"), ...comparison], { encoding: "utf8" });
    assert.equal(done.status, 0, done.stderr);
    return done;
}

async function testComparison() {
    await testStops();
    const first = compared(), runs = join(folder, readdirSync(folder).find((name) => name.startsWith("quick-")));
    for (const text of ["| mha | 2 |", "| fusedkv | 2 |", "| 0.50 |", "fusedkv: layer", "Recall by distance"]) {
        assert.ok(first.stdout.includes(text), `${text} in ${first.stdout}`);
    }
    const json = JSON.parse(readFileSync(join(runs, "schemes-quick.json"), "utf8"));
    assert.equal(json.runs.length, 4);
    const [text, recall] = ["mha-1", "mha-1-recall"].map((name) => readFileSync(join(runs, `${name}.yaml`), "utf8"));
    assert.match(recall, /^task_bytes: 96\n/m);
    assert.match(recall, /^scheme: mha\nseed: 1\n/m);
    assert.doesNotMatch(recall, /^data:/m);
    assert.deepEqual([text, recall].map((yaml) => yaml.match(/^n_layer: .*$/m)[0]), ["n_layer: 4", "n_layer: 4"]);
    assert.ok(existsSync(join(runs, "mha-1-recall.gguf")));
    assert.deepEqual(json.runs[0].recall.map((r) => r.distance), distances(96));
    assert.match(first.stdout, /Recall is that of models of the same shape after 0\.00832 M tokens of tasks alone \(recall, copy\)/);
    assert.ok(json.runs.every((r) => r.loss > 0 && r.loss < 10 && r.held.at(-1)[1] === r.loss));
    assert.ok(first.stdout.includes("4 of 4 runs are finished") && first.stdout.includes("| mha-1, fusedkv-1, mha-2, fusedkv-2 |"), first.stdout);
    const again = compared();
    assert.equal(again.stdout, first.stdout);
    assert.doesNotMatch(again.stderr, /jsonl/, "no run was trained again");
    testPages(runs);
    testKept(first.stdout, runs);
}

// Results of another machine. A run with a result file of the same settings is not trained again. A
// run whose result file has other settings is trained.
function testKept(stdout, runs) {
    const results = join(runs, "results", runs.split("/").at(-1)), other = join(folder, "other");
    const table = (...list) => spawnSync(process.execPath, [script("compare-schemes.mjs"), ...comparison, "--runs", other, ...list], { encoding: "utf8" });
    const path = join(results, "mha-2.json"), kept = JSON.parse(readFileSync(path, "utf8"));
    assert.ok(kept.loss > 0 && kept.machine.cpu && kept.settings.recipe > 0 && kept.log.train.length > 0 && !("data" in kept.settings));
    assert.equal(table("--results", join(runs, "results"), "--only", "table").stdout, stdout);
    writeFileSync(path, JSON.stringify({ ...kept, settings: { ...kept.settings, rate: 1 } }));
    const three = table("--results", join(runs, "results"), "--only", "table").stdout;
    assert.ok(three.includes("3 of 4 runs are finished") && three.includes("| mha | 1 |"), three);
    writeFileSync(path, "{");
    assert.match(table("--results", join(runs, "results"), "--only", "table").stderr, /mha-2\.json: .*remove the file/);
    assert.match(table("--only", "table").stderr, /no run of these settings is finished/);
}

const dataOf = (path) => JSON.parse(readFileSync(path, "utf8").match(/<script id="data" type="application\/json">(.*?)<\/script>/s)[1]);

function testPages(runs) {
    const parts = dataOf(join(runs, "curves.html")).parts;
    assert.deepEqual(parts.map((p) => p.id), ["held", "train", "schemes", "order", "recall", "gates-fusedkv"]);
    assert.deepEqual(parts[0].series.map((s) => [s.name, s.tint]), [["mha-1", 0], ["fusedkv-1", 1], ["mha-2", 0], ["fusedkv-2", 1]]);
    const out = join(folder, "page.html");
    const page = (...list) => spawnSync(process.execPath, [script("train-page.mjs"), "-o", out, ...list], { encoding: "utf8" });
    assert.equal(page(join(runs, "mha-1.jsonl"), join(runs, "fusedkv-1.jsonl"), "--title", "</script>").status, 0);
    assert.deepEqual(dataOf(out).parts[1].series.map((s) => s.name), ["mha-1", "fusedkv-1"]);
    assert.equal(dataOf(out).title, "</script>");
    writeFileSync(join(folder, "empty.jsonl"), "");
    assert.match(page(join(folder, "empty.jsonl")).stderr, /empty: no line of quire train --json/);
}

function testRefused() {
    for (const [list, text] of [[["--size", "huge"], "--size 'huge' is unknown"], [["--schemes", "mla"], "--schemes 'mla' is unknown"], [["--seeds", "0"], "--seeds 0"],
        [["--data", "/nowhere"], "/nowhere: no such file"]]) {
        const done = spawnSync(process.execPath, [script("compare-schemes.mjs"), ...list], { encoding: "utf8" });
        assert.equal(done.status, 2);
        assert.ok(done.stderr.includes(text), done.stderr);
    }
    assert.ok(!existsSync(join(folder, "huge")));
}

try {
    testStatistics();
    testFiles();
    testLogs();
    testTasks();
    testTexts();
    testStories();
    testRefused();
    testTold();
    await testTutorial();
    await testComparison();
    console.log("ok - statistics, files, logs, tasks, stories, the tutorial, a comparison, pages");
} finally {
    rmSync(folder, { recursive: true });
}
