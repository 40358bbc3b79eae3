// anthropic.mjs - the @anthropic-ai/sdk npm package against a running server: anthropic.mjs
// PACKAGE_DIR URL [KEY]
//
// With a key the server demands one; the calls are the same. The model is small and writes
// nonsense, so calls of tools are demanded, and the grammar makes them calls. Prints a line per
// check, exits 1 when one fails.
//
// SPDX-License-Identifier: MIT
import assert from "node:assert/strict";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [, , packageDir, url, key] = process.argv;
const { default: Anthropic } = await import(pathToFileURL(join(packageDir, "index.mjs")).href);
const connect = (apiKey) => new Anthropic({ baseURL: url, apiKey, maxRetries: 0 });
const client = connect(key ?? "no key is needed");
const MODEL = "the server has one";
const STORY = [{ role: "user", content: "Once upon a time, there was a little girl" }];
const told = { model: MODEL, max_tokens: 16, temperature: 0, system: "You tell stories.", messages: STORY };
const tools = [{ name: "mood", description: "Says how the girl feels",
    input_schema: { type: "object", properties: { happy: { type: "boolean" } }, required: ["happy"],
        additionalProperties: false } }];

const checks = {
    async "a message has text, usage and a reason"() {
        const message = await client.messages.create(told);
        assert.equal(message.type, "message");
        assert.equal(message.role, "assistant");
        assert.ok(["max_tokens", "end_turn"].includes(message.stop_reason));
        const { input_tokens: fresh, cache_read_input_tokens: read, output_tokens: out } = message.usage;
        assert.ok(fresh + read > 8 && out > 0);
    },

    async "the same prompt is read from the cache but for its last token"() {
        const { usage } = await client.messages.create(told);
        assert.equal(usage.input_tokens, 1);
        assert.ok(usage.cache_read_input_tokens > 8);
    },

    async "tokens are counted"() {
        const counted = await client.messages.countTokens({ model: MODEL, system: told.system, messages: STORY });
        const { usage } = await client.messages.create(told);
        assert.equal(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
    },

    async "the stream helper assembles the same message"() {
        const whole = await client.messages.create(told);
        const stream = client.messages.stream(told);
        let text = "";
        stream.on("text", (piece) => {
            text += piece;
        });
        const message = await stream.finalMessage();
        assert.deepEqual(message.content, whole.content);
        assert.equal(message.stop_reason, whole.stop_reason);
        assert.equal(message.usage.output_tokens, whole.usage.output_tokens);
        assert.equal(text, whole.content.find((block) => block.type === "text")?.text ?? "");
    },

    async "a demanded call obeys its schema, and its result goes on"() {
        const only = { type: "tool", name: "mood", disable_parallel_tool_use: true };
        const ask = { ...told, max_tokens: 200, tools, tool_choice: only };
        const message = await client.messages.create(ask);
        const call = message.content.find((block) => block.type === "tool_use");
        assert.equal(call.name, "mood");
        assert.equal(typeof call.input.happy, "boolean");
        const next = await client.messages.create({ ...told, tools, messages: [...STORY,
            { role: "assistant", content: message.content },
            { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "noted" }] }] });
        assert.ok(next.usage.cache_read_input_tokens > 8);
    },

    async "a call in a stream"() {
        const stream = client.messages.stream({ ...told, max_tokens: 200, tools, tool_choice: { type: "any" } });
        const kinds = [];
        stream.on("streamEvent", (event) => kinds.push(event.type));
        const message = await stream.finalMessage();
        const call = message.content.find((block) => block.type === "tool_use");
        assert.equal(typeof call.input.happy, "boolean");
        assert.equal(kinds[0], "message_start");
        assert.equal(kinds.at(-1), "message_stop");
    },

    async "a breakpoint is written once, and read after that"() {
        const system = [{ type: "text", text: "You tell stories. ".repeat(12), cache_control: { type: "ephemeral" } }];
        const first = await client.messages.create({ ...told, system });
        assert.ok(first.usage.cache_creation_input_tokens > 20, JSON.stringify(first.usage));
        const other = [{ role: "user", content: "And another one" }];
        const second = await client.messages.create({ ...told, system, messages: other });
        assert.equal(second.usage.cache_creation_input_tokens, 0);
        assert.ok(second.usage.cache_read_input_tokens >=
            first.usage.cache_creation_input_tokens, JSON.stringify(second.usage));
    },

    async "a wrong request is a BadRequestError in Anthropic's form"() {
        await assert.rejects(client.messages.create({ ...told, max_tokens: 0 }), (error) => {
            assert.ok(error instanceof Anthropic.BadRequestError);
            assert.equal(error.error.type, "error");
            assert.equal(error.error.error.type, "invalid_request_error");
            assert.match(error.message, /max_tokens/);
            return true;
        });
    },

    async "an aborted stream frees what it held"() {
        const stream = client.messages.stream({ ...told, max_tokens: 400 });
        await new Promise((resolve) => stream.once("text", resolve));
        stream.abort();
        await assert.rejects(stream.finalMessage());
        for (;;) { // until the server has noticed; the test's own time limit ends this
            const metrics = await (await fetch(`${url}/metrics`, { headers: { "x-api-key": key ?? "" } })).text();
            if (/^quire_num_requests_running 0$/m.test(metrics)) {
                break;
            }
        }
    },

    async "without the right key: AuthenticationError"() {
        const stranger = connect("not a key").messages.create(told);
        if (key) {
            await assert.rejects(stranger, (error) => error instanceof Anthropic.AuthenticationError);
        } else {
            await stranger;
        }
    },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
    try {
        await check();
        process.stdout.write(`ok      ${name}\n`);
    } catch (error) {
        failed++;
        process.stdout.write(`FAILED  ${name}: ${error.message}\n`);
    }
}
process.exit(failed === 0 ? 0 : 1);
