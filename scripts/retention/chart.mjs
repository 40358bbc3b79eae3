// chart.mjs - KL divergence against bytes, one panel a model, as SVG.
//
// SPDX-License-Identifier: MIT
const WIDTH = 420;
const HEIGHT = 320;
const LEFT = 60;
const TOP = 30;
const COLOURS = ["#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#16a085", "#7f8c8d", "#34495e", "#a04000", "#95a5a6",
    "#bdc3c7", "#000000", "#e377c2", "#7f6000", "#00bcd4", "#9acd32"];

function escape(text) {
    return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

// Powers of ten that the values lie between.
function decades(values) {
    const logs = values.filter((v) => v > 0).map((v) => Math.log10(v));
    return [Math.floor(Math.min(...logs)), Math.ceil(Math.max(...logs))];
}

function panel(c, index, names) {
    const [low, high] = decades(c.rows.map((r) => r.kld));
    const most = Math.max(1, ...c.rows.map((r) => r.bytes_ratio)); // reconstruct holds a repetition besides
    const x = (bytes) => LEFT + bytes / most * (WIDTH - LEFT - 20);
    const y = (kld) => TOP + (HEIGHT - TOP - 40) * (high - Math.log10(Math.max(kld, 10 ** low))) / Math.max(1, high - low);
    const out = [`<g transform="translate(${index * WIDTH},0)">`,
        `<text x="${LEFT}" y="18" font-size="13">${escape(c.name)}</text>`];
    for (let d = low; d <= high; d++) {
        out.push(`<line x1="${LEFT}" x2="${WIDTH - 20}" y1="${y(10 ** d)}" y2="${y(10 ** d)}" stroke="#ddd"/>`,
            `<text x="${LEFT - 8}" y="${y(10 ** d) + 4}" text-anchor="end" font-size="11">1e${d}</text>`);
    }
    for (const share of [0.25, 0.5, 0.75, 1]) {
        out.push(`<text x="${x(share)}" y="${HEIGHT - 22}" text-anchor="middle" font-size="11">${100 * share} %</text>`);
    }
    out.push(`<text x="${LEFT}" y="${HEIGHT - 6}" font-size="11">bytes of pages, to all tokens in f16; up: KL divergence</text>`);
    for (const name of names) {
        const rows = c.rows.filter((r) => r.what === name).sort((a, b) => a.bytes_ratio - b.bytes_ratio);
        const colour = COLOURS[names.indexOf(name) % COLOURS.length];
        out.push(`<polyline fill="none" stroke="${colour}" points="${rows.map((r) => `${x(r.bytes_ratio).toFixed(1)},` +
            `${y(r.kld).toFixed(1)}`).join(" ")}"/>`);
        for (const r of rows) {
            out.push(`<circle cx="${x(r.bytes_ratio).toFixed(1)}" cy="${y(r.kld).toFixed(1)}" r="3" fill="${colour}"/>`);
        }
    }
    return `${out.join("\n")}\n</g>`;
}

// results: as continuation() of retention.mjs gives them.
export function chart(results) {
    const names = [...new Set(results.flatMap((c) => c.rows.map((r) => r.what)))];
    const legend = names.map((name, i) => `<text x="${LEFT + (i % 4) * 190}" y="${HEIGHT + 18 + Math.floor(i / 4) * 16}" ` +
        `font-size="12" fill="${COLOURS[i % COLOURS.length]}">${escape(name)}</text>`);
    const width = Math.max(2, results.length) * WIDTH;
    const height = HEIGHT + 30 + 16 * Math.ceil(names.length / 4);
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" font-family="sans-serif">\n` +
        `<rect width="100%" height="100%" fill="white"/>\n${results.map((c, i) => panel(c, i, names)).join("\n")}\n` +
        `${legend.join("\n")}\n</svg>\n`;
}
