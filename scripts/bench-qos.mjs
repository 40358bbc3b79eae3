// bench-qos.mjs - the share of its speed that a realtime class keeps beside batch work of four
// times the capacity.
//
//   node scripts/bench-qos.mjs --quire build/quire --peer DIR [--only quire,unclassed,peer]
//                              [--requests 100] [--warm 15] [--realtime 256:32] [--batch 512:64]
//                              [--threads 2] [--quick] [--seed 1] [--out FILE]
//
// `make bench-qos` builds both sides and calls this. Loads and runs are in serve/qos.mjs. In this
// order, each on a server started anew with cold caches, and no prompt twice:
//
//   capacity    quire without classes, 64 batch requests at once: tokens/s that the machine can do
//   alone       quire, realtime requests at a fixed rate, together a tenth of that
//   loaded      the same beside batch requests that arrive four times as fast as they could be
//               served
//   unclassed   the same two loads on quire without classes: one class for all
//   peer        the same two loads on llama-server, which has no classes
//
// The targets are in TARGETS. Prints a line as soon as something is measured and Markdown tables at
// the end; exits 1 if a floor was missed or a run failed. With the default 100 realtime requests a
// run takes 100 / (a tenth of the capacity) seconds, some minutes; --quick only tries the scripts
// out.
//
// SPDX-License-Identifier: MIT
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { readOptions, stopOf } from "./compare/options.mjs";
import { measuredOn, need, places, Report, shapeModel } from "./compare/tools.mjs";
import { capacity, figures, TABLE_HEAD, tableLine, tokenStream } from "./serve/qos.mjs";
import { bound, fresh, verdict } from "./serve/race.mjs";
import { dataPaths, readData } from "./serve/texts.mjs";

const TARGETS = {
    ttft: { floor: 1.5, aim: 1.2, isLess: true },
    tpot: { floor: 1.5, aim: 1.15, isLess: true },
    throughput: { floor: 0.85 },
};
const REALTIME_SHARE = 0.1;
const BATCH_TIMES = 4;
const PEER_SLOTS = 8;

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const fail = stopOf("bench-qos");
const parts = ["quire", "unclassed", "peer"];
const options = readOptions("bench-qos", {
    quire: { type: "string", default: join(root, "build", "quire") },
    peer: { type: "string" },
    generator: { type: "string", default: join(root, "build", "make_gguf") },
    only: { type: "string", default: parts.join(","), known: parts, isList: true },
    requests: { type: "string", default: "100", whole: 1 },
    warm: { type: "string", default: "15", whole: 0 },
    realtime: { type: "string", default: "256:32" },
    batch: { type: "string", default: "512:64" },
    threads: { type: "string", default: `${Math.min(2, cpus().length)}`, whole: 1 },
    seed: { type: "string", default: "1", whole: 0 },
    quick: { type: "boolean", default: false },
    out: { type: "string" },
});

const shape = (text) => {
    const [prompt, answer] = text.split(":").map(Number);
    if (!(prompt >= 1 && answer >= 2)) {
        fail(`'${text}' is no PROMPT:ANSWER in tokens`);
    }
    return { prompt, answer, tokens: prompt + answer };
};
const realtime = shape(options.realtime), batch = shape(options.batch);
const only = options.only.split(",");
if (only.includes("peer") && !options.peer) {
    fail("--peer DIR (with llama-server) is needed; use `make bench-qos`, or --only quire,unclassed");
}

const at = places(root);
const report = new Report();
if (!need(report, "service classes under load", ...dataPaths(at))) {
    process.exit(0);
}
const folder = mkdtempSync(join(tmpdir(), "quire-qos-"));
process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
const oneClass = join(folder, "one-class.yaml");
writeFileSync(oneClass, "classes:\n  - { name: standard }\n");

const context = 64 * Math.ceil((Math.max(realtime.tokens, batch.tokens) + 64) / 64);
const model = shapeModel(options.generator, at.work, "smollm2-135m", "q8_0");
const quireArgs = ["serve", "-m", model, "-t", options.threads, "-c", `${context}`, "--max-queue", "64", "--max-connections", "1024"];
const sides = {
    quire: { name: "quire, classes", program: options.quire, args: quireArgs, tier: (name) => ({ service_tier: name }) },
    unclassed: { name: "quire, one class", program: options.quire, args: [...quireArgs, "--config", oneClass] },
    peer: { name: `llama-server -np ${PEER_SLOTS} -fa on`, program: options.peer && join(options.peer, "llama-server"),
        args: ["-m", model, "-t", options.threads, "--no-ui", "-np", `${PEER_SLOTS}`, "-c", `${PEER_SLOTS * context}`, "-fa", "on"] },
};
const c = {
    realtime, batch, warmMs: (options.quick ? 3 : Number(options.warm)) * 1000, seed: Number(options.seed),
    requests: options.quick ? 5 : Number(options.requests), book: readData(at).book,
};
const table = [];

// One run on a server of its own; undefined, and a row that says why, when it failed.
async function measure(what, side, task) {
    let server;
    try {
        server = await fresh(side);
        c.tokens ??= await tokenStream(server.client, c);
        const result = await task(server);
        if (result.runs) {
            table.push(tableLine(what, side.name, result));
            process.stderr.write(`${table.at(-1)}\n`);
        }
        return result;
    } catch (error) {
        report.add({ what: `${what}: ${side.name}`, verdict: "failed", note: error.message.split("\n")[0] });
        return undefined;
    } finally {
        await server?.stop();
    }
}

const row = (what, ours, theirs, target, note) => report.add({
    what, ours, theirs, ratio: ours / theirs, floor: bound(target.floor, target), aim: bound(target.aim, target),
    verdict: target.floor === undefined ? "reported" : verdict(ours / theirs, target), note });

const tokensPerSecond = await measure("capacity", sides.unclassed, (server) => capacity(server, c));
if (tokensPerSecond === undefined) {
    process.exit(1);
}
c.realtimePerSecond = (REALTIME_SHARE * tokensPerSecond) / realtime.tokens;
c.batchPerSecond = (BATCH_TIMES * tokensPerSecond) / batch.tokens;
process.stderr.write(`capacity ${tokensPerSecond.toFixed(0)} tokens/s: realtime (${options.realtime}) ${c.realtimePerSecond.toFixed(3)} a second, ` +
    `batch (${options.batch}) ${c.batchPerSecond.toFixed(2)} a second, ${(c.requests / c.realtimePerSecond).toFixed(0)} s a run\n`);

const results = {};
if (only.includes("quire")) {
    results.alone = await measure("realtime alone", sides.quire, (server) => figures(server, { ...c, batchPerSecond: 0, warmMs: 0 }, sides.quire));
}
for (const part of parts.filter((name) => only.includes(name))) {
    results[part] = await measure("realtime and batch", sides[part], (server) => figures(server, c, sides[part]));
}

const { alone, quire, unclassed, peer } = results;
if (alone && quire) {
    row("realtime TTFT p99 s, under load : alone", quire.ttftP99, alone.ttftP99, TARGETS.ttft);
    row("realtime TPOT p99 ms, under load : alone", quire.tpotP99, alone.tpotP99, TARGETS.tpot);
    report.add({ what: "batch requests finished under load", ours: quire.batchFinished, theirs: 1,
        verdict: quire.batchFinished > 0 ? "met" : "missed", note: `${quire.refused} refused` });
}
if (quire && unclassed) {
    row("tokens/s of both classes, classes : one class", quire.tokensPerSecond, unclassed.tokensPerSecond, TARGETS.throughput);
    row("realtime TTFT p99 s, classes : one class", quire.ttftP99, unclassed.ttftP99, {}, `${unclassed.unanswered} of ${unclassed.sent} had no token`);
}
if (quire && peer) {
    row("realtime TTFT p99 s, quire : llama-server", quire.ttftP99, peer.ttftP99, {}, `${peer.unanswered} of ${peer.sent} had no token`);
    if (peer.tpotP99 !== undefined) {
        row("realtime TPOT p99 ms, quire : llama-server", quire.tpotP99, peer.tpotP99, {});
    }
}

const text = `${report.markdown(measuredOn(options.quire, options.threads))}
Capacity: ${tokensPerSecond.toFixed(0)} tokens/s of batch requests (${options.batch}, prompt:answer in tokens) on quire with one class. Realtime: ${c.requests}
requests (${options.realtime}) at ${c.realtimePerSecond.toFixed(3)} a second, evenly spaced. Batch: Poisson arrivals at ${c.batchPerSecond.toFixed(2)} a second. A realtime request
that was refused or had no token by the end of the run counts as having waited until then.

${TABLE_HEAD}
${table.join("\n")}
`;
process.stdout.write(text);
if (options.out) {
    writeFileSync(options.out, `# A realtime class beside four times the load\n\n\`make bench-qos\`. ${text}`);
}
process.exit(report.failed() > 0 ? 1 : 0);
