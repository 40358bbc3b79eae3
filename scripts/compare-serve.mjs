// compare-serve.mjs - quire serve and llama-server under the same load, on one machine, in one run.
//
//   node scripts/compare-serve.mjs --quire build/quire --peer DIR
//        [--only conversations,arrivals,document,prefix,agents,fit|families] [--repeats 3]
//        [--threads 2] [--tune [--settings TEXT]] [--quick] [--out FILE]
//
// `make compare-serve` builds both sides and calls this. The loads are in serve/workloads.mjs,
// settings and targets in serve/sides.mjs. Prints a row as soon as it is measured and Markdown
// tables at the end; exits 1 if a floor was missed or a server or a row failed. --tune runs
// llama-server's settings instead (those whose names contain --settings TEXT), each of them once
// per load, to find its best. families: the parts chat-gemma3, chat-qwen3.5 and turn (a second turn
// beside a cold one), on models that are made when they are absent (2.2 and 2.7 GB).
//
// SPDX-License-Identifier: MIT
import { writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { readOptions, stopOf } from "./compare/options.mjs";
import { shapedModels } from "./compare/shapes.mjs";
import { measuredOn, need, number, places, Report } from "./compare/tools.mjs";
import { agents } from "./serve/agents.mjs";
import { fit } from "./serve/fit.mjs";
import { bestOf, bound, cachedPrefix, failedSides, figuresTable, inTurns, ourSide, peerSide, secondTurn, verdict } from "./serve/race.mjs";
import { CACHED_PREFIX, FAMILIES, FIT, LOADS, MINIMUM, PEER_SETTINGS, SECOND_TURN } from "./serve/sides.mjs";
import { cut, dataPaths, readData } from "./serve/texts.mjs";
import { documentMinimum, FAMILY_CHAT, QUICK_SIZES, SIZES } from "./serve/workloads.mjs";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const stop = stopOf("compare-serve");
const parts = [...Object.keys(LOADS), "prefix", "agents", "fit", "turn"];
const options = readOptions("compare-serve", {
    quire: { type: "string", default: join(root, "build", "quire") },
    peer: { type: "string" },
    generator: { type: "string", default: join(root, "build", "make_gguf") },
    fit: { type: "string", default: join(root, "build", "bench_fit") },
    only: { type: "string", default: "conversations,arrivals,document,prefix,agents,fit", known: ["families", ...parts], isList: true },
    repeats: { type: "string", default: "3", whole: 1 },
    threads: { type: "string", default: `${Math.min(2, cpus().length)}`, whole: 1 },
    tune: { type: "boolean", default: false },
    settings: { type: "string", default: "" },
    quick: { type: "boolean", default: false },
    out: { type: "string" },
});
if (!options.peer) {
    stop("--peer DIR (with llama-server) is needed; use `make compare-serve`");
}
const only = options.only.split(",").flatMap((part) => (part === "families" ? FAMILIES : [part]));
const tuned = Object.keys(PEER_SETTINGS).filter((name) => name.includes(options.settings));
if (options.tune && tuned.length === 0) {
    stop(`--settings '${options.settings}' is in no name of llama-server's settings: ${Object.keys(PEER_SETTINGS).join("; ")}`);
}

const at = places(root);
const report = new Report();
if (!need(report, "all loads", ...dataPaths(at))) {
    process.exit(0);
}
const shaped = shapedModels(options.generator, at.work, { isQuick: options.quick });
const c = {
    quire: options.quire, peer: options.peer, work: at.work, threads: Number(options.threads), cut, data: readData(at),
    realModel: join(at.cache, "models", "tinyllama-1.1b-chat-iq2_xxs.gguf"),
    model: shaped.smol.model, sizes: options.quick ? QUICK_SIZES : SIZES,
};
const repeats = options.quick ? 1 : Number(options.repeats);
const tables = [];

// The model and texts of a load. Texts are cut by a model's tokenizer, so another model gets texts
// of its own.
function settingOf(load) {
    const { raced, isFamilyChat } = LOADS[load];
    const sizes = isFamilyChat && !options.quick ? { ...c.sizes, conversations: FAMILY_CHAT } : c.sizes;
    return raced ? { ...c, texts: undefined, model: shaped[raced].model, sizes } : c;
}

async function tune(load) {
    const setting = settingOf(load);
    const results = await inTurns(setting, tuned.map((name) => peerSide(setting, name)), load, 1);
    tables.push(figuresTable(load, results));
    failedSides(report, load, results);
}

function ratioRows(load, mine, peers) {
    for (const target of LOADS[load].rows) {
        const what = `${load}: ${target.what}, quire : llama-server's best`;
        const failed = [mine, ...peers].find((result) => result.error);
        if (failed) {
            report.add({ what, verdict: "failed", note: `${failed.name}: ${failed.error.split("\n")[0]}` });
            continue;
        }
        const best = bestOf(peers, target.best);
        const [ours, theirs] = [mine.figures[target.field], best.figures[target.field]];
        report.add({ what, ours, theirs, ratio: ours / theirs, floor: bound(target.floor, target),
            aim: bound(target.aim, target), verdict: verdict(ours / theirs, target), note: best.name });
    }
}

// The fastest settings are not those with the smallest memory.
function memoryRow(load, mine, peers) {
    const smallest = peers.reduce((a, b) => (b.figures.peakBytes < a.figures.peakBytes ? b : a));
    report.add({ what: `${load}: peak memory, quire : llama-server's settings with the smallest`, ours: mine.figures.peakBytes,
        theirs: smallest.figures.peakBytes, ratio: mine.figures.peakBytes / smallest.figures.peakBytes, verdict: "reported",
        note: smallest.name });
}

async function raceLoad(load) {
    const setting = settingOf(load);
    const ours = Object.entries(LOADS[load].ours).map(([name, settings]) => ourSide(setting, name, settings));
    const peers = LOADS[load].peer.map((name) => peerSide(setting, name));
    const results = await inTurns(setting, [...ours, ...peers], load, repeats);
    tables.push(figuresTable(load, results));
    const measured = results.slice(ours.length);
    ratioRows(load, results[0], measured);
    failedSides(report, load, results.slice(1, ours.length)); // no row of ratios has these
    if (results[0].figures && measured.every((result) => result.figures)) {
        memoryRow(load, results[0], measured);
    }
    if (load === "document" && results[0].figures) {
        const [computed, minimum] = [results[0].figures.computedTokens, documentMinimum(c.texts)];
        report.add({ what: "document: tokens computed : the minimum possible", ours: computed, theirs: minimum,
            ratio: computed / minimum, floor: bound(MINIMUM.floor, MINIMUM), aim: bound(MINIMUM.aim, MINIMUM),
            verdict: verdict(computed / minimum, MINIMUM) });
    }
}

async function racePrefix() {
    const sizes = options.quick ? { ...CACHED_PREFIX, tokens: 512, rounds: 1 } : CACHED_PREFIX;
    for (const side of [ourSide(c, "", []), ourSide(c, "--kv f16", ["--kv", "f16"]), peerSide(c, LOADS.document.peer[0])]) {
        const target = side.name === "quire" ? sizes : {};
        const what = `TTFT with a cached prefix of ${sizes.tokens} tokens : cold, ${side.name}`;
        try {
            const { cold, cached, cachedTokens } = await cachedPrefix(c, side, sizes);
            report.add({ what, ours: cached, theirs: cold, ratio: cached / cold, floor: bound(target.floor, target),
                aim: bound(target.aim, target), verdict: verdict(cached / cold, target), note: `${number(cachedTokens)} tokens cached` });
        } catch (error) {
            report.add({ what, verdict: "failed", note: error.message.split("\n")[0] });
        }
    }
}

async function raceTurn() {
    const sizes = options.quick ? { ...SECOND_TURN, tokens: 512, rounds: 1 } : SECOND_TURN;
    const { name, model } = shaped[sizes.raced];
    const on = { ...c, model };
    for (const side of [ourSide(on, "", []), ourSide(on, "session_id", []), peerSide(on, LOADS["chat-qwen3.5"].peer[0])]) {
        const target = side.name.startsWith("quire") ? sizes : {};
        const what = `second turn of a conversation of ${sizes.tokens} tokens, ${name}: TTFT : cold, ${side.name}`;
        try {
            const { cold, next, prompt, computed } = await secondTurn(on, side, sizes);
            report.add({ what, ours: next, theirs: cold, ratio: next / cold, floor: bound(target.floor, target),
                aim: bound(target.aim, target), verdict: verdict(next / cold, target), note: `${computed} of ${prompt} tokens computed` });
        } catch (error) {
            report.add({ what, verdict: "failed", note: error.message.split("\n")[0] });
        }
    }
}

const PARTS = {
    ...Object.fromEntries(Object.keys(LOADS).map((load) => [load, () => raceLoad(load)])),
    prefix: racePrefix,
    turn: raceTurn,
    agents: async () => tables.push(await agents(c, report, at, { repeats, turns: options.quick ? 4 : undefined })),
    fit: () => fit(c, report, { ...FIT, program: options.fit }),
};

// A part that ends with an error fails as a row, and the rows before it stay.
for (const part of only.filter((name) => !options.tune || name in LOADS)) {
    try {
        await (options.tune ? tune(part) : PARTS[part]());
    } catch (error) {
        report.add({ what: part, verdict: "failed", note: error.message.split("\n")[0] });
    }
}

const text = `${report.markdown(measuredOn(options.quire, c.threads))}\n${tables.join("\n")}`;
process.stdout.write(text);
if (options.out) {
    writeFileSync(options.out, `# quire serve and llama-server under the same load\n\n\`make compare-serve\`. ${text}`);
}
process.exit(report.failed() > 0 ? 1 : 0);
