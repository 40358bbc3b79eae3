// features.mjs - asks a server for each row of docs/features.md, and the program and a server for
// each option and each path of llama.cpp that docs/from-llama-cpp.md names.
//
//   node features.mjs --quire PROGRAM --model FILE
//
// A row without a check, and a check without a row, fail.
//
// SPDX-License-Identifier: MIT
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { Server } from "../../scripts/serve/server.mjs";

const { values: args } = parseArgs({ options: { quire: { type: "string" }, model: { type: "string" } } });
const FLAGS = ["serve", "-m", args.model, "-t", "1", "--chat-template", "chatml", "--kv-budget", "32MiB"];
const KEYS = { admin: "admin-key-1", one: "key-of-one", two: "key-of-two" };
const MESSAGES = [{ role: "user", content: "Tell me a story about a little dog who lived in a house near the forest." }];
const TEMPLATE = `{% if tools %}<|im_start|>system
Tools: {{ tools | tojson }}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or "" }}{% for call in m.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`;
// Thoughts are open at the beginning of each answer.
const THINKING = TEMPLATE.replace("{{ m.content", "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content")
    .replace("<|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n");
const LONG = "Once upon a time there was a little dog who lived in a small house near the big forest. ".repeat(4);

async function call(s, method, path, body, key = KEYS.one) {
    const reply = await fetch(`http://127.0.0.1:${s.port}${path}`, { method, headers: { "content-type": "application/json", authorization: `Bearer ${key}` },
        body: body && JSON.stringify(body) });
    const text = await reply.text();
    return { status: reply.status, text, json: /^[[{]/.test(text) ? JSON.parse(text) : null };
}
async function good(s, method, path, body, key) {
    const reply = await call(s, method, path, body, key);
    assert.ok(reply.status >= 200 && reply.status < 300, `${method} ${path}: ${reply.status} ${reply.text.slice(0, 300)}`);
    return reply;
}
const chat = (s, fields, key) => good(s, "POST", "/v1/chat/completions", { messages: MESSAGES, max_tokens: 4, temperature: 0, ...fields }, key);
const text = (s, fields, key) => good(s, "POST", "/v1/completions", { prompt: LONG, max_tokens: 4, temperature: 0, ...fields }, key);
async function refused(s, path, body, status, key) {
    const reply = await call(s, "POST", path, body, key);
    assert.equal(reply.status, status, `${path}: ${reply.text.slice(0, 300)}`);
}
const refusedField = (s, fields) => refused(s, "/v1/chat/completions", { messages: MESSAGES, max_tokens: 2, ...fields }, 400);
// The result of `ask` on a server with this template.
async function withTemplate(folder, template, ask) {
    const file = join(folder, "template.jinja");
    writeFileSync(file, template);
    const other = await Server.start(args.quire, ["serve", "-m", args.model, "-t", "1", "--chat-template-file", file, "--kv-budget", "32MiB"]);
    try {
        return await ask(other);
    } finally {
        await other.stop();
    }
}
// Pull the model from a server of this test, which answers while the program runs; then a command
// takes its name.
async function pullModel(folder) {
    const bytes = readFileSync(args.model);
    const host = createServer((request, reply) => {
        reply.writeHead(200, { "content-length": bytes.length, etag: '"1"' });
        reply.end(request.method === "HEAD" ? undefined : bytes);
    });
    await new Promise((done) => host.listen(0, "127.0.0.1", done));
    const url = `http://127.0.0.1:${host.address().port}/small.gguf`;
    const env = { ...process.env, QUIRE_MODELS: join(folder, "models") };
    try {
        const pulled = spawn(args.quire, ["pull", url, "--sha256", createHash("sha256").update(bytes).digest("hex")], { env });
        let said = "";
        pulled.stderr.setEncoding("utf8").on("data", (part) => { said += part; });
        assert.equal(await new Promise((done) => pulled.on("close", done)), 0, said);
    } finally {
        host.close();
    }
    const { status, stderr } = spawnSync(args.quire, ["info", "-m", url], { encoding: "utf8", env });
    assert.equal(status, 0, stderr);
}
function run(...words) {
    const { status, stdout, stderr } = spawnSync(args.quire, words, { encoding: "utf8" });
    return { status, stdout, stderr };
}

const CHECKS = {
    "models as GGUF files": async (s) => assert.equal((await good(s, "GET", "/v1/models")).json.data.length, 1),
    "models fetched by name": async (s, folder) => {
        assert.match(run("list", "--known").stdout, /hf:/);
        await pullModel(folder);
    },
    "computes on GPUs": async () => {
        assert.match(run(...FLAGS, "-ngl", "99", "--check-config").stderr, /-ngl 99: layers of the model can be on a device only/);
        assert.equal(run("devices", "--json").status, 0);
        assert.match(run(...FLAGS, "--device", "vulkan999", "--check-config").stderr, /vulkan999/);
    },
    "images and audio": (s) => refusedField(s, { messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: "data:" } }] }] }),
    "`/v1/chat/completions`, streamed": async (s) => assert.match((await chat(s, { stream: true })).text, /data: \[DONE\]/),
    "`/v1/completions`": async (s) => assert.equal((await text(s)).json.choices.length, 1),
    "several answers to a prompt": async (s) => assert.equal((await chat(s, { n: 3 })).json.choices.length, 3),
    "log probabilities": async (s) => assert.ok((await chat(s, { logprobs: true, top_logprobs: 2 })).json.choices[0].logprobs.content[0].top_logprobs.length === 2),
    "log probabilities of the prompt": async (s) => {
        const { logprobs } = (await text(s, { echo: true, logprobs: 1, max_tokens: 0 })).json.choices[0];
        assert.ok(logprobs.token_logprobs[0] === null && logprobs.token_logprobs.slice(1).every((value) => value <= 0));
    },
    tools: async (s, folder) => {
        const parameters = { type: "object", properties: { a: { enum: [7] } }, required: ["a"], additionalProperties: false };
        const fields = { messages: MESSAGES, max_tokens: 300, temperature: 0, tools: [{ type: "function", function: { name: "f", parameters } }],
            tool_choice: "required", parallel_tool_calls: false };
        const { json } = await withTemplate(folder, TEMPLATE, (other) => good(other, "POST", "/v1/chat/completions", fields));
        assert.deepEqual(JSON.parse(json.choices[0].message.tool_calls[0].function.arguments), { a: 7 });
        // A template that knows no calls: nothing is demanded in vain.
        const reply = await withTemplate(folder, TEMPLATE.replace(/\{% for call.*?endfor %\}/s, ""), (other) => call(other, "POST", "/v1/chat/completions", fields));
        assert.ok(reply.status === 400 && /has no form for calls of tools/.test(reply.text), `${reply.status} ${reply.text.slice(0, 300)}`);
    },
    "`reasoning_content`": async (s, folder) => {
        const fields = { messages: MESSAGES, max_tokens: 24, temperature: 0, reasoning_budget: 4 };
        const { json } = await withTemplate(folder, THINKING, (other) => good(other, "POST", "/v1/chat/completions", fields));
        const { reasoning_content: thoughts, content } = json.choices[0].message;
        assert.ok(thoughts.length > 0 && content.length > 0 && !/think>/.test(content), JSON.stringify(json));
        assert.equal(json.usage.completion_tokens_details.reasoning_tokens, 4);
    },
    "JSON Schemas": async (s) => {
        const schema = { type: "object", properties: { a: { enum: [7] } }, required: ["a"], additionalProperties: false };
        const { json } = await chat(s, { max_tokens: 300, response_format: { type: "json_schema", json_schema: { name: "x", schema } } });
        assert.deepEqual(JSON.parse(json.choices[0].message.content), { a: 7 });
    },
    grammars: async (s) => assert.equal((await text(s, { max_tokens: 20, grammar: 'root ::= "yes"' })).json.choices[0].text, "yes"),
    "DRY, XTC, mirostat": async (s) => {
        const { generation_settings: settings } = (await good(s, "POST", "/completion", { prompt: "a", n_predict: 4, dry_multiplier: 0.8, xtc_probability: 0.5, mirostat: 2 })).json;
        assert.deepEqual([settings.dry_multiplier, settings.xtc_probability, settings.mirostat], [0.8, 0.5, 2]);
    },
    "`/v1/responses`": async (s) => assert.equal((await good(s, "POST", "/v1/responses", { input: "x", max_output_tokens: 4 })).json.object, "response"),
    "`/v1/messages`": async (s) => assert.equal((await good(s, "POST", "/v1/messages", { messages: MESSAGES, max_tokens: 4 })).json.type, "message"),
    "`/v1/embeddings`": async (s) => assert.ok((await good(s, "POST", "/v1/embeddings", { input: "x" })).json.data[0].embedding.length > 1),
    // The model of this test has no tokens for it.
    "`/infill`": async (s) => {
        const reply = await call(s, "POST", "/infill", { input_prefix: "a", input_suffix: "b" });
        assert.ok(reply.status === 501 && /fim_pre_token_id/.test(reply.text), `${reply.status} ${reply.text}`);
    },
    "`/tokenize`, `/detokenize`": async (s) => {
        const { tokens } = (await good(s, "POST", "/tokenize", { content: "a dog" })).json;
        assert.match((await good(s, "POST", "/detokenize", { tokens })).json.content, /a dog/);
    },
    "speculative decoding": async () => assert.match(run("serve", "-md", "x.gguf").stderr, /there is no speculative decoding/),
    "LoRA adapters": (s) => refusedField(s, { lora: [{ id: 0, scale: 1 }] }),
    "prefixes shared by all requests": async (s) => {
        const prompts = ["One.", "Two."].map((end) => `Of all: ${LONG} ${end}`);
        const [one, two] = await Promise.all(prompts.map(async (content) => (await good(s, "POST", "/tokenize", { content, add_special: true })).json.tokens));
        const shared = two.findIndex((token, i) => token !== one[i]);
        await text(s, { prompt: prompts[0] });
        const { usage } = (await text(s, { prompt: prompts[1] })).json;
        assert.ok(shared > 64 && usage.prompt_tokens_details.cached_tokens === shared, `${shared} are shared: ${JSON.stringify(usage)}`);
    },
    "`cached_tokens` in replies": async (s) => assert.ok(Number.isInteger((await chat(s)).json.usage.prompt_tokens_details.cached_tokens)),
    "the reason why no more was cached": async (s) => assert.match((await chat(s, { explain_cache: true })).json.quire.cache.end, /^[a-z]+$/),
    "sessions that keep a conversation": async (s) => {
        await chat(s, { session_id: "mine" });
        const { json } = await chat(s, { session_id: "mine", messages: [{ role: "user", content: "And then?" }] });
        assert.ok(json.quire.session_kept && json.usage.prompt_tokens_details.cached_tokens > 0, JSON.stringify(json));
    },
    "text pinned in the cache": async (s) => {
        assert.equal((await good(s, "POST", "/v1/cache/pins", { name: "a", text: LONG, ttl: "1h" })).json.state, "held");
        await good(s, "DELETE", "/v1/cache/pins/a");
    },
    "dropping a text from the cache": async (s) => {
        for (const what of [{ prefix: LONG, tenant: "one" }, { session: "dropped", tenant: "one" }, { tenant: "one" }]) {
            await text(s, { session_id: what.session });
            const { json } = await good(s, "POST", "/v1/cache/invalidate", what, KEYS.admin);
            assert.ok(json.dropped.pages > 0, `${JSON.stringify(what)}: ${JSON.stringify(json)}`);
        }
    },
    "tenants that share no text": async (s) => {
        await text(s, { prompt: `Of one. ${LONG}` });
        const { usage } = (await text(s, { prompt: `Of one. ${LONG}` }, KEYS.two)).json;
        assert.equal(usage.prompt_tokens_details.cached_tokens, 0);
        const other = (await text(s, { prompt: `Of one. ${LONG}`, cache_salt: "x" })).json.usage;
        assert.equal(other.prompt_tokens_details.cached_tokens, 0);
    },
    "classes of service": async (s) => assert.equal((await chat(s, { service_tier: "realtime" })).json.service_tier, "realtime"),
    "KV formats": async () => {
        for (const kv of ["f32", "bf16", "q8", "q3", "q5:q4"]) {
            assert.equal(run(...FLAGS, "--kv", kv, "--check-config").status, 0, kv);
        }
        assert.equal(run(...FLAGS, "--kv-layers", "0=q8;*=q4", "--check-config").status, 0);
    },
    "KV on disk that survives a restart": async (s, folder) => {
        const flags = [...FLAGS, "--kv", "f32", "--cache-dir", join(folder, "kv"), "--store-all"];
        let last = 0;
        // On a busy machine a server may compute so small a prompt before the disk answers.
        for (let i = 0; i < 2 || (i < 8 && last === 0); i++) {
            const other = await Server.start(args.quire, flags);
            last = (await text(other, {})).json.usage.prompt_tokens_details.cached_tokens;
            await other.stop();
        }
        assert.ok(last > 0, "a later server finds the pages that the first one stored");
    },
    "hit rates of other cache sizes": async (s) => assert.ok("sizes" in (await good(s, "GET", "/v1/cache/what-if", undefined, KEYS.admin)).json),
    "metrics for Prometheus": async (s) => assert.match((await good(s, "GET", "/metrics")).text, /^quire_[a-z_]+/m),
    "a page to talk on": async (s) => assert.match((await good(s, "GET", "/chat")).text, /<title>Quire chat<\/title>/),
    "a page that shows the cache": async (s) => assert.match((await good(s, "GET", "/")).text, /<title>Quire<\/title>/),
};

// The entries of the column "Quire" other than "yes". The check of the row proves them.
const CELLS = {
    "models fetched by name": "`quire pull`",
    "computes on GPUs": "KV, attention and layers by Vulkan and CUDA",
    "images and audio": "no",
    grammars: "GBNF",
    "speculative decoding": "no",
    "LoRA adapters": "no",
    "prefixes shared by all requests": "to the token",
    "dropping a text from the cache": "by text, tenant, session",
    "tenants that share no text": "by key and `cache_salt`",
    "KV formats": "f32 to q3, by layer",
};

// [first cell, cells of the rest] of each row of a page's tables.
const rows = (file) => readFileSync(file, "utf8").split("\n").filter((line) => /^\| /.test(line)).map((line) =>
    line.split(/(?<!\\)\|/).slice(1, -1).map((cell) => cell.trim()));

async function testFeatures() {
    const folder = mkdtempSync(join(tmpdir(), "quire-features-"));
    const file = join(folder, "quire.yaml");
    writeFileSync(file, `api_keys:\n  - key: ${KEYS.admin}\n    admin: true\n${["one", "two"].map((t) => `  - key: ${KEYS[t]}\n    tenant: ${t}\n`).join("")}`);
    const table = rows("docs/features.md").slice(1);
    const named = table.map((cells) => cells[0]);
    for (const [name, , , ours] of table) {
        assert.equal(ours, CELLS[name] ?? "yes", `docs/features.md: the column Quire of "${name}"`);
    }
    assert.deepEqual([...named].sort(), Object.keys(CHECKS).sort(), "each row has a check, and each check a row");
    const server = await Server.start(args.quire, [...FLAGS, "--kv", "f32", "--config", file]);
    try {
        for (const [name, check] of Object.entries(CHECKS)) {
            try {
                await check(server, folder);
            } catch (error) {
                throw new Error(`docs/features.md says something else than the server: ${name}: ${error.message}`);
            }
        }
    } finally {
        await server.stop();
        rmSync(folder, { recursive: true, force: true });
    }
    console.log(`ok - ${named.length} rows of docs/features.md`);
}

// Quire has each option of llama.cpp in the first column, or explains what to use instead.
function testOptions() {
    const page = "docs/from-llama-cpp.md";
    if (!existsSync(page)) {
        return;
    }
    const options = rows(page).flatMap((cells) => [...cells[0].matchAll(/`(-{1,2}[a-z][a-z-]*)/g)].map((m) => m[1]));
    assert.ok(options.length > 20, `${options.length} options`);
    for (const option of options) {
        const { stderr } = run("serve", option);
        assert.doesNotMatch(stderr, /lists them\)|did you mean/, `${option}: ${stderr}`);
    }
    console.log(`ok - ${options.length} options of ${page}`);
}

// Each path in the first column of "Endpoints". A path that Quire has answers, if only that a field
// is missing. For the other paths the error names the alternative.
async function testPaths() {
    const page = "docs/from-llama-cpp.md";
    const table = readFileSync(page, "utf8").split("## Endpoints")[1].split("\n## ")[0];
    const cells = table.split("\n").filter((line) => /^\| [`s]/.test(line)).map((line) => line.split("|").slice(1, -1).map((cell) => cell.trim()));
    const server = await Server.start(args.quire, FLAGS);
    let count = 0;
    try {
        for (const [theirs, ours] of cells) {
            for (const [, path] of theirs.matchAll(/`(\/[a-z0-9_/-]+)`/g)) {
                const replies = await Promise.all(["GET", "POST"].map((method) => call(server, method, path, method === "POST" ? {} : undefined)));
                const isHere = replies.some((reply) => ![404, 405].includes(reply.status));
                assert.equal(isHere, !/^nothing/.test(ours), `${page}: ${path}: ${replies.map((reply) => reply.status)}`);
                assert.ok(isHere || replies.every((reply) => /^no such path: \S+: ./.test(reply.json.error.message)), `${path}: ${replies[0].text}`);
                count++;
            }
        }
    } finally {
        await server.stop();
    }
    assert.ok(count > 15, `${count} paths`);
    console.log(`ok - ${count} paths of ${page}`);
}

testOptions();
await testPaths();
await testFeatures();
