// quality.mjs - do both engines compute the same model? Perplexity, KL divergence, agreement.
//
// On an f32 model both must give the same number. On quantised weights llama.cpp's own rounding moves
// the number (its linear maps round activations to 8 bits, so the smallest difference in attention
// grows), so the bar is the band that its own four settings span.
//
// SPDX-License-Identifier: MIT
import { rmSync } from "node:fs";
import { join } from "node:path";
import { peerPerplexity } from "./peer.mjs";
import { need, number, runJson } from "./tools.mjs";

const SETTINGS = [
    { fa: "off", kv: "f16" },
    { fa: "on", kv: "f16" },
    { fa: "off", kv: "f32" },
    { fa: "on", kv: "f32" },
];
const WIDEN = 0.001; // of the band, on each side

function ours(c, s, extra) {
    return runJson(c.quire, ["perplexity", "--json", "-m", s.model, "-f", s.text, "-c", `${s.ctx}`,
        "--chunks", `${s.chunks}`, "-t", `${c.threads}`, "--kv", s.kv, ...extra]);
}

// Same number on a model without quantised weights.
export function exactPerplexity(c, report, s) {
    const what = `perplexity, ${s.name}, f16 KV, context ${s.ctx}, ${s.chunks} chunks`;
    if (!need(report, what, s.model, s.text)) {
        return;
    }
    const base = join(c.work, "base.logits");
    const theirs = peerPerplexity(c.peer, { ...s, ...SETTINGS[0], threads: c.threads, saveLogits: base });
    const mine = ours(c, { ...s, kv: "f16" }, ["--logits-base", base]);
    rmSync(base, { force: true });
    const ratio = mine.ppl / theirs.ppl;
    report.add({
        what, ours: mine.ppl, theirs: theirs.ppl, ratio, bar: "within 0.1 %",
        verdict: Math.abs(ratio - 1) <= WIDEN ? "met" : "missed", note: paired(mine),
    });
}

function paired(result) {
    const d = result.base?.nll_difference;
    return d === undefined ? undefined : `paired ln-ppl difference ${number(d.mean)} +/- ${number(d.stderr)}`;
}

// Inside the band of llama.cpp's settings; and its agreement with itself against ours with it.
export function bandPerplexity(c, report, s) {
    const what = `perplexity, ${s.name}, f16 KV, context ${s.ctx}, ${s.chunks} chunks`;
    if (!need(report, what, s.model, s.text)) {
        return;
    }
    const base = join(c.work, "base.logits");
    const results = [];
    let mine;
    for (const setting of SETTINGS) {
        const save = setting === SETTINGS[0] ? base : undefined;
        const theirs = peerPerplexity(c.peer, { ...s, ...setting, threads: c.threads, saveLogits: save });
        results.push(theirs.ppl);
        report.add({ what: `  llama.cpp ${setting.kv}, flash attention ${setting.fa}, ${s.name}`, theirs: theirs.ppl,
            verdict: "reported" });
        if (save) {
            mine = ours(c, { ...s, kv: "f16" }, ["--logits-base", base]);
        }
    }
    const low = Math.min(...results) * (1 - WIDEN);
    const high = Math.max(...results) * (1 + WIDEN);
    report.add({
        what, ours: mine.ppl, theirs: results[0], ratio: mine.ppl / results[0],
        bar: `${number(low)} .. ${number(high)}`, verdict: mine.ppl >= low && mine.ppl <= high ? "met" : "missed",
        note: paired(mine),
    });
    if (s.agreement) {
        agreement(c, report, s, base, mine);
    }
    rmSync(base, { force: true });
}

// Teacher-forced top-1 agreement: ours with theirs against theirs (flash attention on) with theirs (off).
function agreement(c, report, s, base, mine) {
    const self = peerPerplexity(c.peer, { ...s, fa: "on", kv: "f16", threads: c.threads, baseLogits: base });
    const theirs = self.sameTop / 100;
    report.add({
        what: `top-1 agreement with llama.cpp (flash attention off), ${s.name}; theirs: its own, on against off`,
        ours: mine.base.top1_agreement, theirs, ratio: mine.base.top1_agreement / theirs, bar: ">= 1.0x",
        verdict: mine.base.top1_agreement >= theirs ? "met" : "missed",
        note: `KLD to it ${number(mine.base.kld.mean)}, its own on against off ${number(self.kld)}`,
    });
}

// q8's damage against f16's, both measured against f32 KV in our own engine.
export function q8Divergence(c, report, s) {
    const what = `KL divergence of the logits to f32 KV, ${s.name}: q8 against f16`;
    if (!need(report, what, s.model, s.text)) {
        return;
    }
    const kld = {};
    for (const kv of ["f16", "q8"]) {
        kld[kv] = ours(c, { ...s, kv }, ["--kld-against", "f32"]).base;
    }
    const ratio = kld.q8.kld.mean / kld.f16.kld.mean;
    report.add({
        what, ours: kld.q8.kld.mean, theirs: undefined, ratio, bar: "<= 1.15x of f16",
        verdict: ratio <= 1.15 ? "met" : "missed",
        note: `f16 ${number(kld.f16.kld.mean)} +/- ${number(kld.f16.kld.stderr)}, ` +
            `q8 +/- ${number(kld.q8.kld.stderr)}; top-1 ${number(kld.f16.top1_agreement)} and ${number(kld.q8.top1_agreement)}`,
    });
}
