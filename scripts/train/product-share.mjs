// product-share.mjs - the trainer's speed as a share of this machine's rate of matrix products.
//
//   node scripts/train/product-share.mjs [--quire build/quire] [--sgemm build/bench_sgemm]
//        [--widths 128,256,288] [--threads 1,2] [--products f32] [--seconds 30] [--rounds 3]
//
// For each width and number of threads: whole steps of `quire train` (forward, backward, AdamW) on
// tasks that fill rows of 512 tokens, counted as 6 FLOP per parameter and token, without attention;
// beside the rate of products of 1024 x 1024 float matrices by the trainer, ggml and, where
// libopenblas.so.0 is there, OpenBLAS. Rounds go over all of them in turn; figures are medians. Run
// it on a quiet machine.
//
// SPDX-License-Identifier: MIT
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { machine, median } from "../compare/tools.mjs";

// Shapes by width: that of make compare-schemes and twice its width, and that of stories15M.
const SHAPES = {
    128: { "n-layer": 8, "n-head": 4, "d-head": 32, "d-ff": 352 },
    256: { "n-layer": 8, "n-head": 8, "d-head": 32, "d-ff": 704 },
    288: { "n-layer": 6, "n-head": 6, "d-head": 48, "d-ff": 768 },
};
const TARGET = { floor: 0.35, aim: 0.55 };
const ROWS = 8, CTX = 512;
const STEPS_FIRST = 2; // of a first run, which says how many steps take the seconds

const root = resolve(dirname(fileURLToPath(import.meta.url)), "../..");
const { values: options } = parseArgs({ options: {
    quire: { type: "string", default: join(root, "build", "quire") },
    sgemm: { type: "string", default: join(root, "build", "bench_sgemm") },
    widths: { type: "string", default: Object.keys(SHAPES).join(",") },
    threads: { type: "string", default: "1,2" },
    products: { type: "string", default: "f32" },
    seconds: { type: "string", default: "30" },
    rounds: { type: "string", default: "3" },
} });

function run(program, list) {
    const done = spawnSync(program, list, { encoding: "utf8" });
    if (done.status !== 0) {
        throw new Error(`${program} ${list.join(" ")}: ${done.error?.message ?? done.stderr}`);
    }
    return done;
}

// { rate: tokens/s, flop: FLOP/s } of a run of steps.
function trained(folder, width, threads, steps) {
    const shape = { ...SHAPES[width], "d-model": width, ctx: CTX, rows: ROWS, steps, threads, scheme: "mha", products: options.products };
    const { stdout, stderr } = run(options.quire, ["train", "--checkpoint", join(folder, `${width}-${threads}-${Date.now()}`), "--json",
        "--task-kinds", "copy", "--task-bytes", `${CTX - 2}`, "--log-every", `${steps}`, "--held-every", `${steps + 1}`, "--held-batches",
        "1", "--save-every", `${steps + 1}`, ...Object.entries(shape).flatMap(([name, value]) => [`--${name}`, `${value}`])]);
    const rate = JSON.parse(stdout.split("\n")[0]).tokens_per_s;
    // The embedding is also the output's matrix, so all parameters are multiplied once.
    return { rate, flop: 6 * Number(stderr.match(/(\d+) parameters/)[1]) * rate };
}

const percent = (share) => (Number.isFinite(share) ? `${(100 * share).toFixed(0)} %` : "");
const rate = (gflops) => (gflops ? gflops.toFixed(0) : "");
const list = (text) => text.split(",").map(Number);
const cases = list(options.widths).flatMap((width) => list(options.threads).map((threads) => ({ width, threads, flop: [], rate: [] })));
const products = new Map(list(options.threads).map((threads) => [threads, []]));
const unknown = cases.find(({ width }) => !SHAPES[width]);
if (unknown) {
    process.stderr.write(`product-share: --widths: no shape of width ${unknown.width}; there are ${Object.keys(SHAPES).join(", ")}\n`);
    process.exit(2);
}

const folder = mkdtempSync(join(tmpdir(), "quire-share-"));
try {
    for (let round = 0; round < Number(options.rounds); round++) {
        for (const [threads, rates] of products) {
            rates.push(JSON.parse(run(options.sgemm, ["--threads", `${threads}`]).stdout));
        }
        for (const one of cases) {
            one.steps ??= Math.max(STEPS_FIRST, Math.round(Number(options.seconds) *
                trained(folder, one.width, one.threads, STEPS_FIRST).rate / (ROWS * CTX)));
            const { flop, rate: tokens } = trained(folder, one.width, one.threads, one.steps);
            one.flop.push(flop * 1e-9);
            one.rate.push(tokens);
            process.stderr.write(`round ${round + 1}, width ${one.width}, ${one.threads} threads: ${tokens.toFixed(0)} tokens/s\n`);
        }
    }
} finally {
    rmSync(folder, { recursive: true });
}

const sgemm = (threads, name) => {
    const values = products.get(threads).map((r) => r[name]).filter((value) => value > 0);
    return values.length > 0 ? median(values) : undefined;
};
const own = options.products === "bf16" ? "trainer_bf16" : "trainer_f32";
const { cpu, cores, date } = machine();
process.stdout.write(`${cpu}, ${cores} cores, ${date}; products: ${options.products}; medians of ${options.rounds}\n\n` +
    `| width | threads | tokens/s | a step, GFLOP/s | trainer's products | share | ggml's sgemm | share | OpenBLAS's sgemm | share |\n` +
    `|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n${cases.map(({ width, threads, flop, rate: tokens }) => {
        const of = ["ggml", "openblas"].map((name) => sgemm(threads, name)), step = median(flop), mine = sgemm(threads, own);
        return `| ${width} | ${threads} | ${median(tokens).toFixed(0)} | ${rate(step)} | ${rate(mine)} | ${percent(step / mine)} | ` +
            `${of.map((value) => `${rate(value)} | ${percent(step / value)}`).join(" | ")} |\n`;
    }).join("")}\nFloor ${percent(TARGET.floor)}, aim ${percent(TARGET.aim)}, of the largest sgemm of the three.\n`);
