// targets.mjs - the rows of `make compare`, and how much faster Quire has to be. Data only.
//
// A floor must be met, an aim may be missed. Rows without either are reported. Where both engines
// read f16 the peer's two settings run in each round and the better one counts. llama-bench
// computes its context up to the depth, so deep points take minutes per setting and run one round
// of several repeats. Quire's pages are synthetic, which cost the same to read.
//
// SPDX-License-Identifier: MIT
const F16 = [{ kv: "f16", fa: "off" }, { kv: "f16", fa: "on" }];
const QUANTISED = [{ kv: "q8_0", fa: "on" }, { kv: "q4_0", fa: "on" }];

const decode = (kv, floor, aim) => ({ test: "decode", kv, to: "peer", floor, aim });
const prefill = (kv, floor, aim) => ({ test: "prefill", kv, to: "peer", floor, aim });
const roofline = (kv, floor, aim) => [
    { test: "decode", kv, share: "attention_roofline_share", floor, aim },
    { test: "decode", kv, share: "roofline_share" },
];

const depth0 = { depth: 0, prompt: 512, gen: 32, ours: ["f16"], peer: F16, rounds: 3, repeats: 1 };

const depth8k = { depth: 8192, prompt: 512, gen: 32, ours: ["f16", "q8", "q4"], peer: F16, rounds: 1, repeats: 3,
    rows: [
        decode("q8", 2.0, 2.5), decode("q4"), decode("f16"),
        prefill("q8", 2, 3), { test: "prefill", kv: "q4", to: "f16", floor: 0.9, aim: 1.2 }, prefill("q4"), prefill("f16"),
    ] };

const depth32k = { depth: 32768, gen: 32, ours: ["f16", "q8", "q4"], peer: F16, rounds: 1, repeats: 3,
    rows: [
        decode("q8", 3.5, 4.5), decode("q4", 4.5, 6), decode("f16"),
        ...roofline("q8", 0.6, 0.8), ...roofline("q4", 0.6, 0.8), ...roofline("f16", 0.6, 0.8),
    ] };

// The peer's own quantised caches, once, for the record.
const quantised = (p) => [
    { test: "decode", kv: p.kv.slice(0, 2), to: { peer: p } },
    { test: "prefill", kv: p.kv.slice(0, 2), to: { peer: p } },
];

// By the part that --only names. raced: which of compare.mjs's models.
export const races = {
    speed: [
        { ...depth0, raced: "tinyLlama", rows: [prefill("f16", 0.95), decode("f16", 0.95)] },
        { ...depth0, raced: "smol", rows: [prefill("f16", 1.0, 1.05), decode("f16", 1.0, 1.05)] },
        { ...depth8k, raced: "smol" },
    ],
    "quantised": [{ ...depth8k, raced: "smol", ours: ["q8", "q4"], peer: [], once: QUANTISED, rows: QUANTISED.flatMap(quantised) }],
    "32k": [{ ...depth32k, raced: "smol" }],
    "1b": [
        { ...depth0, raced: "llama1b", rows: [prefill("f16", 1.0, 1.05), decode("f16", 1.0, 1.05)] },
        { ...depth8k, raced: "llama1b" },
    ],
    "1b-32k": [{ ...depth32k, raced: "llama1b" }],
    "7b": [{ ...depth8k, prompt: undefined, raced: "llama7b", gen: 8, repeats: 2,
        rows: [decode("q8", 2.0, 2.5), decode("q4"), decode("f16"), ...roofline("q8"), ...roofline("q4")] }],
};

// Models of families other than llama's. Their first floors are at depth 0, in f16.
const family = (raced, rows) => ({ ...depth0, raced, rows });
// warmUp: tokens of a prompt before ours. The peer computes the tokens of the depth, and so has
// read all weights. Ours are made, and weights of a model that hardly fits memory lie on the disk.
const family8k = (raced, kv, floor, aim) => ({ ...depth8k, prompt: undefined, warmUp: 512, raced, ours: [kv], gen: 16, repeats: 2,
    rows: [decode(kv, floor, aim)] });

Object.assign(races, {
    "gemma3": [family("gemma", [prefill("f16"), decode("f16")]), family8k("gemma", "q8", 1.5, 2.5)],
    "qwen3.5": [family("qwenDelta", [prefill("f16", 1.0, 1.3), decode("f16", 1.0, 1.3)])],
    "deepseek-v2": [family("deepSeek", [prefill("f16"), decode("f16")]), family8k("deepSeek", "q8", 1.2, 2)],
    "gpt-oss": [family("gptOss", [prefill("f16", 1.0, 2), decode("f16", 1.0, 1.3)])],
    "qwen3-30b-a3b": [family("qwenExperts", [prefill("f16"), decode("f16", 1.0, 1.3)]), family8k("qwenExperts", "q8", 1.5, 2.5)],
});
// Memory computed by `quire info` and used by `quire bench`, beside the races of the same part.
export const familyMemory = {
    "gemma3": [{ measure: "cacheBytes", raced: "gemma", ctx: 32768, kv: "f16" }],
    "qwen3-30b-a3b": [{ measure: "fits", raced: "qwenExperts", ctx: 32768, kv: "q8", limitBytes: 24e9 }],
};
export const families = ["gemma3", "qwen3.5", "deepseek-v2", "gpt-oss", "qwen3-30b-a3b"];

// Several repeats a run: the first has the first touch of new pages in it.
const shared = { raced: "smol", sequences: 8, prefix: 32768, gen: 32, repeats: 3, rounds: 3 };

export const cascades = [
    { ...shared, kv: "bf16", floor: 3, aim: 3.5 },
    { ...shared, kv: "q8", floor: 1.6, aim: 2 },
    { ...shared, kv: "q4" },
];

// Short enough to try the scripts out; the figures say nothing.
export function quick(point) {
    return { ...point, depth: Math.min(point.depth ?? 0, 128), prefix: 256, ctx: 1024, gen: 2, prompt: point.prompt && 32, repeats: 1,
        rounds: 1 };
}
