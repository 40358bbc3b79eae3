// texts.mjs - inputs of the clients: texts of a given number of tokens, questions, prompts,
// arrivals. Equal in every run.
//
// SPDX-License-Identifier: MIT
import { readFileSync } from "node:fs";
import { asset } from "../compare/tools.mjs";

// A generator of numbers in [0, 1): splitmix32's steps, so that a seed gives the same load
// everywhere.
export function randomFrom(seed) {
    let state = seed >>> 0;
    return () => {
        state = (state + 0x9e3779b9) >>> 0;
        let mixed = Math.imul(state ^ (state >>> 16), 0x21f0aaad);
        mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97);
        return ((mixed ^ (mixed >>> 15)) >>> 0) / 2 ** 32;
    };
}

// The times in milliseconds at which n requests arrive, with exponential gaps and `rate` requests a
// second: a Poisson stream.
export function arrivals(n, rate, seed) {
    const random = randomFrom(seed);
    let at = 0;
    return Array.from({ length: n }, () => {
        at += (-Math.log(1 - random()) / rate) * 1000;
        return at;
    });
}

export async function tokenize(client, text) {
    const { status, body } = await client.json("POST", "/tokenize", { content: text });
    if (status !== 200) {
        throw new Error(`/tokenize: status ${status} ${JSON.stringify(body)}`);
    }
    return body.tokens;
}

// The longest run of whole words from the start of `text` that makes at most n tokens.
export async function cut(client, text, n) {
    const ends = [...text.matchAll(/\s+/g)].map((match) => match.index);
    let low = 0;
    for (let high = ends.length; high - low > 1;) {
        const middle = Math.floor((low + high) / 2);
        const fits = (await tokenize(client, text.slice(0, ends[middle]))).length <= n;
        [low, high] = fits ? [middle, high] : [low, middle];
    }
    return text.slice(0, ends[low]);
}

// Tokens of all prompts when each beginning they share is counted once: the nodes of their tree.
export function distinctTokens(prompts) {
    const root = new Map();
    let n = 0;
    for (const tokens of prompts) {
        let node = root;
        for (const token of tokens) {
            if (!node.has(token)) {
                node.set(token, new Map());
                n++;
            }
            node = node.get(token);
        }
    }
    return n;
}

const DATA = { book: "moby-dick.txt", turns: "mt-bench-questions.jsonl", prompts: "sharegpt-prompts.json" };

export function dataPaths(at) {
    return Object.values(DATA).map((name) => asset(at, name));
}

// The raw material: a book, users' turns, and single prompts with the lengths of their answers.
export function readData(at) {
    const read = (name) => readFileSync(asset(at, name), "utf8");
    const book = read(DATA.book);
    return {
        book: book.slice(book.indexOf("CHAPTER 1. Loomings.", book.indexOf("CHAPTER 1. Loomings.") + 1)).replace(/\s+/g, " "),
        turns: read(DATA.turns).trim().split("\n").flatMap((line) => JSON.parse(line).turns),
        prompts: JSON.parse(read(DATA.prompts)),
    };
}

export const questions = [
    "Who tells the story?", "Why does he go to sea?", "Which inn does he stay at?", "With whom does he share a bed?",
    "What hangs in the entry of the inn?", "How is the weather that night?", "What does the landlord sell?",
    "Which town does he reach first?", "What is said about the river?", "How does the harpooneer shave?",
    "What is on the chapel's walls?", "Who preaches?", "How does the preacher climb up?", "What is the sermon about?",
    "What does water mean to him?", "Why not go as a passenger?", "Why not go as a cook?", "What does he say of orders?",
    "What does he pay for?", "Which bill does he imagine?", "How much money has he got?", "What is the bar made of?",
    "What do the sailors drink?", "Who is the tall sailor?", "What is the head for sale?", "What does he eat at breakfast?",
    "What is said of New Bedford's streets?", "Who are the bumpkins?", "What is said of the women?", "How does it end?",
];
