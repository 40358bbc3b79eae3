// memory.mjs - a long context's KV bytes in pages against the figure computed from the model file.
//
// SPDX-License-Identifier: MIT
import { need, number, runJson } from "./tools.mjs";

const WASTE_MAX = 0.04;

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
