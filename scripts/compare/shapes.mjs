// shapes.mjs - models with random weights of other models' shapes, which make compare and make
// compare-serve race. Data only.
//
// toy: arguments of the generator that make a small model of the same kind, for --quick.
//
// SPDX-License-Identifier: MIT
import { shapeModel } from "./tools.mjs";

const toy = (layers) => ["--layers", `${layers}`, "--vocab", "8192"];

const SHAPES = {
    smol: { name: "SmolLM2-135M shape Q8_0", shape: "smollm2-135m", type: "q8_0" },
    llama1b: { name: "Llama-1B shape Q4_0", shape: "llama-1b", type: "q4_0" },
    llama7b: { name: "Llama-2-7B shape Q8_0", shape: "llama2-7b", type: "q8_0" },
    qwenExperts: { name: "Qwen3-30B-A3B shape Q4_K and Q6_K", shape: "qwen3-30b-a3b", type: "q4_K", more: "q6_K", toy: toy(2) },
    gptOss: { name: "gpt-oss-20b shape MXFP4 and Q8_0", shape: "gpt-oss-20b", type: "q8_0", toy: toy(2) },
    gemma: { name: "Gemma-3-4B shape Q4_0", shape: "gemma3-4b", type: "q4_0", toy: toy(6) },
    qwenDelta: { name: "Qwen3.5-4B shape Q4_K and Q6_K", shape: "qwen3.5-4b", type: "q4_K", more: "q6_K", toy: toy(4) },
    deepSeek: { name: "DeepSeek-V2-Lite shape Q4_0", shape: "deepseek-v2-lite", type: "q4_0", toy: toy(3) },
};

// By name: { name, model }. A model is made in `folder` when a row first asks for its path.
export function shapedModels(generator, folder, { isQuick }) {
    const entry = ({ name, shape, type, more, toy: small }) => ({ name, get model() {
        return shapeModel(generator, folder, shape, type, more, isQuick ? small : undefined);
    } });
    return Object.fromEntries(Object.entries(SHAPES).map(([key, shape]) => [key, entry(shape)]));
}
