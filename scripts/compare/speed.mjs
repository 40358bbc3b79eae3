// speed.mjs - tokens per second of both engines, taken in turns so that a noisy machine is noisy for both.
//
// SPDX-License-Identifier: MIT
import { peerBench } from "./peer.mjs";
import { median, need, number, runJson } from "./tools.mjs";

function ourBench(c, s) {
    const args = ["bench", "--json", "-m", s.model, "-t", `${c.threads}`, "-d", `${s.depth}`, "--kv", s.kv,
        "-p", `${s.prompt ?? 0}`, "-n", `${s.gen ?? 0}`, "-r", `${s.repeats ?? 1}`, "--fill", "fast"];
    const rows = runJson(c.quire, args).filter((r) => r.test === (s.prompt ? "prefill" : "decode"));
    if (rows.length !== 1 || !(rows[0].tokens_per_second > 0)) {
        throw new Error(`quire bench gave ${rows.length} rows for ${args.join(" ")}`);
    }
    return rows[0].tokens_per_second;
}

// One row: the peer's settings all run in each round, the best median of them is the peer's figure.
export function race(c, report, s) {
    const what = `${s.prompt ? `prefill ${s.prompt}` : `decode ${s.gen}`} tokens/s at depth ${s.depth}, ${s.name}, ` +
        `quire ${s.kv} : llama.cpp best of ${s.peer.map((p) => `${p.kv} fa ${p.fa}`).join(", ")}`;
    if (!need(report, what, s.model)) {
        return;
    }
    const mine = [];
    const theirs = s.peer.map(() => []);
    for (let round = 0; round < (s.rounds ?? 3); round++) {
        mine.push(ourBench(c, s));
        s.peer.forEach((p, i) => theirs[i].push(peerBench(c.peer, { ...s, ...p, threads: c.threads })));
        mine.push(ourBench(c, s));
    }
    const medians = theirs.map(median);
    const best = Math.max(...medians);
    const ratio = median(mine) / best;
    report.add({
        what, ours: median(mine), theirs: best, ratio, bar: s.bar ? `>= ${s.bar}x` : undefined,
        verdict: s.bar === undefined ? "reported" : ratio >= s.bar ? "met" : "missed",
        note: `ours ${number(Math.min(...mine))}..${number(Math.max(...mine))}; theirs ` +
            medians.map((m, i) => `${s.peer[i].kv}/${s.peer[i].fa} ${number(m)}`).join(", "),
    });
}
