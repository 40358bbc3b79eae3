// returning.mjs - conversations that come back after a restart, on quire and on llama-server,
// through /v1/chat/completions.
//
// Several conversations take turns on one server, over a context (llama-server: a slot) for one of
// them. Each has a text of its own as system prompt. The history of a turn holds the server's own
// answers. Then the server ends, a new one starts, and each conversation has its next turn.
//
// SPDX-License-Identifier: MIT
import { mkdtempSync, readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { runJson } from "../compare/tools.mjs";
import { Server } from "../serve/server.mjs";
import { cut, questions } from "../serve/texts.mjs";
import { GREEDY } from "../serve/workloads.mjs";
import { diskArgs, sleep } from "./setting.mjs";

const CHAT = "/v1/chat/completions";
const THINK_MS = 2000; // from the last answer to the end of the server

export const SIZES = { conversations: 3, turns: 3, systemTokens: 2000, answerTokens: 64, context: 4096 };
export const QUICK_SIZES = { conversations: 2, turns: 2, systemTokens: 300, answerTokens: 8, context: 1024 };

// The system prompts, cut by a server's tokenizer.
export async function systems(client, root, sizes) {
    const fables = readFileSync(join(root, "tests", "data", "fables.txt"), "utf8");
    const step = Math.floor(fables.length / (sizes.conversations + 1));
    const list = [];
    for (let i = 0; i < sizes.conversations; i++) {
        list.push(await cut(client, fables.slice(i * step), sizes.systemTokens));
    }
    return list;
}

const say = (talk, turn, who) => [...talk, { role: "user", content: questions[(turn * 7 + who) % questions.length] }];

async function chat(server, messages, sizes) {
    const reply = await server.client.stream(CHAT, { ...GREEDY, messages, max_tokens: sizes.answerTokens });
    if (reply.error) {
        throw new Error(reply.error);
    }
    return reply;
}

const figuresOf = (reply, restoreMs) => ({ ms: restoreMs + reply.firstMs, restoreMs, cached: reply.timings.cache_n,
    tokens: reply.usage.prompt_tokens });

async function slot(server, action, filename) {
    const begin = performance.now();
    const { status, body } = await server.client.json("POST", `/slots/0?action=${action}`, { filename });
    if (status !== 200) {
        throw new Error(`slots/0?action=${action}: status ${status} ${JSON.stringify(body)}`);
    }
    return performance.now() - begin;
}

// All turns but the last: { talks, later: figures of turns after the first, saves: ms of each save
// }.
async function converse(server, c, side) {
    const talks = c.systems.map((content) => [{ role: "system", content }]);
    const later = [], saves = [];
    for (let turn = 0; turn < c.sizes.turns; turn++) {
        for (let who = 0; who < talks.length; who++) {
            const messages = say(talks[who], turn, who);
            const reply = await chat(server, messages, c.sizes);
            if (turn > 0) {
                later.push(figuresOf(reply, 0));
            }
            talks[who] = [...messages, { role: "assistant", content: reply.text }];
            if (side.isPeer) {
                saves.push(await slot(server, "save", `slot-${who}.bin`));
            }
        }
    }
    return { talks, later, saves };
}

// The last turn of each conversation: TTFT, a restore before it included, and the tokens that were
// not computed.
async function lastTurn(server, c, talks, isRestored) {
    const replies = [];
    for (let who = 0; who < talks.length; who++) {
        const restoreMs = isRestored ? await slot(server, "restore", `slot-${who}.bin`) : 0;
        const reply = await chat(server, say(talks[who], c.sizes.turns, who), c.sizes);
        replies.push(figuresOf(reply, restoreMs));
    }
    return replies;
}

// Bytes of KV on disk: of a directory's records, of slot files.
function storedBytes(side, dir) {
    return side.isPeer ? readdirSync(dir).map((name) => statSync(join(dir, name)).size).reduce((a, b) => a + b, 0)
        : runJson(side.program, ["cache", "stats", dir, "--json"]).record_bytes;
}

async function kill(server) {
    server.client.close();
    server.child.kill("SIGKILL");
    await server.ended;
}

export function quireSide(c, kv) {
    return { name: `quire --kv ${kv}`, program: c.quire, args: (dir) => ["serve", "-m", c.model, "-t", c.threads, "-c", `${c.sizes.context}`,
        "--kv", kv, "--chat-template", "chatml", ...(dir ? diskArgs(dir) : [])] };
}

export function peerSide(c, kv) {
    return { name: `llama-server, ${kv} KV`, isPeer: true, program: join(c.peer, "llama-server"), args: (dir) => ["-m", c.model, "-t", c.threads,
        "-c", `${c.sizes.context}`, "-np", "1", "--chat-template", "chatml", "--no-ui", "-fa", "on", "-ctk", kv, "-ctv", kv,
        "--cache-ram", "8192", ...(dir ? ["--slot-save-path", `${dir}/`] : [])] };
}

// One round of one side: in memory, cold, after SIGTERM, after SIGKILL; of the peer also with slots
// restored.
export async function returning(c, side) {
    const figures = {};
    const dir = mkdtempSync(join(c.folder, "returning-"));
    const start = (where) => Server.start(side.program, side.args(where));
    for (const end of ["term", "kill"]) {
        const where = mkdtempSync(join(dir, `${end}-`));
        let server = await start(where);
        const { talks, later, saves } = await converse(server, c, side);
        (figures.memory ??= []).push(...later);
        (figures.saves ??= []).push(...saves);
        await sleep(THINK_MS);
        await (end === "term" ? server.stop() : kill(server));
        figures.bytes = storedBytes(side, where);
        server = await start(where);
        figures[end] = await lastTurn(server, c, talks, false);
        await server.stop();
        if (side.isPeer && end === "kill") {
            server = await start(where);
            figures.restored = await lastTurn(server, c, talks, true);
            await server.stop();
        }
        if (end === "term") {
            server = await start(undefined);
            figures.cold = await lastTurn(server, c, talks, false);
            await server.stop();
        }
    }
    return figures;
}
