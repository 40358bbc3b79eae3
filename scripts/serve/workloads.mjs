// workloads.mjs - the three loads of `make compare-serve`, each the same for every server.
//
//   conversations  8 at once, 5 turns each, over one system prompt of 1,000 tokens; a turn follows
//                  the answer at once, and the history sent back holds the server's answers
//   arrivals       single prompts of 50 to 600 words, 3 a second on average, whether the server
//                  keeps up or not
//   document       30 questions on one document of 8,000 tokens, 4 at a time
//
// Answers have a given length (ignore_eos), so that all servers do the same work.
//
// SPDX-License-Identifier: MIT
import { Client } from "./client.mjs";
import { arrivals, cut, distinctTokens, questions, tokenize } from "./texts.mjs";

const CHAT = "/v1/chat/completions";
const COMPLETIONS = "/v1/completions";
export const GREEDY = { temperature: 0, ignore_eos: true };

export const SIZES = {
    conversations: { clients: 8, turns: 5, systemTokens: 1000, answerTokens: 64 },
    arrivals: { prompts: 40, perSecond: 3, wordsMin: 50, wordsMax: 600, answerTokensMax: 64, seed: 1 },
    document: { questions: 30, clients: 4, documentTokens: 8000, answerTokens: 64 },
};
// The chat of models with billions of weights: as many clients, less to compute.
export const FAMILY_CHAT = { clients: 8, turns: 3, systemTokens: 1000, answerTokens: 32 };
// Short enough to try the scripts out; the figures say nothing.
export const QUICK_SIZES = {
    conversations: { clients: 3, turns: 2, systemTokens: 200, answerTokens: 8 },
    arrivals: { prompts: 6, perSecond: 3, wordsMin: 50, wordsMax: 600, answerTokensMax: 8, seed: 1 },
    document: { questions: 6, clients: 2, documentTokens: 500, answerTokens: 8 },
};

// The texts of all loads, cut to size by a server's tokenizer. Servers of one model cut alike.
export async function prepare(client, data, sizes) {
    const { conversations: a, arrivals: b, document: c } = sizes;
    const words = (entry) => entry.input.split(/\s+/).length;
    const document = await cut(client, data.book, c.documentTokens);
    const asked = questions.slice(0, c.questions).map((question) => `${document}\n\nQuestion: ${question}\nAnswer:`);
    const tokens = [];
    for (const prompt of asked) {
        tokens.push(await tokenize(client, prompt));
    }
    return {
        sizes,
        system: await cut(client, data.book.slice(data.book.length / 2), a.systemTokens),
        turns: data.turns,
        prompts: data.prompts.filter((entry) => words(entry) >= b.wordsMin && words(entry) <= b.wordsMax).slice(0, b.prompts),
        asked,
        askedTokens: distinctTokens(tokens),
    };
}

export async function conversations(port, texts, extra) {
    const { clients, turns, answerTokens } = texts.sizes.conversations;
    const talk = async (who) => {
        const client = new Client(port);
        const messages = [{ role: "system", content: texts.system }];
        const replies = [];
        for (let turn = 0; turn < turns; turn++) {
            messages.push({ role: "user", content: texts.turns[who * turns + turn] });
            const session = extra?.hasSessions ? { session_id: `conversation-${who}` } : {};
            const reply = await client.stream(CHAT, { ...GREEDY, ...session, messages, max_tokens: answerTokens });
            replies.push({ ...reply, wanted: answerTokens });
            messages.push({ role: "assistant", content: reply.text });
        }
        client.close();
        return replies;
    };
    return (await Promise.all(Array.from({ length: clients }, (_, who) => talk(who)))).flat();
}

export async function poisson(port, texts) {
    const { perSecond, answerTokensMax, seed } = texts.sizes.arrivals;
    const client = new Client(port);
    const times = arrivals(texts.prompts.length, perSecond, seed);
    const ask = async (entry, i) => {
        await new Promise((done) => setTimeout(done, times[i]));
        const wanted = Math.min(entry.output_length, answerTokensMax);
        const messages = [{ role: "user", content: entry.input }];
        return { ...await client.stream(CHAT, { ...GREEDY, messages, max_tokens: wanted }), wanted };
    };
    const replies = await Promise.all(texts.prompts.map(ask));
    client.close();
    return replies;
}

export async function document(port, texts) {
    const { clients, answerTokens } = texts.sizes.document;
    const waiting = [...texts.asked];
    const work = async () => {
        const client = new Client(port);
        const replies = [];
        for (let prompt = waiting.shift(); prompt !== undefined; prompt = waiting.shift()) {
            replies.push({ ...await client.stream(COMPLETIONS, { ...GREEDY, prompt, max_tokens: answerTokens }), wanted: answerTokens });
        }
        client.close();
        return replies;
    };
    return (await Promise.all(Array.from({ length: clients }, work))).flat();
}

// The least number of tokens of `document`: the document and every question once, and the answers.
export function documentMinimum(texts) {
    return texts.askedTokens + texts.asked.length * texts.sizes.document.answerTokens;
}
