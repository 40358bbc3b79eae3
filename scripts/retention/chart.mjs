// chart.mjs - quality against KV bytes as SVG: a panel for each model and yardstick, with 95 %
// intervals. Policies and formats stand in the same panels.
//
// SPDX-License-Identifier: MIT
import { parsed, shown } from "./policies.mjs";

const COLUMNS = 3;
const WIDTH = 400;
const HEIGHT = 330;
const BOX = { left: 58, right: 24, top: 44, bottom: 46 };
const LEGEND = { columns: 4, row: 19, top: 24 };
const COLOURS = { reconstruct: "#c0392b", predict: "#1b6ca8", entropy: "#2e8b57", snap: "#d68910", expected: "#8e44ad", heavy: "#a04000",
    keydiff: "#00838f", window: "#8a8a8a", last: "#8a8a8a", stride: "#8a8a8a", random: "#8a8a8a", top: "#d81b80" };
const SHAPES = { window: "up", last: "down", stride: "cross", random: "plus", top: "diamond" };
const INK = "#333";

const escape = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
const near = (v) => v.toFixed(1);

// Points of one series are joined: a format with all tokens, or a policy with several shares.
function seriesOf(policy) {
    const p = parsed(policy);
    if (p.kind === "format") {
        return { name: "all tokens in q8 to q3", colour: INK, shape: "square", label: p.kv };
    }
    const name = shown(policy).replace(p.kind === "attend" ? /$^/ : /:[\d.]+/, "");
    const isVariant = p.keys.length > 0 || p.kv !== "f16";
    const shape = p.keys.includes("merge=fit") ? "diamond" : p.keys.includes("merge=keep") ? "up" : SHAPES[p.name] ?? "circle";
    return { name, colour: COLOURS[p.name], shape, isOpen: isVariant, label: isVariant && p.kv !== "f16" ? p.kv : "" };
}

function marker({ shape, colour, isOpen }, x, y) {
    const fill = isOpen ? "white" : colour, line = `stroke="${colour}" stroke-width="1.5"`;
    const path = (d, inside = fill) => `<path d="M${d}" fill="${inside}" ${line}/>`;
    switch (shape) {
    case "square":
        return `<rect x="${near(x - 3.5)}" y="${near(y - 3.5)}" width="7" height="7" fill="${fill}" ${line}/>`;
    case "diamond":
        return path(`${near(x)} ${near(y - 5)}l5 5l-5 5l-5 -5z`);
    case "up":
        return path(`${near(x)} ${near(y - 4.5)}l4.5 8h-9z`);
    case "down":
        return path(`${near(x)} ${near(y + 4.5)}l4.5 -8h-9z`);
    case "cross":
        return path(`${near(x - 4)} ${near(y - 4)}l8 8m0 -8l-8 8`, "none");
    case "plus":
        return path(`${near(x - 5)} ${near(y)}h10m-5 -5v10`, "none");
    default:
        return `<circle cx="${near(x)}" cy="${near(y)}" r="4" fill="${fill}" ${line}/>`;
    }
}

// { position(v) in 0..1 from below, ticks: [[v, text]] } of an axis.
function logAxis(points) {
    const values = points.flatMap((p) => [p.value, p.low, p.high]).filter((v) => v > 0 && Number.isFinite(v));
    const top = Math.max(...values), bottom = Math.max(Math.min(...points.map((p) => p.value).filter((v) => v > 0)) / 2, top / 1e5);
    const [low, high] = [Math.log10(bottom), Math.log10(top * 1.1)];
    const ticks = [];
    for (let decade = Math.floor(low); decade <= high; decade++) {
        ticks.push(...[1, 2, 5].map((step) => step * 10 ** decade).filter((v) => Math.log10(v) >= low && Math.log10(v) <= high));
    }
    const shownTicks = ticks.length > 8 ? ticks.filter((v) => /^1(e|$)|^0\.0*1$/.test(`${Number(v.toPrecision(1))}`)) : ticks;
    return { position: (v) => Math.min(1, Math.max(0, (Math.log10(Math.max(v, 1e-12)) - low) / (high - low))),
        ticks: shownTicks.map((v) => [v, `${Number(v.toPrecision(1))}`]) };
}

function shareAxis(points) {
    const lowest = Math.min(...points.map((p) => p.low));
    const low = Math.min(0.9, Math.max(0, Math.floor(10 * lowest) / 10)), step = 1 - low > 0.5 ? 0.2 : 1 - low > 0.2 ? 0.1 : 0.05;
    const ticks = [];
    for (let v = 1; v >= low - 1e-9; v -= step) {
        ticks.push([v, `${Math.round(100 * v)} %`]);
    }
    return { position: (v) => Math.min(1, Math.max(0, (v - low) / (1 - low))), ticks };
}

function points(rows, y) {
    return rows.filter((r) => r.state !== undefined).map((r) => ({ ...seriesOf(r.policy), x: r.state, ...y(r) }));
}

// The panels of the groups of gather.mjs.
export function panelsOf(groups) {
    const answered = (t, where) => t.rows.filter((r) => r.longest !== undefined && r.where === where)
        .map((r) => ({ policy: r.policy, ...r.longest }));
    const all = groups.flatMap(({ model: m, tasks: t, continuation: c, conversations: talks }) => [
        ...(t === undefined || t.longest === undefined ? [] : ["after", "inside"].map((where) => ({ title: m.name,
            about: `answers, ${t.longest.toLocaleString("en-US")} bytes, question ${where === "after" ? "after the text" : "inside the window"}`,
            axis: shareAxis, points: points(answered(t, where), (r) => r.share) }))),
        c && { title: m.name, about: `continuation of ${m.textName}: KL divergence`, axis: logAxis, points: points(c.rows, (r) => r.kld) },
        talks && { title: m.name, about: `${talks.texts} conversations: same top token`, axis: shareAxis, points: points(talks.rows, (r) => r.agreement) },
    ]);
    return all.filter((p) => p && p.points.length > 0);
}

function drawPanel(panel, index) {
    const wide = WIDTH - BOX.left - BOX.right, high = HEIGHT - BOX.top - BOX.bottom;
    const most = Math.max(1, ...panel.points.map((p) => p.x));
    const x = (bytes) => BOX.left + bytes / most * wide;
    const axis = panel.axis(panel.points), y = (v) => BOX.top + high * (1 - axis.position(v));
    const out = [`<g transform="translate(${(index % COLUMNS) * WIDTH},${Math.floor(index / COLUMNS) * HEIGHT})">`,
        `<text x="${BOX.left}" y="16" font-size="13" font-weight="bold">${escape(panel.title)}</text>`,
        `<text x="${BOX.left}" y="32" font-size="11.5">${escape(panel.about)}</text>`,
        `<path d="M${BOX.left} ${BOX.top}v${high}h${wide}" fill="none" stroke="#999"/>`];
    for (const [v, text] of axis.ticks) {
        out.push(`<line x1="${BOX.left}" x2="${BOX.left + wide}" y1="${near(y(v))}" y2="${near(y(v))}" stroke="#e4e4e4"/>`,
            `<text x="${BOX.left - 6}" y="${near(y(v) + 4)}" text-anchor="end" font-size="11">${text}</text>`);
    }
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
        out.push(`<text x="${near(x(share))}" y="${HEIGHT - BOX.bottom + 16}" text-anchor="middle" font-size="11">${100 * share} %</text>`);
    }
    out.push(`<text x="${BOX.left + wide / 2}" y="${HEIGHT - BOX.bottom + 32}" text-anchor="middle" font-size="11">` +
        "KV bytes at the end, to all tokens in f16</text>");
    for (const name of new Set(panel.points.map((p) => p.name))) {
        const of = panel.points.filter((p) => p.name === name).sort((a, b) => a.x - b.x);
        if (of.length > 1) {
            out.push(`<polyline fill="none" stroke="${of[0].colour}" stroke-opacity="0.5" points="${of.map((p) =>
                `${near(x(p.x))},${near(y(p.value))}`).join(" ")}"/>`);
        }
    }
    for (const p of panel.points) {
        out.push(`<line x1="${near(x(p.x))}" x2="${near(x(p.x))}" y1="${near(y(p.low))}" y2="${near(y(p.high))}" stroke="${p.colour}" stroke-opacity="0.6"/>`);
    }
    for (const p of panel.points) {
        const down = y(p.value) < BOX.top + 10 ? 14 : -6; // a label never stands on the text above the panel
        out.push(marker(p, x(p.x), y(p.value)), p.label === "" ? ""
            : `<text x="${near(x(p.x) + 6)}" y="${near(y(p.value) + down)}" font-size="10" fill="${p.colour}">${p.label}</text>`);
    }
    return `${out.filter((line) => line !== "").join("\n")}\n</g>`;
}

// groups: of gather.mjs.
export function chart(groups) {
    const panels = panelsOf(groups);
    const series = [...new Map(panels.flatMap((p) => p.points).map((p) => [p.name, p])).values()];
    const rows = Math.ceil(panels.length / COLUMNS), top = rows * HEIGHT + LEGEND.top, each = (COLUMNS * WIDTH - BOX.left) / LEGEND.columns;
    const legend = series.map((s, i) => {
        const [left, down] = [BOX.left + (i % LEGEND.columns) * each, top + Math.floor(i / LEGEND.columns) * LEGEND.row];
        return `${marker(s, left + 6, down - 4)}<text x="${near(left + 18)}" y="${down}" font-size="12">${escape(s.name)}</text>`;
    });
    const [width, height] = [COLUMNS * WIDTH, top + Math.ceil(series.length / LEGEND.columns) * LEGEND.row];
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="sans-serif" ` +
        `fill="${INK}">\n<rect width="100%" height="100%" fill="white"/>\n${[...panels.map(drawPanel), ...legend].join("\n")}\n</svg>\n`;
}
