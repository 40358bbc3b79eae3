// shapes.mjs - speed of schemes on shapes of real models with random weights: time to the first
// token and decode, beside the plain shape, in turns.
//
// SPDX-License-Identifier: MIT
import { existsSync, renameSync } from "node:fs";
import { join } from "node:path";
import { ourBench } from "../compare/speed.mjs";
import { median, run } from "../compare/tools.mjs";
import { bound, verdict } from "../serve/race.mjs";

// Even numbers of layers, so that half of them store.
export const SHAPES = [
    { name: "135M", shape: "smollm2-135m", layers: 30, heads: 9 },
    { name: "1B", shape: "llama-1b", layers: 16, heads: 32 },
];
export const QUICK_SHAPES = [{ name: "tiny", shape: "tiny-quire", layers: 4, heads: 4 }];
export const DEPTHS = { prompt: 8192, depth: 32768, gen: 16 };
export const QUICK_DEPTHS = { prompt: 128, depth: 256, gen: 4 };

const TTFT = { floor: 0.6, aim: 0.52, isLess: true };
const DECODE_LITE = { floor: 0.97, aim: 1 };
const DECODE_FUSED = { mha: { floor: 0.62, aim: 0.66 }, gqa: { floor: 0.8, aim: 0.9 } };
const Q4 = { bytes: { floor: 0.14, isLess: true }, decode: { floor: 3 } };
const HALF = { floor: 0.5, isLess: true };

// kind: mha, as many KV heads as heads, or gqa, those of the shape. The plain model of a kind is a
// scheme of that name.
function schemeModel(c, shape, kind, scheme) {
    const path = join(c.work, `${shape.shape}-${shape.layers}-${kind}-${scheme}-${c.type}.gguf`);
    if (!existsSync(path)) {
        process.stderr.write(`making ${path}\n`);
        const heads = kind === "mha" ? ["--kv-heads", `${shape.heads}`] : [];
        run(c.generator, ["--shape", shape.shape, "--layers", `${shape.layers}`, ...heads, "--scheme", scheme, "--type", c.type, "--ctx",
            "65536", "--seed", "1", "-o", `${path}.part`]);
        renameSync(`${path}.part`, path);
    }
    return path;
}

function sidesOf(c, shape, kind) {
    const side = (scheme, kv) => ({ scheme, kv, model: schemeModel(c, shape, kind, scheme), ttft: [], decode: [] });
    return [side(kind, "f16"), side("fusedkv-lite", "f16"), side("fusedkv", "f16"), side("fusedkv-lite", "q4")];
}

function measure(c, side) {
    const common = { model: side.model, kv: side.kv };
    if (side.kv === "f16") {
        const { prefill } = ourBench(c, { ...common, depth: 0, prompt: c.depths.prompt });
        side.ttft.push(1000 * c.depths.prompt / prefill.tokens_per_second);
    }
    const { decode } = ourBench(c, { ...common, depth: c.depths.depth, gen: c.depths.gen });
    side.decode.push(decode.tokens_per_second);
    side.cacheBytes = decode.kv_bytes;
}

function addRow(c, what, ours, theirs, target) {
    c.report.add({ what, ours, theirs, ratio: ours / theirs, floor: bound(target.floor, target), aim: bound(target.aim, target),
        verdict: verdict(ours / theirs, target) });
}

function addRows(c, shape, kind, sides) {
    const [plain, lite, fused, q4] = sides;
    const { prompt, depth } = c.depths, of = (side, what) => median(side[what]);
    const name = `${shape.name}, ${kind}`;
    addRow(c, `${name}: cache bytes at ${depth}, fusedkv-lite : plain`, lite.cacheBytes, plain.cacheBytes, HALF);
    addRow(c, `${name}: cache bytes at ${depth}, fusedkv : plain`, fused.cacheBytes, plain.cacheBytes, HALF);
    addRow(c, `${name}: TTFT ms of ${prompt} tokens, fusedkv-lite : plain`, of(lite, "ttft"), of(plain, "ttft"), TTFT);
    addRow(c, `${name}: TTFT ms of ${prompt} tokens, fusedkv : plain`, of(fused, "ttft"), of(plain, "ttft"), TTFT);
    addRow(c, `${name}: decode tokens/s at ${depth}, fusedkv-lite : plain`, of(lite, "decode"), of(plain, "decode"), DECODE_LITE);
    addRow(c, `${name}: decode tokens/s at ${depth}, fusedkv : plain`, of(fused, "decode"), of(plain, "decode"), DECODE_FUSED[kind]);
    addRow(c, `${name}: cache bytes at ${depth}, fusedkv-lite in q4 : plain in f16`, q4.cacheBytes, plain.cacheBytes, Q4.bytes);
    addRow(c, `${name}: decode tokens/s at ${depth}, fusedkv-lite in q4 : plain in f16`, of(q4, "decode"), of(plain, "decode"), Q4.decode);
}

// c: { quire, generator, work, threads, type, report, depths, rounds, shapes, kinds }.
export function speedOfShapes(c) {
    for (const shape of c.shapes) {
        for (const kind of c.kinds) {
            const sides = sidesOf(c, shape, kind);
            for (let round = 0; round < c.rounds; round++) {
                for (const i of round % 2 ? [...sides.keys()].reverse() : sides.keys()) {
                    measure(c, sides[i]);
                }
            }
            addRows(c, shape, kind, sides);
        }
    }
}
