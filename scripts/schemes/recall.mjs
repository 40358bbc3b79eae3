// recall.mjs - how often a trained model gives the value of a key, by how many pairs lie between
// the pair and the question.
//
// The texts have the form of the trainer's task `recall` (docs/training.md). `quire serve` answers
// them greedily from the exported file, so the figures judge that file.
//
// SPDX-License-Identifier: MIT
import { randomFrom } from "../serve/texts.mjs";
import { Server } from "../serve/server.mjs";

const LETTERS = "abcdefghijklmnopqrstuvwxyz";
const AT_ONCE = 16;
const PAIR_BYTES = 8; // "abc=123\n"
const ASKED_MAX = 32; // questions of a text of training (src/train/task_text.c)
const ANSWER_TOKENS = 6;
const CTX = "4096"; // room for the longest text; none is longer than the context of the training

// Pairs of the longest text of recall in training: its other lines are questions.
export function pairsOf(taskBytes) {
    const lines = Math.floor(taskBytes / PAIR_BYTES);
    return lines - Math.min(ASKED_MAX, Math.floor(lines / 2));
}

// Pairs between the asked pair and the question: 0, and then doubling up to all. Texts of training
// have questions at all of these distances.
export function distances(taskBytes) {
    const n = pairsOf(taskBytes), list = [0];
    for (let d = 1; d < n; d *= 2) {
        list.push(d);
    }
    return [...list.filter((d) => d < n - 1), n - 1];
}

// { prompt, answer }: `n` pairs with keys that differ, of which the one at `distance` from the end
// is asked for.
export function recallTask(n, distance, seed) {
    const random = randomFrom(seed), pairs = new Map();
    while (pairs.size < n) {
        const key = Array.from({ length: 3 }, () => LETTERS[Math.floor(random() * LETTERS.length)]).join("");
        pairs.set(key, `${Math.floor(random() * 1000)}`.padStart(3, "0"));
    }
    const lines = [...pairs], [key, answer] = lines[n - 1 - distance];
    return { prompt: `${lines.map(([k, v]) => `${k}=${v}\n`).join("")}${key}=`, answer };
}

// [{ distance, share }] of a model. All models get the same questions.
export async function recallOf(c, model, { taskBytes, questions }) {
    const n = pairsOf(taskBytes);
    const tasks = distances(taskBytes).flatMap((distance) =>
        Array.from({ length: questions }, (_, i) => ({ distance, ...recallTask(n, distance, 1000 * distance + i + 1) })));
    const right = new Map();
    const server = await Server.start(c.quire, ["serve", "-m", model, "-t", "1", "-c", CTX, "--kv", "f16"]);
    try {
        const waiting = [...tasks];
        await Promise.all(Array.from({ length: AT_ONCE }, async () => {
            while (waiting.length > 0) {
                const task = waiting.shift();
                const { status, body } = await server.client.json("POST", "/v1/completions",
                    { prompt: task.prompt, max_tokens: ANSWER_TOKENS, temperature: 0 });
                if (status !== 200) {
                    throw new Error(`${model}: ${body?.error?.message ?? body}`);
                }
                right.set(task.distance, (right.get(task.distance) ?? 0) + body.choices[0].text.startsWith(task.answer));
            }
        }));
    } finally {
        await server.stop();
    }
    return distances(taskBytes).map((distance) => ({ distance, share: right.get(distance) / questions }));
}
