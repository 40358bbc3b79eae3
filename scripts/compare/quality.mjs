// quality.mjs - do both engines compute the same model? Perplexity, KL divergence, agreement.
//
// On an f32 model both must give the same number. On quantised weights llama.cpp's own rounding
// moves the number (its linear maps round activations to 8 bits, so the smallest difference in
// attention grows), so the bar is the band that its own four settings span.
//
// SPDX-License-Identifier: MIT
import { rmSync } from "node:fs";
import { join } from "node:path";
import { peerPerplexity } from "./peer.mjs";
import { need, number, runJson } from "./tools.mjs";

export const SETTINGS = [
    { fa: "off", kv: "f16" },
    { fa: "on", kv: "f16" },
    { fa: "off", kv: "f32" },
    { fa: "on", kv: "f32" },
];
export const WIDEN = 0.001; // of the band, on each side

// task(path) with a file for logits, which is gone afterwards.
function withLogits(c, task) {
    const path = join(c.work, "base.logits");
    try {
        return task(path);
    } finally {
        rmSync(path, { force: true });
    }
}

export function ours(c, s, extra) {
    return runJson(c.quire, ["perplexity", "--json", "-m", s.model, "-f", s.text, "-c", `${s.ctx}`,
        "--chunks", `${s.chunks}`, "-t", `${c.threads}`, "--kv", s.kv, ...extra]);
}

// Same number on a model without quantised weights.
export function exactPerplexity(c, report, s) {
    const what = `perplexity, ${s.name}, f16 KV, context ${s.ctx}, ${s.chunks} chunks`;
    if (!need(report, what, s.model, s.text)) {
        return;
    }
    const [theirs, mine] = withLogits(c, (base) => [peerPerplexity(c.peer, { ...s, ...SETTINGS[0], threads: c.threads, saveLogits: base }),
        ours(c, { ...s, kv: "f16" }, ["--logits-base", base])]);
    const ratio = mine.ppl / theirs.ppl;
    report.add({
        what, ours: mine.ppl, theirs: theirs.ppl, ratio, floor: "within 0.1 %",
        verdict: Math.abs(ratio - 1) <= WIDEN ? "met" : "missed", note: paired(mine),
    });
}

function paired(result) {
    const d = result.base?.nll_difference;
    return d === undefined ? undefined : `paired ln-ppl difference ${number(d.mean)} +/- ${number(d.stderr)}`;
}

// Inside the band of llama.cpp's settings; with s.agreement, also how often both choose the same
// token.
export function bandPerplexity(c, report, s) {
    const what = `perplexity, ${s.name}, f16 KV, context ${s.ctx}, ${s.chunks} chunks`;
    if (!need(report, what, s.model, s.text)) {
        return;
    }
    const { results, mine, self } = withLogits(c, (base) => bandOf(c, report, s, base));
    const low = Math.min(...results) * (1 - WIDEN);
    const high = Math.max(...results) * (1 + WIDEN);
    const ppl = mine["f16 off"].ppl;
    report.add({
        what, ours: ppl, theirs: results[0], ratio: ppl / results[0], floor: `${number(low)} .. ${number(high)}`,
        verdict: ppl >= low && ppl <= high ? "met" : "missed", note: paired(mine["f16 off"]),
    });
    if (s.agreement) {
        agreement(report, s, mine, self);
    }
}

// Perplexities of llama.cpp's settings; ours beside those whose predictions are in the file; its
// second setting beside its first.
function bandOf(c, report, s, base) {
    const results = [];
    const mine = {};
    let self;
    for (const setting of SETTINGS) {
        const name = `${setting.kv} ${setting.fa}`;
        const isBase = name === "f16 off" || (s.agreement && name !== "f32 on");
        if (s.agreement && name === "f16 on") {
            self = peerPerplexity(c.peer, { ...s, ...setting, threads: c.threads, baseLogits: base });
        }
        const theirs = peerPerplexity(c.peer,
            { ...s, ...setting, threads: c.threads, saveLogits: isBase ? base : undefined });
        results.push(theirs.ppl);
        report.add({ what: `  llama.cpp ${setting.kv}, flash attention ${setting.fa}, ${s.name}`, theirs: theirs.ppl,
            verdict: "reported" });
        if (isBase) {
            mine[name] = ours(c, { ...s, kv: "f16" }, ["--logits-base", base]);
        }
    }
    return { results, mine, self };
}

// Teacher-forced top-1 agreement with llama.cpp, f16 KV on both sides: ours with each of its two
// settings against theirs between the two. The nearer of its settings is judged: Quire must agree
// with it as often as llama.cpp's two settings agree with each other. Agreement with llama.cpp's
// most exact setting (f32 KV, flash attention off) is reported beside it. A standard error is about
// 0.4 % on two chunks.
function agreement(report, s, mine, self) {
    // Printed to a thousandth of a percent: back to the count of tokens it stands for.
    const scored = mine["f16 off"].n_scored;
    const theirs = Math.round(self.sameTop / 100 * scored) / scored;
    const top1 = (name) => mine[name].base.top1_agreement;
    const nearer = Math.max(top1("f16 off"), top1("f16 on"));
    report.add({
        what: `top-1 agreement with llama.cpp, ${s.name}; theirs: its own, flash attention on with off`,
        ours: nearer, theirs, ratio: nearer / theirs, floor: ">= 1.0", verdict: nearer >= theirs ? "met" : "missed",
        note: `ours with f16 off ${number(top1("f16 off"))}, f16 on ${number(top1("f16 on"))}, f32 off ` +
            `${number(top1("f32 off"))}; KLD ours to f16 off ${number(mine["f16 off"].base.kld.mean)}, to f32 off ` +
            `${number(mine["f32 off"].base.kld.mean)}, theirs on to off ${number(self.kld)}`,
    });
}

// q8's damage against f16's, both measured against f32 KV in our own engine; beside it llama.cpp's
// q8_0 against its f16 (flash attention on, against its f32 KV without). With quantised weights
// both carry the noise of activations being rounded, which a smaller model has less of: there the
// ratio says more about the noise than about the format, so only rows with a bar are judged. On f32
// weights there is no noise to hide in: f16's own divergence is next to nothing and the ratio
// large, the divergence itself is the figure.
export function q8Divergence(c, report, s) {
    const what = `KL divergence to f32 KV, q8 : f16, ${s.name}, context ${s.ctx}, ${s.chunks} chunks`;
    if (!need(report, what, s.model, s.text)) {
        return;
    }
    const kld = {};
    for (const kv of ["f16", "q8"]) {
        kld[kv] = ours(c, { ...s, kv }, ["--kld-against", "f32"]).base;
    }
    const peer = { ...s, threads: c.threads };
    const [f16, q8] = withLogits(c, (base) => {
        peerPerplexity(c.peer, { ...peer, fa: "off", kv: "f32", saveLogits: base });
        // Blocks of 32: it has no q8_0 for other head sizes.
        return ["f16", ...(s.headDim % 32 === 0 ? ["q8_0"] : [])].map((kv) =>
            peerPerplexity(c.peer, { ...peer, fa: "on", kv, baseLogits: base }).kld);
    });
    const ratio = kld.q8.kld.mean / kld.f16.kld.mean;
    report.add({
        what, ours: ratio, theirs: q8 === undefined ? "no q8_0 for this head size" : q8 / f16, floor: s.bar ? `<= ${s.bar}` : undefined,
        verdict: s.bar === undefined ? "reported" : ratio <= s.bar ? "met" : "missed",
        note: `ours f16 ${number(kld.f16.kld.mean)} +/- ${number(kld.f16.kld.stderr)}, q8 ${number(kld.q8.kld.mean)} ` +
            `+/- ${number(kld.q8.kld.stderr)}; theirs f16 ${number(f16)}${q8 === undefined ? "" : `, q8_0 ${number(q8)}`}`,
    });
}
