// memory.mjs - KV bytes of a long context in pages against the figure computed from the model file,
// and memory in all.
//
// SPDX-License-Identifier: MIT
import { need, number, runJson } from "./tools.mjs";

const WASTE_MAX = 0.04;
const INFO_ERROR_MAX = 0.02;
const STEP = 512; // tokens: the batch of quire info and quire bench without -b
const SPARE = 50; // tokens of the context's last page that stay free

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

// Windows: KV bytes of a text while its last step computes a batch of the prompt, beside those of a
// cache that keeps every token of every layer, and beside quire info's. A layer with a window holds
// the window before the step's first token and the tokens of the step; only a step of the prompt
// holds as many pages as quire info computes. The step begins and ends inside of pages, so that it
// touches as many of them as it can; its last token is in the context's last page. The bound has
// two sides: a figure far above the pages held would be as wrong as one below.
export function cacheBytes(c, report, s) {
    const what = `KV of ${s.ctx - SPARE} tokens on ${s.name}, ${s.kv}, in a step of ${STEP}: bytes in pages : those of all tokens in all layers`;
    if (!need(report, what, s.model)) {
        return;
    }
    const nTokens = s.ctx - SPARE;
    const info = runJson(c.quire, ["info", s.model, "--json", "-c", `${s.ctx}`, "--kv", s.kv, "-t", `${c.threads}`]);
    const [bench] = runJson(c.quire, ["bench", "--json", "-m", s.model, "-d", `${nTokens - STEP}`, "--fill", "fast", "-n", "0", "-p", `${STEP}`,
        "-r", "1", "--kv", s.kv, "-t", `${c.threads}`]);
    const bits = info.kv.find((row) => row.kv === s.kv).bits_per_value;
    const full = (info.n_stored_layers * info.n_kv_head * (info.d_k + info.d_v) * bits) / 8 * nTokens;
    const computed = bench.kv_peak_bytes / info.need.kv_bytes;
    report.add({
        what, ours: bench.kv_peak_bytes, theirs: full, ratio: bench.kv_peak_bytes / full,
        floor: `${1 - INFO_ERROR_MAX} to ${1 + INFO_ERROR_MAX}x computed`, verdict: Math.abs(computed - 1) <= INFO_ERROR_MAX ? "met" : "missed",
        note: `quire info computes ${info.need.kv_bytes} bytes; ratio to it ${number(computed)}`,
    });
}
