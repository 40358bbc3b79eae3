// gates.mjs - sources of layers by their learned gates: the share of the bottom layer in what is
// added up.
//
// Of two sources the share of the first is r0 / (r0 + r1), where r is the root mean square of the
// gate times the stored K or V. The sizes of K and V are estimated from the weights alone, as if
// the elements of a layer's normalised input were uncorrelated: an element of V then has the mean
// square of its row of the matrix times the norm's weights; an element of K, where heads of K have
// a norm, that of the norm's weight. With one source only the mean size of the gate is given.
//
// SPDX-License-Identifier: MIT
import { interval, mean, sideOf } from "./statistics.mjs";
import { shapeOf } from "./plan.mjs";

const BAR = 20; // characters of a whole

const size = (values) => mean([...values].map(Math.abs));

// Mean squares of the elements of a stored row, [nKvHead dHead].
function storedSquares(gguf, shape, letter, layer) {
    const norm = `blk.${layer}.attn_${letter}_norm.weight`, n = shape.nKvHead * shape.dHead;
    if (gguf.tensors.has(norm)) {
        const weights = gguf.floats(norm);
        return Array.from({ length: n }, (_, i) => weights[i % shape.dHead] ** 2);
    }
    const matrix = gguf.floats(`blk.${layer}.attn_${letter}.weight`), scale = gguf.floats(`blk.${layer}.attn_norm.weight`);
    return Array.from({ length: n }, (_, row) => scale.reduce((sum, s, i) => sum + (s * matrix[row * scale.length + i]) ** 2, 0));
}

// The rotary embedding turns pairs of elements, so both have the mean of their squares.
function turned(squares, dHead) {
    const half = dHead / 2;
    return squares.map((s, i) => (s + squares[i % dHead < half ? i + half : i - half]) / 2);
}

// The root mean square of a gate times the rows of its source. A gate has half a head, a head, or
// all heads.
function weighed(gguf, shape, letter, layer, gate) {
    const squares = storedSquares(gguf, shape, letter, layer);
    return Math.sqrt(mean((letter === "k" ? turned(squares, shape.dHead) : squares).map((s, i) => s * gate[i % gate.length] ** 2)));
}

// [{ layer, k: {sources, sizes, share}, v }] of the layers that have gates; sizes are those of the
// gates alone, share is undefined with one source.
export function gatesOf(gguf) {
    const shape = shapeOf(gguf), layers = [];
    for (let i = 0; i < shape.nLayer; i++) {
        const side = (letter, sources) => {
            const name = (n) => `blk.${i}.attn_${letter}_gate.${n}`;
            const there = sources.filter((s) => s >= 0);
            if (!gguf.tensors.has(name(0))) {
                return undefined;
            }
            const gates = there.map((_, n) => gguf.floats(name(n)));
            const parts = there.map((source, n) => weighed(gguf, shape, letter, source, gates[n]));
            return { sources: there, sizes: gates.map(size), share: parts.length === 2 ? parts[0] / (parts[0] + parts[1]) : undefined };
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

// The share of the bottom layer over all layers of one run; undefined where no layer has two
// sources.
function meanShare(layers, letter) {
    const shares = layers.map((l) => l[letter]?.share).filter((share) => share !== undefined);
    return shares.length > 0 ? mean(shares) : undefined;
}

// The verdict of lists over seeds on the paper's claim: V draws more on the bottom layer, K on the
// middle one. { k, v: {mean, half, n}, text }, or undefined without two sources.
export function gatesVerdict(lists) {
    const of = (letter) => lists.map((layers) => meanShare(layers, letter)).filter((share) => share !== undefined);
    if (of("k").length === 0 || of("v").length === 0) {
        return undefined;
    }
    const [k, v] = ["k", "v"].map((letter) => interval(of(letter)));
    const says = (text, share, sign) => {
        const side = sideOf({ mean: share.mean - 0.5, half: share.half });
        const verdict = side === undefined ? "one seed: no interval" : side === sign ? "seen" : side === -sign ? "not seen: the opposite is"
            : "within noise";
        return `${text}: ${verdict} (bottom ${percent(share.mean)}${share.half === undefined ? "" : ` ± ${(100 * share.half).toFixed(0)}`})`;
    };
    return { k, v, text: `${says("keys draw more on the middle layer", k, -1)}; ${says("values draw more on the bottom layer", v, 1)}` };
}

const percent = (share) => `${(100 * share).toFixed(0)} %`;

export function gatesTable(scheme, layers) {
    const cell = (side) => (side === undefined ? "" : side.share === undefined ? `layer ${side.sources[0]} times ${side.sizes[0].toFixed(3)}`
        : `\`${bar(side.share)}\` ${percent(side.share)} of layer ${side.sources[0]}, the rest of layer ${side.sources[1]}`);
    return [`| ${scheme}: layer | K | V |`, "|---:|---|---|",
        ...layers.map((l) => `| ${l.layer} | ${cell(l.k)} | ${cell(l.v)} |`)].join("\n");
}
