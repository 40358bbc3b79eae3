// memory.mjs - KV bytes of a long context in pages against the figure computed from the model file,
// and memory in all.
//
// SPDX-License-Identifier: MIT
import { need, number, runJson } from "./tools.mjs";

const WASTE_MAX = 0.04;
const INFO_ERROR_MAX = 0.02;

export function longContext(c, report, s) {
    const what = `${s.ctx} tokens on ${s.name}, ${s.kv}: KV bytes in pages : computed from the file`;
    if (!need(report, what, s.model, s.text)) {
        return;
    }
    const info = runJson(c.quire, ["info", s.model, "--json"]);
    const perToken = info.kv.find((row) => row.kv === s.kv).bytes_per_token;
    const done = runJson(c.quire, ["perplexity", "--json", "-m", s.model, "-f", s.text, "-c", `${s.ctx}`, "--chunks", "1",
        "-t", `${c.threads}`, "--kv", s.kv]);
    const computed = perToken * s.ctx;
    const ratio = done.kv.live_peak_bytes / computed;
    report.add({
        what, ours: done.kv.live_peak_bytes, ratio, floor: `< ${1 + WASTE_MAX}x`,
        verdict: ratio >= 1 && ratio < 1 + WASTE_MAX ? "met" : "missed",
        note: `${computed} bytes computed; whole extents ${done.kv.extent_peak_bytes} bytes; perplexity ${number(done.ppl)}`,
    });
}

// Whether weights, KV, buffers and the program fit in a machine's memory together, by quire info.
export function fits(c, report, s) {
    const what = `${s.ctx} tokens on ${s.name}, ${s.kv}: memory in all : ${s.limitBytes / 1e9} GB`;
    if (!need(report, what, s.model)) {
        return;
    }
    const { need: sum } = runJson(c.quire, ["info", s.model, "--json", "-c", `${s.ctx}`, "--kv", s.kv, "-t", `${c.threads}`]);
    const ratio = sum.total_bytes / s.limitBytes;
    report.add({
        what, ours: sum.total_bytes, theirs: s.limitBytes, ratio, floor: "<= 1x", verdict: ratio <= 1 ? "met" : "missed",
        note: `weights ${sum.weights_bytes}, KV ${sum.kv_bytes}, buffers ${sum.buffers_bytes} bytes; ` +
            `${number((s.limitBytes - sum.total_bytes) / 1e9)} GB to spare`,
    });
}

// Windows: KV bytes that a text takes, beside those of a cache that keeps every token of every
// layer, and beside quire info's.
export function cacheBytes(c, report, s) {
    const what = `KV of ${s.ctx} tokens on ${s.name}, ${s.kv}: bytes in pages : those of all tokens in all layers`;
    if (!need(report, what, s.model)) {
        return;
    }
    const info = runJson(c.quire, ["info", s.model, "--json", "-c", `${s.ctx}`, "--kv", s.kv, "-t", `${c.threads}`]);
    const [bench] = runJson(c.quire, ["bench", "--json", "-m", s.model, "-d", `${s.ctx - 2}`, "--fill", "fast", "-n", "2", "-p", "0",
        "-r", "1", "--kv", s.kv, "-t", `${c.threads}`]);
    const bits = info.kv.find((row) => row.kv === s.kv).bits_per_value;
    const full = (info.n_stored_layers * info.n_kv_head * (info.d_k + info.d_v) * bits) / 8 * s.ctx;
    const computed = bench.kv_peak_bytes / info.need.kv_bytes;
    report.add({
        what, ours: bench.kv_peak_bytes, theirs: full, ratio: bench.kv_peak_bytes / full, floor: `<= ${1 + INFO_ERROR_MAX}x computed`,
        verdict: computed <= 1 + INFO_ERROR_MAX ? "met" : "missed",
        note: `quire info computes ${info.need.kv_bytes} bytes, with a step of prefill; ratio to it ${number(computed)}`,
    });
}
