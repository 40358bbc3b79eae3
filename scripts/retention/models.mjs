// models.mjs - the models of `make retention` and what each is asked.
//
// SPDX-License-Identifier: MIT
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { TASKS } from "./tasks.mjs";

// data: the path of a file by name; made: the path of a text that a run writes (isMade).
//
// text: the text of the continuation, in chunks of ctx tokens that are condensed every `chunk`.
// scoreFrom: tokens before the scored ones, if not half of ctx. lengths: bytes of the tasks' texts.
// samples: texts of a task. isBytes: a token is a byte. isShort: see policies.mjs. turn: how the
// model's turns look; its chunk is the tokens between two condensings. wholeLayers: full_layers of
// entropy; without it layers 0, 1 and the last, which are too many of a small model. calibrate: the
// texts that predict learns from. cost: seconds of one thread for a text of n tokens, as far as it
// is known before the first run. repeat: the same with reconstruct, to the same without.
//
// tests/data/quire-stories.gguf is not here: its layers share K and V, which --retain refuses.
export function models(data, made) {
    return {
        recall: { name: "quire-recall", textName: "lines of recall", ctx: 4096, chunk: 3072, scoreFrom: 3072, chunks: 8, recent: 16,
            text: made("recall-lines.txt"), isMade: true, wholeLayers: "none", lengths: [2048, 4096, 8000], tasks: TASKS, isBytes: true,
            calibrate: { ctx: 2048, chunks: 48 }, model: data("quire-recall.gguf"), cost: (n) => 0.03 + 8e-6 * n + 5e-9 * n * n, repeat: 6 },
        tinyllama: { name: "TinyLlama-1.1B IQ2_XXS", textName: "wiki.test.raw", ctx: 2048, chunk: 1500, scoreFrom: 1500, recent: 128, chunks: 8,
            lengths: [3072, 6144], tasks: ["passkey"], samples: 20, calibrate: { ctx: 1024, chunks: 8 },
            turn: { user: "<|user|>\n", assistant: "</s>\n<|assistant|>\n", end: "</s>\n", answer: 32, chunk: 128, recent: 32 },
            text: data("wiki.test.raw"), talk: data("mt-bench-questions.jsonl"), model: data("tinyllama-1.1b-chat-iq2_xxs.gguf"),
            cost: (n) => 0.4 + 0.0045 * n, repeat: 2.5 },
        stories15m: { name: "stories15M Q8_0", textName: "tinystories.txt", ctx: 256, chunk: 64, recent: 16, chunks: 40, isShort: true, wholeLayers: "none",
            text: data("tinystories.txt"), model: data("stories15M-q8_0.gguf"), cost: (n) => 0.1 + 0.0003 * n, repeat: 2.5 },
        minimind2: { name: "MiniMind2-Small Q8_0", textName: "chinese.txt", ctx: 2048, chunk: 512, recent: 64, chunks: 8,
            text: data("chinese.txt"), model: data("minimind2-small-q8_0.gguf"), cost: (n) => 0.1 + 0.0006 * n, repeat: 2.5 },
        stories260k: { name: "stories260K F32", textName: "fables.txt", ctx: 256, chunk: 64, recent: 16, chunks: 16, isShort: true, wholeLayers: "none",
            text: data("fables.txt"), model: data("stories260K-f32.gguf"), cost: (n) => 0.05 + 0.0001 * n, repeat: 2.5 },
    };
}

// Names a model file by its bytes: results of other bytes do not count.
export function digestOf(path) {
    return createHash("sha256").update(readFileSync(path)).digest("hex").slice(0, 12);
}
