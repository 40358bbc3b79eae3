// recall-check.mjs - how many questions of the trainer's tasks recall, passkey and instruction a
// model answers, by length.
//
//   node scripts/train/recall-check.mjs -m MODEL.gguf [--quire build/quire]
//        [--lengths 256,1024,4096,8000] [--questions 50] [--threads 1] [--kv f16] [--json]
//
// Lengths are bytes, which are tokens of a model with the tokenizer `bytes`. `quire serve` answers
// greedily. An answer is right when its text begins with the expected one. Things asked for lie
// anywhere in the text (recall, passkey) or at its beginning (instruction).
//
// SPDX-License-Identifier: MIT
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { randomFrom } from "../serve/texts.mjs";
import { Server } from "../serve/server.mjs";
import { recallTask } from "../schemes/recall.mjs";

const PAIR_BYTES = 8;
const FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. ";
const ANSWER_TOKENS = 20; // "colour is purple" and more
const AT_ONCE = 4;
const THINGS = {
    colour: ["red", "pink", "black", "white", "brown", "gold", "grey", "purple"],
    animal: ["cow", "horse", "mouse", "lion", "duck", "whale", "snake", "goat"],
    fruit: ["plum", "pear", "lemon", "grape", "melon", "cherry", "fig", "lime"],
    tool: ["saw", "hammer", "spade", "needle", "rope", "brush", "knife", "wheel"],
};

// Filler that fills up to `length` bytes beside `other`.
const fillers = (length, other) => Math.max(0, Math.floor((length - other) / FILLER.length));

function passkeyTask(length, random) {
    const answer = `${Math.floor(random() * 100000)}`.padStart(5, "0"), n = fillers(length, 80), at = Math.floor(random() * (n + 1));
    const said = `The pass key is ${answer}. Remember it. `;
    return { prompt: `${FILLER.repeat(at)}${said}${FILLER.repeat(n - at)}What is the pass key? The pass key is `, answer };
}

function instructionTask(length, random) {
    const pick = (list) => list[Math.floor(random() * list.length)], kinds = Object.keys(THINGS), asked = pick(kinds);
    const first = Math.floor(random() * kinds.length), order = kinds.map((_, i) => kinds[(first + i) % kinds.length]);
    const words = Object.fromEntries(kinds.map((kind) => [kind, pick(THINGS[kind])]));
    const listed = order.map((kind) => `The ${kind} is ${words[kind]}. `).join("");
    return { prompt: `At the end, say the ${asked}. ${FILLER.repeat(fillers(length, 159))}${listed}Do as I said at first: say the`,
        answer: ` ${asked} is ${words[asked]}` };
}

const TASKS = {
    recall: (length, random) => {
        const n = Math.floor((length - PAIR_BYTES) / PAIR_BYTES);
        return recallTask(n, Math.floor(random() * n), Math.floor(random() * 2 ** 32));
    },
    passkey: passkeyTask,
    instruction: instructionTask,
};

const root = resolve(dirname(fileURLToPath(import.meta.url)), "../..");
const { values: options } = parseArgs({ options: {
    model: { type: "string", short: "m" },
    quire: { type: "string", default: join(root, "build", "quire") },
    lengths: { type: "string", default: "256,1024,4096,8000" },
    questions: { type: "string", default: "50" },
    threads: { type: "string", default: "1" },
    kv: { type: "string", default: "f16" },
    json: { type: "boolean", default: false },
} });
const lengths = options.lengths.split(",").map(Number), nQuestions = Number(options.questions);
if (!options.model || lengths.some((n) => !(n >= 64)) || !(nQuestions >= 1)) {
    process.stderr.write("recall-check: -m MODEL, --lengths of 64 or more, --questions of 1 or more\n");
    process.exit(2);
}

async function answered(server, { prompt, answer }) {
    const { status, body } = await server.client.json("POST", "/v1/completions", { prompt, max_tokens: ANSWER_TOKENS, temperature: 0 });
    if (status !== 200) {
        throw new Error(body?.error?.message ?? `${body}`);
    }
    return body.choices[0].text.startsWith(answer);
}

async function share(server, task, length) {
    const waiting = Array.from({ length: nQuestions }, (_, i) => TASKS[task](length, randomFrom(1000003 * length + i + 1)));
    let right = 0;
    await Promise.all(Array.from({ length: AT_ONCE }, async () => {
        while (waiting.length > 0) {
            const isRight = await answered(server, waiting.shift()); // before the sum is read: others add to it
            right += isRight;
        }
    }));
    return right / nQuestions;
}

const server = await Server.start(options.quire, ["serve", "-m", options.model, "-t", options.threads, "--kv", options.kv]);
const rows = [];
try {
    for (const task of Object.keys(TASKS)) {
        const row = { task, shares: [] };
        for (const length of lengths) {
            row.shares.push(await share(server, task, length));
        }
        rows.push(row);
    }
} finally {
    await server.stop();
}
if (options.json) {
    process.stdout.write(`${JSON.stringify({ kv: options.kv, questions: nQuestions, lengths, rows })}\n`);
} else {
    process.stdout.write([`| task | ${lengths.join(" | ")} |`, `|---|${"---:|".repeat(lengths.length)}`,
        ...rows.map((r) => `| ${r.task} | ${r.shares.map((s) => `${(100 * s).toFixed(0)} %`).join(" | ")} |`)].join("\n") + "\n");
}
