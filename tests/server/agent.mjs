// agent.mjs - a coding agent's loop, replayed from a transcript: agent.mjs TRANSCRIPT URL
//
// Each turn sends the whole conversation to /v1/messages, as coding agents do: system prompt,
// tools, all calls and results, a breakpoint at the end that moves along. The answers of the
// transcript, not the model's, make up the next turn, so that each run sends the same. Every turn
// after the first must read the cache of the turns before it: only new tokens are computed. Prints
// the ratio of computed to new tokens, exits 1 when it is above the limit.
//
// SPDX-License-Identifier: MIT
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

const [, , path, url] = process.argv;
const COMPUTED_TO_NEW_MAX = 1.05; // the last token of a prompt is always computed
const { system, tools, turns } = JSON.parse(readFileSync(path, "utf8"));

async function send(messages) {
    const last = messages.at(-1);
    const blocks = typeof last.content === "string" ? [{ type: "text", text: last.content }] : [...last.content];
    blocks[blocks.length - 1] = { ...blocks.at(-1), cache_control: { type: "ephemeral" } };
    const reply = await fetch(`${url}/v1/messages`, { method: "POST", body: JSON.stringify({ model: "any", max_tokens: 1,
        system: [{ type: "text", text: system, cache_control: { type: "ephemeral" } }], tools,
        messages: [...messages.slice(0, -1), { ...last, content: blocks }] }) });
    const body = await reply.json();
    assert.equal(reply.status, 200, JSON.stringify(body));
    return body.usage;
}

const messages = [];
let computed = 0;
let fresh = 0;
let before = 0;
for (const [number, turn] of turns.entries()) {
    messages.push(...turn.messages);
    const usage = await send(messages);
    const prompt = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens;
    if (number > 0) {
        computed += prompt - usage.cache_read_input_tokens;
        fresh += prompt - before;
    }
    before = prompt;
    messages.push(turn.answer);
}
const pins = await (await fetch(`${url}/v1/cache/pins`)).json();
assert.equal(pins.total, 1, "the conversation has one pin that grows");
const ratio = computed / fresh;
process.stdout.write(`${turns.length} turns, ${before} tokens at the end; computed : new = ${computed} : ${fresh} = ${ratio.toFixed(3)}\n`);
process.exit(ratio <= COMPUTED_TO_NEW_MAX ? 0 : 1);
