// curves.mjs - a page with the loss curves of runs side by side: web/report.html with data in the
// form that src/cli/traces/report.h describes.
//
// SPDX-License-Identifier: MIT
import { readFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "../..");
const POINTS_MAX = 400;
const TOKENS = { label: "tokens of training", format: "count", unit: "tokens" };

// Means of neighbours, so that a curve has at most POINTS_MAX points.
export function thinned(points) {
    const each = Math.ceil(points.length / POINTS_MAX), thin = [];
    for (let i = 0; i < points.length; i += each) {
        const part = points.slice(i, i + each);
        thin.push([part.at(-1)[0], part.reduce((sum, p) => sum + p[1], 0) / part.length]);
    }
    return thin;
}

// The axis of losses runs from the lowest loss to the highest after the first tenth of a run.
// Larger losses at the beginning would press the rest together.
function lossAxis(curves) {
    const all = curves.filter((points) => points.length > 0);
    const values = all.flatMap((points) => points.slice(Math.floor(points.length / 10)).map((p) => p[1]));
    const low = Math.min(...values), high = Math.max(...values), room = 0.05 * (high - low || 1);
    const near = (v, round) => round(v * 10) / 10;
    return values.length === 0 ? {} : { low: near(low - room, Math.floor), high: near(high + room, Math.ceil) };
}

function lossPlot(id, title, note, runs, which) {
    const curves = runs.map((r) => thinned(r.log[which])), axis = lossAxis(curves);
    const shown = curves.map((points) => points.filter(([, y]) => y <= (axis.high ?? y)));
    const tints = [...new Set(runs.map((r) => r.group ?? r.name))];
    return { id, kind: "lines", size: "", title, note, x: TOKENS, y: { label: "nats per token", format: "nats", ...axis },
        series: runs.map((r, i) => ({ name: r.name, style: "", tint: tints.indexOf(r.group ?? r.name), points: shown[i] })) };
}

// runs: [{ name, group, log: {train, held} }]; runs of a group have one colour. parts: more parts
// of the page.
export function curvesPage({ title, about, runs, tiles = [], parts = [] }) {
    const plots = [
        lossPlot("held", "Validation loss", "Without the beginnings, which lie above the axis.", runs, "held"),
        lossPlot("train", "Training loss", "Means of neighbouring steps, without the beginnings, which lie above the axis.", runs, "train"),
    ];
    return page({ title, about, tiles, parts: [...plots, ...parts] });
}

export function page(document) {
    const template = readFileSync(join(root, "web", "report.html"), "utf8");
    // As in src/trace/offline/html.c: no text can end the element.
    const json = JSON.stringify(document).replace(/</g, "\\u003c");
    return template.replace("@DATA@", () => json);
}

// A table and pictures of the findings of findings.mjs.
export function findingParts(found) {
    const gated = found.schemes.filter((s) => s.gates.some((g) => g.k?.share !== undefined));
    const recall = found.schemes.filter((s) => s.recall.length > 0);
    const table = { id: "schemes", kind: "table", size: "", title: "Schemes", note: "Loss with half of a 95 % confidence interval over seeds.",
        rows: [["scheme", "seeds", "parameters", "validation loss", "cache bytes per token", "FLOP of a prompt"],
            ...found.schemes.map((s) => [s.scheme, `${s.seeds.length}`, `${s.parameters}`,
                `${s.loss.mean.toFixed(4)}${s.loss.half === undefined ? "" : ` ± ${s.loss.half.toFixed(4)}`}`, `${s.cacheBytes}`,
                s.flop.toExponential(2)])] };
    const order = { id: "order", kind: "table", size: "", title: "The paper's order", note: "", rows: [["the paper says", "difference", "here"],
        ...found.order.map((o) => [`${o.below} below ${o.above}`, o.mean.toFixed(4), o.verdict])] };
    const recallPlot = { id: "recall", kind: "lines", size: "half", title: "Recall by distance", note: "Mean over seeds.",
        x: { label: "pairs between pair and question", format: "count", unit: "pairs", scale: "log" }, y: { label: "right answers", format: "share", high: 1 },
        series: recall.map((s) => ({ name: s.scheme, style: "", points: s.recall.map((r) => [r.distance, r.mean]) })) };
    const gates = gated.map((s) => ({ id: `gates-${s.scheme}`, kind: "lines", size: "half", title: `Gates of ${s.scheme}`,
        note: "Share of the bottom layer in the size of gates times K or V; the rest is the middle layer's.",
        x: { label: "layer", format: "count", unit: "" }, y: { label: "bottom layer", format: "share", high: 1 },
        series: ["k", "v"].map((letter) => ({ name: letter.toUpperCase(), style: "strong",
            points: s.gates.filter((g) => g[letter]?.share !== undefined).map((g) => [g.layer, g[letter].share]) })) }));
    return [table, order, ...(recall.length > 0 ? [recallPlot] : []), ...gates];
}
