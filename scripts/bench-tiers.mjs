// bench-tiers.mjs - what pages on disk bring: time to the first token after a restart, reading rate, cost to others.
//
//   node scripts/bench-tiers.mjs --quire build/quire [--peer DIR] [--tokens 4096] [--rounds 5] [--kv q8] [--threads 2]
//                                [--model FILE] [--dir DIR] [--out FILE]
//
// `make bench-tiers` builds the program and calls this. In each round, with a text of its own:
//
//   cold      the text's first request on a server that has not seen it
//   warm      the same text again after a restart of the server: its pages come from the directory
//   cold, again, without a directory: what the directory costs a request that finds nothing
//
// Then, on one server: the tokens/s of one long answer beside requests whose texts are in memory, and beside the same
// number of requests whose texts are read from disk.
// With --peer: llama-server saves and restores the slot of the same text by its files (--slot-save-path).
// The targets are in TARGETS. Prints Markdown; exits 1 if a floor was missed.
//
// SPDX-License-Identifier: MIT
import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { machine, median, places, Report, run, shapeModel } from "./compare/tools.mjs";
import { bound, verdict } from "./serve/race.mjs";
import { Server } from "./serve/server.mjs";
import { randomFrom } from "./serve/texts.mjs";

const TARGETS = {
    restart: { floor: 0.04, aim: 0.02, isLess: true },
    rate: { floor: 0.7, aim: 0.85 },
    decode: { floor: 0.93, aim: 0.97 },
    amplification: { floor: 1.6, aim: 1.2, isLess: true },
};
const BESIDE = 12, BESIDE_TEXTS = 8, BESIDE_SEED = 100; // requests while another answer is written, and their texts
const ANSWER = 256;
const SETTLE_MS = 3000; // writing goes on after a request

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const { values: options } = parseArgs({
    options: {
        quire: { type: "string", default: join(root, "build", "quire") },
        peer: { type: "string" },
        generator: { type: "string", default: join(root, "build", "make_gguf") },
        model: { type: "string" },
        tokens: { type: "string", default: "4096" },
        rounds: { type: "string", default: "5" },
        kv: { type: "string", default: "q8" },
        threads: { type: "string", default: `${Math.min(2, cpus().length)}` },
        dir: { type: "string", default: tmpdir() },
        out: { type: "string" },
    },
});
const nTokens = Number(options.tokens), rounds = Number(options.rounds);
const at = places(root);
const report = new Report();
const folder = mkdtempSync(join(resolve(options.dir), "quire-tiers-"));
process.on("exit", () => rmSync(folder, { recursive: true, force: true }));
const model = options.model ?? shapeModel(options.generator, at.work, "smollm2-135m", "q8_0");
const context = 64 * Math.ceil((nTokens + 2 * ANSWER) / 64);
const cache = join(folder, "cache");
const quireArgs = ["serve", "-m", model, "-t", options.threads, "-c", `${context}`, "--kv", options.kv];
const diskArgs = [...quireArgs, "--cache-dir", cache, "--cache-disk", "8GiB", "--store-write-rate", "0"];
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

const text = (seed) => {
    const random = randomFrom(seed);
    return Array.from({ length: nTokens }, () => 1000 + Math.floor(random() * 20000));
};

async function ask(server, prompt, maxTokens = 4) {
    const reply = await server.client.stream("/v1/completions", { model: "m", prompt, max_tokens: maxTokens, temperature: 0, stream: true,
        ignore_eos: true });
    if (reply.error) {
        throw new Error(reply.error);
    }
    return reply;
}

async function metric(server, name) {
    const { body } = await server.client.json("GET", "/metrics");
    const line = body.split("\n").find((l) => l.startsWith(`${name} `) || l.startsWith(`${name}{`));
    return Number(line?.split(" ").at(-1));
}

const on = async (args, task) => {
    const server = await Server.start(options.quire, args);
    try {
        return await task(server);
    } finally {
        await server.stop();
    }
};

// The same reads by dd: O_DIRECT, in order, of the segments that were just read.
function diskRate() {
    const files = readdirSync(cache).filter((n) => n.startsWith("segment-")).map((n) => join(cache, n));
    const bytes = files.reduce((sum, f) => sum + statSync(f).size, 0);
    const begin = performance.now();
    files.forEach((f) => execFileSync("dd", [`if=${f}`, "of=/dev/null", "bs=1M", "iflag=direct"], { stdio: "ignore" }));
    return bytes / (performance.now() - begin) * 1e3;
}

let bytesRead = 0;
const cold = [], warm = [], plain = [], rates = [], cached = [];
for (let i = 0; i < rounds; i++) {
    const prompt = text(i + 1);
    cold.push((await on(diskArgs, (server) => ask(server, prompt))).firstMs);
    await on(diskArgs, async (server) => {
        warm.push((await ask(server, prompt)).firstMs);
        cached.push(await metric(server, "quire_tier_fetched_tokens_total"));
        bytesRead = await metric(server, "quire_tier_read_bytes_total");
        rates.push(bytesRead / await metric(server, "quire_tier_fetch_seconds_sum"));
    });
    plain.push((await on(quireArgs, (server) => ask(server, prompt))).firstMs);
    process.stderr.write(`round ${i + 1}: cold ${cold.at(-1).toFixed(0)} ms, after a restart ${warm.at(-1).toFixed(1)} ms ` +
        `(${cached.at(-1)} tokens read at ${(rates.at(-1) / 1e6).toFixed(0)} MB/s), without a directory ${plain.at(-1).toFixed(0)} ms\n`);
}
const disk = median(Array.from({ length: 3 }, diskRate));

// One long answer beside other requests, whose texts are in memory or have to be read. Of each of them one token is
// computed, so the difference is the cost of reading. The KV budget holds half of the texts: what is read drives out what
// was read before.
async function answerRate(server, isFetching) {
    const answer = ask(server, text(1000).slice(0, 64), ANSWER);
    const others = Promise.all(Array.from({ length: BESIDE }, async (_, i) => {
        await sleep(150 * i);
        return ask(server, text(BESIDE_SEED + (isFetching ? i % BESIDE_TEXTS : 0)), 1);
    }));
    const reply = await answer;
    await others;
    return (reply.pieces - 1) / (reply.lastMs - reply.firstMs) * 1e3;
}
const budget = Math.ceil((BESIDE_TEXTS / 2 + 1) * bytesRead / cached.at(-1) * nTokens);
await on([...diskArgs, "--store-all"], async (server) => {
    for (let i = 0; i < BESIDE_TEXTS; i++) {
        await ask(server, text(BESIDE_SEED + i), 1);
    }
});
const inMemory = [], fetched = [], read = [];
for (let i = 0; i < rounds; i++) {
    await on([...diskArgs, "--store-all", "--kv-budget", `${budget}`], async (server) => {
        await ask(server, text(1000).slice(0, 64), 8);
        await ask(server, text(BESIDE_SEED), 1);
        inMemory.push(await answerRate(server, false));
        await sleep(SETTLE_MS);
        const before = await metric(server, "quire_tier_read_bytes_total");
        fetched.push(await answerRate(server, true));
        read.push((await metric(server, "quire_tier_read_bytes_total") - before) / 1e6);
    });
    process.stderr.write(`answer ${i + 1}: beside hits in memory ${inMemory.at(-1).toFixed(1)} tokens/s, beside fetches ` +
        `${fetched.at(-1).toFixed(1)} (${read.at(-1).toFixed(0)} MB read)\n`);
}

const amplification = await on([...quireArgs, "--cache-dir", join(folder, "small"), "--cache-disk", "512MiB", "--store-write-rate", "0",
    "--store-all"], async (server) => {
    for (let i = 0; i < 4 * rounds; i++) {
        await ask(server, text(2000 + i), 1);
        await ask(server, text(2000 + Math.max(0, i - 3)), 1); // some are used again
    }
    await sleep(SETTLE_MS);
    const { body } = await server.client.json("GET", "/metrics");
    const of = (what) => Number(body.match(new RegExp(`^quire_tier_written_bytes_total\\{what="${what}"\\} (\\S+)$`, "m"))?.[1]);
    return { all: of("all"), records: of("records") };
});

// llama-server: the slot's file is saved, the server ends, a new one restores it.
async function peerRound(prompt) {
    const args = ["-m", model, "-t", options.threads, "-c", `${context}`, "-np", "1", "--no-ui", "--slot-save-path", `${folder}/`,
        "-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on"];
    const program = join(options.peer, "llama-server");
    const figures = {};
    const file = { filename: "slot.bin" };
    let server = await Server.start(program, args);
    figures.cold = (await ask(server, prompt)).firstMs;
    await server.client.json("POST", "/slots/0?action=save", file);
    await server.stop();
    server = await Server.start(program, args);
    const begin = performance.now();
    await server.client.json("POST", "/slots/0?action=restore", file);
    figures.restore = performance.now() - begin;
    figures.warm = figures.restore + (await ask(server, prompt)).firstMs;
    await server.stop();
    return figures;
}
const peer = [];
for (let i = 0; options.peer && i < rounds; i++) {
    peer.push(await peerRound(text(i + 1)));
    process.stderr.write(`llama-server ${i + 1}: cold ${peer.at(-1).cold.toFixed(0)} ms, restored ${peer.at(-1).warm.toFixed(1)} ms\n`);
}

const row = (what, ours, theirs, target, note) => report.add({ what, ours, theirs, ratio: ours / theirs, floor: bound(target.floor, target),
    aim: bound(target.aim, target), verdict: target.floor === undefined ? "reported" : verdict(ours / theirs, target), note });
row(`TTFT ms, ${nTokens} tokens, after a restart : cold`, median(warm), median(cold), TARGETS.restart, `${median(cached)} tokens read`);
row("TTFT ms, cold with an empty directory : without a directory", median(cold), median(plain), {});
row("MB/s of records while fetching : dd with O_DIRECT", median(rates) / 1e6, disk / 1e6, TARGETS.rate);
row("tokens/s of an answer beside requests read from disk : in memory", median(fetched), median(inMemory), TARGETS.decode,
    `${BESIDE} requests, ${median(read).toFixed(0)} MB read`);
row("MB written : MB of records", amplification.all / 1e6, amplification.records / 1e6, TARGETS.amplification);
if (peer.length > 0) {
    row("TTFT ms after a restart, quire : llama-server's slot file", median(warm), median(peer.map((p) => p.warm)), {});
    row("TTFT ms cold, quire : llama-server", median(cold), median(peer.map((p) => p.cold)), {});
}
const version = run(options.quire, ["--version"]).stdout.match(/ggml ([\d.]+)/)?.[1] ?? "unknown";
const out = report.markdown({ ...machine(), threads: options.threads, ggml: version });
process.stdout.write(out);
if (options.out) {
    writeFileSync(options.out, `# Pages on disk\n\n\`make bench-tiers\`. ${out}`);
}
process.exit(report.failed() > 0 ? 1 : 0);
