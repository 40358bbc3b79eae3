// speed.mjs - tokens per second of both engines at one depth of context, taken in turns so that a
// noisy machine is noisy for both.
//
// A point is a model at a depth: all our KV formats and all of the peer's settings run in each
// round, ours before and after the peer's. Its rows are ratios of medians over all samples of all
// rounds; see targets.mjs for the data.
//
// SPDX-License-Identifier: MIT
import { peerBench } from "./peer.mjs";
import { median, need, number, runJson } from "./tools.mjs";

// Rows of quire bench by test: { prefill, decode }.
export function ourBench(c, s, extra = []) {
    const args = ["bench", "--json", "-m", s.model, "-t", `${c.threads}`, "-d", `${s.depth}`, "--kv", s.kv,
        "-p", `${s.prompt ?? s.warmUp ?? 0}`, "-n", `${s.gen ?? 0}`, "-r", `${s.repeats ?? 1}`, "--fill", "fast", ...extra];
    const rows = runJson(c.quire, args);
    if (rows.length === 0 || rows.some((r) => !(r.tokens_per_second > 0))) {
        throw new Error(`quire bench gave ${rows.length} rows for ${args.join(" ")}`);
    }
    return Object.fromEntries(rows.map((r) => [r.test, r]));
}

const peerName = (p) => `llama.cpp ${p.kv} fa ${p.fa}`;
const ourName = (kv) => `quire ${kv}`;

// Samples by name and test; a side that fails is remembered and costs only the rows that need it.
class Samples {
    constructor() {
        this.sides = new Map();
        this.failures = new Map();
    }

    take(name, measure) {
        if (this.failures.has(name)) {
            return;
        }
        try {
            for (const [test, found] of Object.entries(measure())) {
                const key = `${name} ${test}`;
                const side = this.sides.get(key) ?? { rates: [], runs: [] };
                side.rates.push(...found.rates);
                side.runs.push(found);
                this.sides.set(key, side);
            }
        } catch (error) {
            this.failures.set(name, `${name}: ${error.message.split("\n").at(-1).trim()}`);
        }
    }

    get(name, test) {
        const side = this.sides.get(`${name} ${test}`);
        if (side === undefined || this.failures.has(name)) { // samples of the rounds before a failure do not stand for all
            throw new Error(this.failures.get(name) ?? `${name}: no ${test} was measured`);
        }
        return { ...side, name, median: median(side.rates) };
    }
}

function measureAll(c, point) {
    const samples = new Samples();
    const ours = () => {
        for (const kv of point.ours) {
            samples.take(ourName(kv), () => {
                const rows = ourBench(c, { ...point, kv });
                return Object.fromEntries(Object.entries(rows).map(([test, r]) => [test, { ...r, rates: r.repeats }]));
            });
        }
    };
    for (let round = 0; round < point.rounds; round++) {
        ours();
        for (const p of point.peer) {
            samples.take(peerName(p), () => peerBench(c.peer, { ...point, ...p, threads: c.threads }));
        }
        ours();
    }
    for (const p of point.once ?? []) {
        samples.take(peerName(p), () => peerBench(c.peer, { ...point, ...p, threads: c.threads }));
    }
    return samples;
}

function bestPeer(samples, point, test) {
    const sides = point.peer.map((p) => samples.get(peerName(p), test));
    return sides.reduce((a, b) => (b.median > a.median ? b : a));
}

export function judge(ratio, target) {
    if (target.floor === undefined) {
        return "reported";
    }
    return target.aim !== undefined && ratio >= target.aim ? "aim met" : ratio >= target.floor ? "met" : "missed";
}

const times = (v) => (v === undefined ? undefined : `>= ${v}x`);
const percent = (v) => (v === undefined ? undefined : `>= ${100 * v} %`);

// { test, kv, to: "peer" (its best setting), { peer } (one of them) or a KV format of ours, floor,
// aim }
function ratioRow(samples, point, target) {
    const mine = samples.get(ourName(target.kv), target.test);
    const other = target.to === "peer" ? bestPeer(samples, point, target.test)
        : samples.get(target.to.peer ? peerName(target.to.peer) : ourName(target.to), target.test);
    const ratio = mine.median / other.median;
    const range = (side) => `${number(Math.min(...side.rates))}..${number(Math.max(...side.rates))}`;
    return {
        ours: mine.median, theirs: other.median, ratio, floor: times(target.floor), aim: times(target.aim),
        verdict: judge(ratio, target), note: `ours ${range(mine)}; ${other.name} ${range(other)}`,
    };
}

// { test: "decode", kv, share: "attention_roofline_share" or "roofline_share", floor, aim }
function shareRow(samples, target) {
    const { runs } = samples.get(ourName(target.kv), target.test);
    const middle = (field) => median(runs.map((r) => r[field]));
    const share = middle(target.share);
    return {
        ratio: share, floor: percent(target.floor), aim: percent(target.aim), verdict: judge(share, target),
        note: `reads ${number(middle("read_bandwidth_bytes_per_second") / 1e9)} GB/s; ` +
            `${number(100 * middle("attention_share"))} % of the step in attention`,
    };
}

function rowName(point, target) {
    const test = target.test === "prefill" ? `prefill of ${point.prompt}` : "decode";
    const where = `${test} at depth ${point.depth}, ${point.name}`;
    if (target.share) {
        return `${target.share === "roofline_share" ? "whole step" : "attention op"} : its roofline, ${where}, ${target.kv}`;
    }
    const to = target.to === "peer" ? "llama.cpp, best of its settings" : target.to.peer ? peerName(target.to.peer)
        : `our ${target.to}`;
    return `${where}, tokens/s, ${target.kv} : ${to}`;
}

export function race(c, report, point) {
    if (!need(report, `speed at depth ${point.depth}, ${point.name}`, point.model)) {
        return;
    }
    const samples = measureAll(c, point);
    for (const target of point.rows) {
        const what = rowName(point, target);
        try {
            report.add({ what, ...(target.share ? shareRow(samples, target) : ratioRow(samples, point, target)) });
        } catch (error) {
            report.add({ what, verdict: "failed", note: error.message });
        }
    }
}

// Sequences that share a prefix, with and without reading it once for all: tokens/s of all
// together.
export function cascade(c, report, s) {
    const what = `decode of ${s.sequences} sequences sharing ${s.prefix} tokens, ${s.name}, tokens/s of all, ${s.kv} : ` +
        "the same without cascade";
    if (!need(report, what, s.model)) {
        return;
    }
    const flags = ["--sequences", `${s.sequences}`, "--shared-prefix", `${s.prefix}`];
    const rates = { with: [], without: [] };
    for (let round = 0; round < s.rounds; round++) {
        rates.with.push(...ourBench(c, { ...s, depth: 0 }, flags).decode.repeats);
        rates.without.push(...ourBench(c, { ...s, depth: 0 }, [...flags, "--no-cascade"]).decode.repeats);
    }
    const ratio = median(rates.with) / median(rates.without);
    report.add({ what, ours: median(rates.with), theirs: median(rates.without), ratio, floor: times(s.floor),
        aim: times(s.aim), verdict: judge(ratio, s) });
}
