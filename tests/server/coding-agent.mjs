// coding-agent.mjs - a coding agent that people install, Qwen Code, reads a file, by
// /v1/chat/completions and by /v1/messages: coding-agent.mjs PACKAGE URL
//
// The agent runs as published, with a folder of this test as its home. The small model of the tests
// calls nothing by itself, so a forwarder between both demands a call of `read_file` with the one
// path there is (in each request the same tools, so that the prompt begins alike), and keeps the
// answer after it short. Of the tools' descriptions it leaves the first line, for a prompt that a
// debug build computes soon. All else is the agent's own: its tools, its streams, and the loop. The
// agent must run the call, send the file back and end with the answer; of its second request the
// server must find the first one in the cache. Names are not looked up, so nothing leaves this
// machine.
//
// SPDX-License-Identifier: MIT
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buffer, text } from "node:stream/consumers";

const [, , agent, url] = process.argv;
const TEXT = "# Add\n\nA small program.\n";
const NEW_MAX = 200; // tokens of a call, its result and the text between them
const NO_NAMES = 'import dns from "node:dns"; import { isIP } from "node:net"; const lookup = dns.lookup; ' +
    "dns.lookup = (name, options, done) => isIP(name) ? lookup(name, options, done) : " +
    '(done ?? options)(Object.assign(new Error("no names"), { code: "ENOTFOUND" }));';

const folder = mkdtempSync(join(tmpdir(), "quire-agent-"));
const home = join(folder, "home");
const work = join(folder, "work");
const path = join(work, "README.md");
const ONE_PATH = { type: "object", properties: { file_path: { enum: [path] } }, required: ["file_path"], additionalProperties: false };
let seen = []; // the agent's requests

function shorten(tool) {
    tool.description = tool.description.split("\n")[0];
}

// An API: how the agent is told of it, and its request with a call demanded unless a result has
// come.
const APIS = {
    openai: {
        path: "/v1/chat/completions",
        env: (root) => ({ OPENAI_API_KEY: "none", OPENAI_BASE_URL: `${root}/v1`, OPENAI_MODEL: "stories" }),
        hasResult: (request) => request.messages.at(-1).role === "tool",
        demanding: (request) => {
            request.tools.forEach((t) => shorten(t.function));
            request.tools.find((t) => t.function.name === "read_file").function.parameters = ONE_PATH;
            return { tool_choice: { type: "function", function: { name: "read_file" } }, parallel_tool_calls: false };
        },
    },
    anthropic: {
        path: "/v1/messages",
        env: (root) => ({ ANTHROPIC_API_KEY: "none", ANTHROPIC_BASE_URL: root, ANTHROPIC_MODEL: "stories" }),
        hasResult: (request) => request.messages.at(-1).content.some((block) => block.type === "tool_result"),
        demanding: (request) => {
            request.tools.forEach(shorten);
            request.tools.find((t) => t.name === "read_file").input_schema = ONE_PATH;
            return { tool_choice: { type: "tool", name: "read_file", disable_parallel_tool_use: true } };
        },
    },
};

function demanding(api, request) {
    const choice = api.demanding(request);
    return api.hasResult(request) ? { ...request, max_tokens: 12 } : { ...request, max_tokens: 400, ...choice };
}

const forwarder = createServer(async (request, reply) => {
    try {
        const body = await text(request);
        const api = Object.values(APIS).find((a) => request.url.startsWith(a.path));
        seen.push([request.url.split("?")[0], JSON.parse(body).stream, api.hasResult(JSON.parse(body))]);
        const answer = await fetch(url + request.url, { method: "POST", body: JSON.stringify(demanding(api, JSON.parse(body))) });
        reply.writeHead(answer.status, { "content-type": answer.headers.get("content-type") });
        reply.end(await answer.text());
    } catch (error) {
        reply.writeHead(500).end(`${error.stack}`);
    }
});

async function runAgent(name) {
    const program = spawn(process.execPath, [`--import=data:text/javascript,${encodeURIComponent(NO_NAMES)}`, join(agent, "cli.js"), "--bare", "--yolo",
        "--auth-type", name, "--max-session-turns", "4", "--system-prompt", "You are a coding agent. Use tools.", "-o", "json", "-p", "Read README.md."],
    { cwd: work, stdio: ["ignore", "pipe", "pipe"], env: { PATH: process.env.PATH, HOME: home, QWEN_CODE_NO_RELAUNCH: "1", QWEN_CODE_MAX_OUTPUT_TOKENS: "12",
        ...APIS[name].env(`http://127.0.0.1:${forwarder.address().port}`) } });
    const [said, errors, status] = await Promise.all([text(program.stdout), buffer(program.stderr), new Promise((done) => program.on("close", done))]);
    assert.equal(status, 0, `the agent: exit ${status}: ${said} ${errors}; ${seen.length} requests`);
    return JSON.parse(said);
}

async function readsFile(name) {
    seen = [];
    const events = await runAgent(name);
    const result = events.flatMap((e) => e.type === "user" ? e.message.content : []).find((part) => part.type === "tool_result");
    assert.deepEqual([result?.is_error, result?.content], [false, TEXT], `the agent has read the file that the model named: ${JSON.stringify(events)}`);
    const end = events.at(-1);
    assert.ok(end.subtype === "success" && !/API Error/.test(end.result), JSON.stringify(end));
    const [first, second] = events.filter((e) => e.type === "assistant").map((e) => e.message.usage);
    const computed = second.input_tokens - second.cache_read_input_tokens;
    assert.ok(second.cache_read_input_tokens >= first.input_tokens && computed <= NEW_MAX, JSON.stringify([first, second]));
    assert.deepEqual(seen, [[APIS[name].path, true, false], [APIS[name].path, true, true]]);
    process.stdout.write(`Qwen Code read a file by ${APIS[name].path}; of ${second.input_tokens} tokens its second request computed ${computed}\n`);
}

mkdirSync(home);
mkdirSync(work);
writeFileSync(path, TEXT);
await new Promise((done) => forwarder.listen(0, "127.0.0.1", done));
try {
    for (const name of Object.keys(APIS)) {
        await readsFile(name);
    }
} finally {
    forwarder.close();
    rmSync(folder, { recursive: true, force: true });
}
