// plan.mjs - the models that compare-schemes trains, the figures counted without running a model,
// and the paper's order.
//
// SPDX-License-Identifier: MIT
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";

export const SCHEMES = ["mha", "gqa", "cla2", "yoco", "fusedkv-lite", "fusedkv-lite-learnable", "fusedkv"];

// Validation losses of arXiv 2512.03870, from low to high: each pair says that the first is below
// the second.
export const ORDER = [["fusedkv", "fusedkv-lite"], ["fusedkv-lite-learnable", "fusedkv-lite"], ["fusedkv-lite", "mha"], ["mha", "gqa"],
    ["mha", "yoco"], ["gqa", "cla2"], ["yoco", "cla2"]];

// A run of tasks alone whose model answers the table of recall: mixed text teaches recall late. All
// schemes begin with heads that look back and heads that match: training from random weights finds
// them late. The longest texts have 48 pairs and fill a row. Lengths grow and batches are small as
// those of bench/train/recall-1.yaml.
const RECALL = { tokenizer: "bytes", ctx: 648, rows: 2, tokens: 1.3e6, no_qk_norm: true, shift_heads: true, rope_base: 1e8,
    task_kinds: "recall,copy", task_bytes_min: 64, task_bytes_first: 120, task_bytes: 640, grow_below: 0.2, grow_every: 25,
    rate: 0.002, decay: 0 };

// Parameters are those of mha without the embedding. recall: settings of a run for recall, beside
// the shape; without it the model that learns text answers.
export const SIZES = {
    quick: { n_layer: 4, d_model: 32, n_head: 2, d_head: 16, d_ff: 48, ctx: 96, rows: 4, tokens: 4 * 96 * 20, tokenizer: "bytes",
        task_bytes: 64, rate: 0.004, recall: { ...RECALL, ctx: 104, tokens: 2 * 104 * 40, task_bytes_first: 64, task_bytes: 96, rate: 0.004 } },
    small: { n_layer: 8, d_model: 128, n_head: 4, d_head: 32, d_ff: 256, ctx: 512, rows: 8, tokens: 8e6, tokenizer: "bpe:1024",
        task_bytes: 384, rate: 0.002, products: "bf16", recall: RECALL }, // 1.3 M
    second: { n_layer: 16, d_model: 128, n_head: 4, d_head: 32, d_ff: 448, ctx: 512, rows: 8, tokens: 16e6, tokenizer: "bpe:1024",
        task_bytes: 384, rate: 0.0015, products: "bf16", recall: { ...RECALL, rate: 0.0015 },
        schemes: ["mha", "gqa", "fusedkv-lite", "fusedkv"] }, // 3.8 M
};
const TASK_SHARE = 0.25; // of the tokens
const TASK_KINDS = "recall,passkey,copy,instruction";
const TASK_BYTES_MIN = 64;
const DOC_BYTES = 8192; // so that the held-out share of a text of 1 MB is some documents

// The settings that all runs of a comparison share.
export function sharedSettings(size, { tokens, data, tokenizer }) {
    const { tokens: tokensDefault, tokenizer: tokenizerDefault, schemes: _, recall: __, ...shape } = SIZES[size];
    return { ...shape, data, tokenizer: tokenizer ?? tokenizerDefault, ...schedule(shape, tokens ?? tokensDefault),
        doc_bytes: DOC_BYTES, tasks: data ? TASK_SHARE : 1, task_kinds: TASK_KINDS, task_bytes_min: TASK_BYTES_MIN, held: 0.03,
        held_batches: size === "quick" ? 4 : 50 };
}

// The settings that all runs for recall share, or undefined: the size has none.
export function recallSettings(size) {
    const { recall, tokens: _, schemes: __, ...shape } = SIZES[size];
    if (!recall) {
        return undefined;
    }
    const { tokens, ...all } = { ...shape, ...recall };
    return { ...all, ...schedule(all, tokens), held_batches: 4 };
}

function schedule({ rows, ctx, rate }, tokens) {
    const steps = Math.max(1, Math.round(tokens / (rows * ctx)));
    return { steps, warmup: Math.ceil(steps / 20), rate_end: rate / 10, log_every: Math.max(1, Math.round(steps / 200)),
        held_every: Math.max(1, Math.round(steps / 10)), save_every: Math.max(1, Math.round(steps / 20)) };
}

// Raise this when the same settings give another training: other tasks, vocabularies or another
// optimiser.
const RECIPE = 4;

// All that a run's numbers depend on, apart from scheme, seed and machine: { settings, texts }. No
// paths.
export function settingsFacts(size, settings) {
    const { data, ...shown } = settings;
    return { settings: { size, recipe: RECIPE, ...shown, recall: recallSettings(size) }, texts: data ? textSet(data) : undefined };
}

// A short name of the facts: runs of others lie in another folder.
export function settingsName(size, facts) {
    return `${size}-${createHash("sha256").update(JSON.stringify(facts)).digest("hex").slice(0, 10)}`;
}

// { files, bytes, digest } of the texts. The digest is of all bytes, and of the names below the
// path, by which the trainer mixes files.
export function textSet(path) {
    const hash = createHash("sha256");
    let files = 0, bytes = 0;
    const add = (at, name) => {
        if (!statSync(at).isDirectory()) {
            const content = readFileSync(at);
            hash.update(`${name}\0`).update(createHash("sha256").update(content).digest());
            files++;
            bytes += content.length;
            return;
        }
        readdirSync(at).filter((below) => !below.startsWith(".")).sort().forEach((below) => add(join(at, below), `${name}/${below}`));
    };
    add(path, "");
    return { files, bytes, digest: hash.digest("hex").slice(0, 16) };
}

export const textSetName = ({ files, bytes, digest }) => `${files} files of ${bytes} bytes, digest ${digest}`;

// The settings of one run, as lines of YAML.
export function runYaml(settings, scheme, seed, files) {
    const all = { ...settings, scheme, seed, ...files };
    if (scheme === "gqa") {
        all.n_kv_head = settings.n_head / 2;
    }
    return Object.entries(all).filter(([, value]) => value !== undefined).map(([name, value]) => `${name}: ${value}\n`).join("");
}

// ---- figures from a model's file ----

export function shapeOf(gguf) {
    const arch = gguf.keys["general.architecture"], key = (name) => gguf.keys[`${arch}.${name}`];
    const nLayer = key("block_count");
    const own = Array.from({ length: nLayer }, (_, i) => [i, -1]);
    const map = (name) => {
        const list = key(`attention.kv_source_${name}`);
        return list ? own.map(([i]) => [list[2 * i], list[2 * i + 1]]) : own;
    };
    return { nLayer, dModel: key("embedding_length"), dFf: key("feed_forward_length"), nHead: key("attention.head_count"),
        nKvHead: key("attention.head_count_kv"), dHead: key("attention.key_length") ?? key("embedding_length") / key("attention.head_count"),
        sourceK: map("k"), sourceV: map("v") };
}

const stores = (shape, layer) => shape.sourceK[layer][0] === layer;

export const storedLayers = (shape) => shape.sourceK.filter((_, i) => stores(shape, i)).length;

// Bytes of a token's K and V in f16.
export const cacheBytes = (shape) => 2 * 2 * storedLayers(shape) * shape.nKvHead * shape.dHead;

// FLOP of a prompt's layers, without the embedding and the logits: 2 per multiplication and
// addition. Layers above the last storing one, and that one but for its K and V, run for the last
// token alone (docs/schemes.md, "Early exit").
export function prefillFlop(shape, nTokens) {
    const last = shape.sourceK.reduce((found, _, i) => (stores(shape, i) ? i : found), 0);
    const dQ = shape.nHead * shape.dHead, dKv = shape.nKvHead * shape.dHead;
    let flop = 0;
    for (let i = 0; i < shape.nLayer; i++) {
        const n = i < last ? nTokens : 1;
        // Attention reads all tokens before: half of them on average, all for the last one.
        const pairs = n === 1 ? nTokens : nTokens * (nTokens + 1) / 2;
        const nSources = (shape.sourceK[i][1] >= 0 ? 2 : 1) + (shape.sourceV[i][1] >= 0 ? 2 : 1);
        flop += n * 2 * (2 * shape.dModel * dQ + 3 * shape.dModel * shape.dFf) + pairs * 2 * nSources * dQ;
        flop += stores(shape, i) ? nTokens * 4 * shape.dModel * dKv : 0;
    }
    return flop;
}
