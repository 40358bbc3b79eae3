// gates.mjs - sources of layers by their learned gates: the share of the bottom layer in the gates'
// sizes.
//
// Of two sources with gates a and b the share of the first is mean|a| / (mean|a| + mean|b|). The
// share ignores the sizes of the weighted K and V: norms of heads make K of all layers about
// equally large, while V of layers may differ. With one source only the mean size is given.
//
// SPDX-License-Identifier: MIT
import { mean } from "./statistics.mjs";
import { shapeOf } from "./plan.mjs";

const BAR = 20; // characters of a whole

const size = (values) => mean([...values].map(Math.abs));

// [{ layer, k: {sources, sizes, share}, v }] of the layers that have gates; share is undefined with
// one source.
export function gatesOf(gguf) {
    const shape = shapeOf(gguf), layers = [];
    for (let i = 0; i < shape.nLayer; i++) {
        const side = (letter, sources) => {
            const name = (n) => `blk.${i}.attn_${letter}_gate.${n}`;
            const there = sources.filter((s) => s >= 0);
            if (!gguf.tensors.has(name(0))) {
                return undefined;
            }
            const sizes = there.map((_, n) => size(gguf.floats(name(n))));
            return { sources: there, sizes, share: sizes.length === 2 ? sizes[0] / (sizes[0] + sizes[1]) : undefined };
        };
        const k = side("k", shape.sourceK[i]), v = side("v", shape.sourceV[i]);
        if (k || v) {
            layers.push({ layer: i, k, v });
        }
    }
    return layers;
}

const bar = (share) => "#".repeat(Math.round(share * BAR)).padEnd(BAR, ".");

// Lists of the same scheme over seeds: [{ layer, k, v }] with means of shares and sizes.
export function meanGates(lists) {
    const side = (i, letter) => {
        const all = lists.map((list) => list[i][letter]).filter(Boolean);
        return all.length === 0 ? undefined : { sources: all[0].sources,
            sizes: all[0].sizes.map((_, n) => mean(all.map((a) => a.sizes[n]))),
            share: all[0].share === undefined ? undefined : mean(all.map((a) => a.share)) };
    };
    return lists.length === 0 ? [] : lists[0].map(({ layer }, i) => ({ layer, k: side(i, "k"), v: side(i, "v") }));
}

const EQUAL = 0.02; // shares so close to one half lean to neither side

// The verdict of all layers on the paper's claim: V draws more on the bottom layer, K on the middle
// one.
export function gatesVerdict(layers) {
    const shares = (letter) => layers.map((l) => l[letter]?.share).filter((share) => share !== undefined);
    const [k, v] = [shares("k"), shares("v")];
    if (k.length === 0 || v.length === 0) {
        return undefined;
    }
    const words = (lean, text) => `${text}: ${lean > EQUAL ? "seen" : lean < -EQUAL ? "not seen: the opposite is" : "neither way"}`;
    return { k: mean(k), v: mean(v), text: `${words(0.5 - mean(k), "keys draw more on the middle layer")} (bottom ${percent(mean(k))}); ` +
        `${words(mean(v) - 0.5, "values draw more on the bottom layer")} (bottom ${percent(mean(v))})` };
}

const percent = (share) => `${(100 * share).toFixed(0)} %`;

export function gatesTable(scheme, layers) {
    const cell = (side) => (side === undefined ? "" : side.share === undefined ? `layer ${side.sources[0]} times ${side.sizes[0].toFixed(3)}`
        : `\`${bar(side.share)}\` ${percent(side.share)} of layer ${side.sources[0]}, the rest of layer ${side.sources[1]}`);
    return [`| ${scheme}: layer | K | V |`, "|---:|---|---|",
        ...layers.map((l) => `| ${l.layer} | ${cell(l.k)} | ${cell(l.v)} |`)].join("\n");
}
