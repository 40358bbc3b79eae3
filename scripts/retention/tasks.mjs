// tasks.mjs - the made-up tasks of quire train (src/train/task_text.c), so that a model that was
// trained on them can be asked: a text, a question, the answer.
//
// SPDX-License-Identifier: MIT
export const TASKS = ["recall", "passkey", "instruction"];

const FILLER = "The grass is green. The sky is blue. The sun is yellow. Here we go. ";
const KEYS = 26 ** 3;
const KEY_STRIDE = 7919;
const THINGS = {
    colour: ["red", "pink", "black", "white", "brown", "gold", "grey", "purple"],
    animal: ["cow", "horse", "mouse", "lion", "duck", "whale", "snake", "goat"],
    fruit: ["plum", "pear", "lemon", "grape", "melon", "cherry", "fig", "lime"],
    tool: ["saw", "hammer", "spade", "needle", "rope", "brush", "knife", "wheel"],
};

// Numbers by chance, the same for the same seed (mulberry32).
function random(seed) {
    let state = (seed * 0x9e3779b9) >>> 0;
    return (n) => {
        state = (state + 0x6d2b79f5) >>> 0;
        let x = Math.imul(state ^ (state >>> 15), state | 1);
        x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
        return ((x ^ (x >>> 14)) >>> 0) % n;
    };
}

function keyText(number) {
    const letter = (x) => String.fromCharCode(97 + (x % 26));
    return letter(Math.floor(number / 676)) + letter(Math.floor(number / 26)) + letter(number);
}

// Sentences of filler in a text of so many bytes, of which the task needs `other`.
const fillers = (bytes, other) => Math.max(0, Math.floor((bytes - other) / FILLER.length));

function recall(bytes, below) {
    const n = Math.max(1, Math.min(KEYS, Math.floor((bytes - 8) / 8)));
    const first = below(KEYS);
    const asked = below(n);
    let text = "";
    let answer = "";
    for (let i = 0; i < n; i++) {
        const value = `${below(1000)}`.padStart(3, "0");
        text += `${keyText((first + i * KEY_STRIDE) % KEYS)}=${value}\n`;
        answer = i === asked ? value : answer;
    }
    return { text, question: `${keyText((first + asked * KEY_STRIDE) % KEYS)}=`, answer };
}

function passkey(bytes, below) {
    const n = fillers(bytes, 80);
    const key = `${below(100000)}`.padStart(5, "0");
    const place = below(n + 1);
    const text = Array.from({ length: n + 1 }, (_, i) => (i === place ? `The pass key is ${key}. Remember it. ` : "") +
        (i < n ? FILLER : "")).join("");
    return { text, question: "What is the pass key? The pass key is ", answer: key };
}

function instruction(bytes, below) {
    const kinds = Object.keys(THINGS);
    const asked = kinds[below(kinds.length)];
    const first = below(kinds.length);
    let text = `At the end, say the ${asked}. ${FILLER.repeat(fillers(bytes, 159))}`;
    let answer = "";
    for (let i = 0; i < kinds.length; i++) {
        const kind = kinds[(first + i) % kinds.length];
        const word = THINGS[kind][below(THINGS[kind].length)];
        text += `The ${kind} is ${word}. `;
        answer = kind === asked ? word : answer;
    }
    return { text, question: "Do as I said at first: say the", answer: ` ${asked} is ${answer}` };
}

// Pairs in one part of a chunk and, in the rest, pairs of it that are asked and answered, for a
// model whose tokens are bytes. A chunk after the other.
export function recallLines({ ctx, scoreFrom, chunks }, seed) {
    const below = random(seed), line = () => `${below(1000)}`.padStart(3, "0");
    return Array.from({ length: chunks }, () => {
        const first = below(KEYS), pairs = Array.from({ length: scoreFrom / 8 }, (_, i) => `${keyText((first + i * KEY_STRIDE) % KEYS)}=${line()}\n`);
        return pairs.join("") + Array.from({ length: (ctx - scoreFrom) / 8 }, () => pairs[1 + below(pairs.length - 1)]).join("");
    }).join("");
}

export function taskText(task, bytes, seed) {
    const below = random(seed);
    return { recall, passkey, instruction }[task](bytes, below);
}
