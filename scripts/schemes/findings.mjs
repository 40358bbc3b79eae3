// findings.mjs - tables and sentences of a comparison of schemes.
//
// SPDX-License-Identifier: MIT
import { gatesTable, gatesVerdict, meanGates } from "./gates.mjs";
import { ORDER } from "./plan.mjs";
import { interval, judgeBelow, mean } from "./statistics.mjs";

const signed = (v) => `${v < 0 ? "-" : "+"}${Math.abs(v).toFixed(4)}`;
export const withHalf = ({ mean: middle, half }) => `${middle.toFixed(4)}${half === undefined ? "" : ` ± ${half.toFixed(4)}`}`;

// runs: [{ scheme, seed, loss, cacheBytes, flop, parameters, recall, gates }] of a comparison: {
// schemes, order }.
export function findingsOf(runs) {
    const names = [...new Set(runs.map((r) => r.scheme))];
    const of = (name) => runs.filter((r) => r.scheme === name);
    const plain = of("mha")[0] ?? runs[0];
    const schemes = names.map((name) => {
        const mine = of(name), gates = mine.map((r) => r.gates).filter((g) => g.length > 0);
        return { scheme: name, seeds: mine.map((r) => r.seed), loss: interval(mine.map((r) => r.loss)), parameters: mine[0].parameters,
            cacheBytes: mine[0].cacheBytes, cacheShare: mine[0].cacheBytes / plain.cacheBytes, flop: mine[0].flop,
            flopShare: mine[0].flop / plain.flop, recall: recallMeans(mine), gates: meanGates(gates), leaning: gatesVerdict(gates) };
    });
    const losses = (name) => new Map(of(name).map((r) => [r.seed, r.loss]));
    const order = ORDER.filter(([a, b]) => of(a).length > 0 && of(b).length > 0).map(([below, above]) =>
        ({ below, above, ...judgeBelow(losses(below), losses(above)) }));
    return { schemes, order, plain: plain.scheme };
}

function recallMeans(mine) {
    return (mine[0].recall ?? []).map(({ distance }, i) => ({ distance, ...interval(mine.map((r) => r.recall[i].share)) }));
}

function lossTable({ schemes, plain }) {
    return [`| scheme | seeds | parameters | validation loss, nats per token | cache bytes per token, f16 | : ${plain} | FLOP of a prompt | ` +
        `: ${plain} |`, "|---|---:|---:|---:|---:|---:|---:|---:|",
    ...schemes.map((s) => `| ${s.scheme} | ${s.seeds.length} | ${s.parameters} | ${withHalf(s.loss)} | ${s.cacheBytes} | ` +
        `${s.cacheShare.toFixed(2)} | ${s.flop.toExponential(2)} | ${s.flopShare.toFixed(2)} |`)].join("\n");
}

function recallTable({ schemes }) {
    const [first] = schemes;
    const cell = (r) => `${(100 * r.mean).toFixed(0)} %${r.half === undefined ? "" : ` ± ${(100 * r.half).toFixed(0)}`}`;
    return first.recall.length === 0 ? "Not measured." : [
        `| scheme: right answers at a distance, in pairs | ${first.recall.map((r) => r.distance).join(" | ")} | all |`,
        `|---|${"---:|".repeat(first.recall.length + 1)}`,
        ...schemes.map((s) => `| ${s.scheme} | ${s.recall.map(cell).join(" | ")} | ${cell({ mean: mean(s.recall.map((r) => r.mean)) })} |`),
    ].join("\n");
}

const VERDICTS = ["seen", "within noise", "not seen: the opposite is", "one seed: no interval"];

function orderText({ order }) {
    if (order.length === 0) {
        return "No two schemes were trained of which the paper gives an order.";
    }
    const lines = order.map((o) => `| ${o.below} below ${o.above} | ${signed(o.mean)}${o.half === undefined ? "" : ` ± ${o.half.toFixed(4)}`} | ` +
        `${o.isPaired ? "seed by seed" : "of means"} | ${o.verdict} |`);
    const said = VERDICTS.map((verdict) => [verdict, order.filter((o) => o.verdict === verdict).map((o) => `${o.below} < ${o.above}`)])
        .filter(([, pairs]) => pairs.length > 0).map(([verdict, pairs]) => `${verdict}: ${pairs.join(", ")}`);
    return `Order of the paper in loss: ${said.join("; ")}.\n\n` +
        `| the paper says | difference of losses | taken | here |\n|---|---:|---|---|\n${lines.join("\n")}`;
}

function gatesText({ schemes }) {
    const tables = schemes.filter((s) => s.gates.length > 0).map((s) => {
        return `${gatesTable(s.scheme, s.gates)}${s.leaning ? `\n\n${s.scheme}: ${s.leaning.text}.` : ""}`;
    });
    return tables.length > 0 ? `${tables.join("\n\n")}\n\nShares are those in the size of the gate times K or V, whose sizes are ` +
        "estimated from the weights. ± is half of a 95 % interval over seeds of the mean of all layers." : "No scheme with gates was trained.";
}

// The whole, as Markdown below a title.
export function markdown(found, about) {
    return `${about}\n\n${lossTable(found)}\n\n± is half of a 95 % confidence interval over seeds (Student). "Seen" and "the opposite" ` +
        "mean that the interval of the difference is on one side of 0. Where both schemes have the same seeds the differences are taken seed " +
        "by seed, as runs of a seed have the same text and tasks; otherwise between the means (Welch). Several pairs are judged, each at 95 %.\n\n" +
        `${orderText(found)}\n\n## Recall by distance\n\n${recallTable(found)}\n\n## Gates\n\n${gatesText(found)}\n`;
}
