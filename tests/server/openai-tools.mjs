// openai-tools.mjs - tools with the openai npm package: openai-tools.mjs PACKAGE_DIR URL
//
// Chat completions and responses, whole and in streams. The model is small and writes nonsense, so
// calls are demanded, and the grammar makes them calls. Prints a line per check, exits 1 when one
// fails.
//
// SPDX-License-Identifier: MIT
import assert from "node:assert/strict";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [, , packageDir, url] = process.argv;
const { default: OpenAI } = await import(pathToFileURL(join(packageDir, "index.mjs")).href);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "no key is needed", maxRetries: 0 });
const model = "the server has one";
const story = [{ role: "user", content: "Once upon a time, there was a little girl" }];
const parameters = { type: "object", properties: { happy: { type: "boolean" } }, required: ["happy"],
    additionalProperties: false };
const description = "Says how the girl feels";

const told = { model, messages: story, temperature: 0, max_tokens: 200, parallel_tool_calls: false,
    tools: [{ type: "function", function: { name: "mood", description, parameters } }] };
const only = { type: "function", function: { name: "mood" } };
const asked = { model, input: story, temperature: 0, max_output_tokens: 200, parallel_tool_calls: false,
    tools: [{ type: "function", name: "mood", description, parameters, strict: true }], tool_choice: "required" };

function checkArguments(text) {
    assert.deepEqual(Object.keys(JSON.parse(text)), ["happy"]);
    assert.equal(typeof JSON.parse(text).happy, "boolean");
}

const checks = {
    async "a demanded call obeys its schema, and its result goes on"() {
        for (const tool_choice of ["required", only]) {
            const answer = await client.chat.completions.create({ ...told, tool_choice });
            const { message, finish_reason: reason } = answer.choices[0];
            assert.equal(reason, "tool_calls");
            assert.equal(message.tool_calls.length, 1);
            assert.equal(message.tool_calls[0].function.name, "mood");
            checkArguments(message.tool_calls[0].function.arguments);
            const next = await client.chat.completions.create({ ...told, max_tokens: 4, messages: [...story, message,
                { role: "tool", tool_call_id: message.tool_calls[0].id, content: "noted" }] });
            assert.ok(next.usage.prompt_tokens_details.cached_tokens > answer.usage.prompt_tokens,
                "the prompt and the call are cached");
        }
    },

    async "tool_choice none calls nothing"() {
        const answer = await client.chat.completions.create({ ...told, max_tokens: 16, tool_choice: "none" });
        assert.equal(answer.choices[0].message.tool_calls, undefined);
        assert.notEqual(answer.choices[0].finish_reason, "tool_calls");
    },

    async "a call in a stream comes in deltas"() {
        const whole = await client.chat.completions.create({ ...told, tool_choice: only });
        const stream = await client.chat.completions.create({ ...told, tool_choice: only, stream: true });
        const calls = [];
        let reason;
        let deltas = 0;
        for await (const { choices: [choice] } of stream) {
            for (const { index, id, function: part } of choice.delta.tool_calls ?? []) {
                calls[index] ??= { id, name: part.name, text: "" };
                calls[index].text += part.arguments ?? "";
                deltas++;
            }
            reason = choice.finish_reason ?? reason;
        }
        assert.equal(reason, "tool_calls");
        assert.equal(calls.length, 1);
        assert.equal(calls[0].name, "mood");
        assert.ok(calls[0].id && deltas > 1);
        checkArguments(calls[0].text);
        assert.equal(calls[0].text, whole.choices[0].message.tool_calls[0].function.arguments);
    },

    async "the package's stream helper assembles the same call"() {
        const answer = await client.chat.completions.stream({ ...told, tool_choice: only }).finalChatCompletion();
        checkArguments(answer.choices[0].message.tool_calls[0].function.arguments);
    },

    async "a response has a call, and goes on with its output"() {
        const first = await client.responses.create(asked);
        const call = first.output.find((item) => item.type === "function_call");
        assert.equal(call.name, "mood");
        checkArguments(call.arguments);
        const output = [{ type: "function_call_output", call_id: call.call_id, output: "noted" }];
        const next = await client.responses.create({ ...asked, max_output_tokens: 4, tool_choice: "auto", input: output,
            previous_response_id: first.id });
        assert.ok(next.usage.input_tokens_details.cached_tokens > first.usage.input_tokens);
    },

    async "a response's call in a stream"() {
        let text = "";
        let done;
        for await (const event of await client.responses.create({ ...asked, stream: true })) {
            text += event.type === "response.function_call_arguments.delta" ? event.delta : "";
            done = event.type === "response.function_call_arguments.done" ? event.arguments : done;
        }
        assert.equal(text, done);
        checkArguments(text);
    },

    async "a tool of OpenAI's servers is refused by name"() {
        await assert.rejects(client.responses.create({ ...asked, tools: [{ type: "web_search" }] }), (error) =>
            error instanceof OpenAI.BadRequestError && /web_search/.test(error.message));
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
