// openai.mjs - the openai npm package against a running server: openai.mjs PACKAGE_DIR URL [KEY]
//
// With a key the server demands one; the calls are the same. Prints a line per check, exits 1 when
// one fails.
//
// SPDX-License-Identifier: MIT
import assert from "node:assert/strict";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [, , packageDir, url, key] = process.argv;
const { default: OpenAI } = await import(pathToFileURL(join(packageDir, "index.mjs")).href);
const connect = (apiKey) => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0 });
const client = connect(key ?? "no key is needed");
const MODEL = "the server has one";
const STORY = [{ role: "system", content: "You tell stories." },
    { role: "user", content: "Once upon a time, there was a little girl" }];
const told = { model: MODEL, messages: STORY, temperature: 0, max_tokens: 24, ignore_eos: true };

const checks = {
    async "models.list names the one model"() {
        const models = await client.models.list();
        assert.equal(models.data.length, 1);
        const again = await client.models.retrieve(models.data[0].id);
        assert.equal(again.id, models.data[0].id);
    },

    async "a chat answer has text, usage and a reason"() {
        const answer = await client.chat.completions.create(told);
        assert.equal(answer.object, "chat.completion");
        assert.equal(answer.choices[0].message.role, "assistant");
        assert.notEqual(answer.choices[0].message.content, "");
        assert.equal(answer.choices[0].finish_reason, "length");
        assert.equal(answer.usage.completion_tokens, 24);
        assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + 24);
    },

    async "the same prompt is cached but for its last token"() {
        const answer = await client.chat.completions.create(told);
        const { prompt_tokens: prompt, prompt_tokens_details: details } = answer.usage;
        assert.equal(details.cached_tokens, prompt - 1);
    },

    async "a stream says what the whole answer says"() {
        const whole = await client.chat.completions.create(told);
        const stream = await client.chat.completions.create({ ...told, stream: true, stream_options: { include_usage: true } });
        let text = "";
        let reason;
        let usage;
        for await (const chunk of stream) {
            assert.equal(chunk.object, "chat.completion.chunk");
            text += chunk.choices[0]?.delta.content ?? "";
            reason = chunk.choices[0]?.finish_reason ?? reason;
            usage = chunk.usage ?? usage;
        }
        assert.equal(text, whole.choices[0].message.content);
        assert.equal(reason, "length");
        assert.equal(usage.completion_tokens, 24);
    },

    async "the stream helper of the package assembles an answer"() {
        const runner = client.chat.completions.stream(told);
        const last = await runner.finalChatCompletion();
        assert.equal(last.choices[0].finish_reason, "length");
    },

    async "completions: n answers, a seed repeats them, a stop text ends them"() {
        const asked = { model: MODEL, prompt: "Once upon a time", max_tokens: 12, n: 2, seed: 7, temperature: 1 };
        const [first, second] = [await client.completions.create(asked), await client.completions.create(asked)];
        assert.equal(first.choices.length, 2);
        assert.deepEqual(first.choices.map((choice) => choice.text), second.choices.map((choice) => choice.text));
        const { choices: [free] } = await client.completions.create({ ...asked, n: 1, temperature: 0 });
        const stop = free.text.slice(3, 6);
        const { choices: [ended] } = await client.completions.create({ ...asked, n: 1, temperature: 0, stop });
        assert.equal(ended.finish_reason, "stop");
        assert.equal(ended.text, free.text.slice(0, free.text.indexOf(stop)));
    },

    async "service_tier chooses a class, and the reply says which"() {
        for (const tier of ["auto", "default", "flex", "priority"]) {
            const answer = await client.chat.completions.create({ ...told, max_tokens: 2, service_tier: tier });
            assert.equal(answer.service_tier, tier === "auto" ? "default" : tier);
        }
        const { data, response } = await client.chat.completions.create({ ...told, max_tokens: 2, service_tier: "flex" }).withResponse();
        assert.equal(data.service_tier, "flex");
        assert.equal(response.headers.get("x-service-class"), "batch");
    },

    async "logprobs come with their alternatives"() {
        const answer = await client.chat.completions.create({ ...told, max_tokens: 4, logprobs: true, top_logprobs: 3 });
        const { content } = answer.choices[0].logprobs;
        assert.equal(content.length, 4);
        for (const { logprob, top_logprobs: top } of content) {
            assert.equal(top.length, 3);
            assert.ok(logprob <= 0 && top[0].logprob >= top[1].logprob);
        }
    },

    async "an answer by a JSON schema can be read"() {
        const schema = { type: "object", properties: { happy: { type: "boolean" } }, required: ["happy"],
            additionalProperties: false };
        const answer = await client.chat.completions.create({ model: MODEL, messages: STORY, temperature: 0, max_tokens: 200,
            response_format: { type: "json_schema", json_schema: { name: "mood", strict: true, schema } } });
        assert.equal(typeof JSON.parse(answer.choices[0].message.content).happy, "boolean");
    },

    async "texts have unit vectors, which the package decodes"() {
        const input = ["Once upon a time", "The end"];
        const reply = await client.embeddings.create({ model: MODEL, input });
        assert.equal(reply.data.length, 2);
        for (const { embedding } of reply.data) {
            const square = embedding.reduce((sum, x) => sum + x * x, 0);
            assert.ok(Math.abs(square - 1) < 1e-4, `length ${Math.sqrt(square)}`);
        }
        assert.notDeepEqual(reply.data[0].embedding, reply.data[1].embedding);
        const short = await client.embeddings.create({ model: MODEL, input: input[0], dimensions: 8, encoding_format: "float" });
        assert.equal(short.data[0].embedding.length, 8);
        assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens);
    },

    async "a response has output and is continued"() {
        const ask = { model: MODEL, temperature: 0, max_output_tokens: 12, instructions: "You tell stories.",
            input: "Once upon a time" };
        const first = await client.responses.create(ask);
        assert.equal(first.object, "response");
        assert.ok(["completed", "incomplete"].includes(first.status));
        assert.equal(first.output[0].type, "message");
        assert.equal(first.output_text, first.output[0].content[0].text);
        const next = await client.responses.create({ ...ask, input: "And then?", previous_response_id: first.id });
        assert.equal(next.previous_response_id, first.id);
        assert.ok(next.usage.input_tokens > first.usage.input_tokens);
        // The next turn finds the first turn's prompt and answer in the cache, except for the
        // answer's last token.
        assert.ok(next.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens + first.usage.output_tokens - 1, JSON.stringify([first.usage, next.usage]));
        const again = await client.responses.retrieve(first.id);
        assert.equal(again.output_text, first.output_text);
        await client.responses.delete(first.id);
        await assert.rejects(client.responses.retrieve(first.id), (error) => error instanceof OpenAI.NotFoundError);
    },

    async "a response in a stream says the same"() {
        const ask = { model: MODEL, temperature: 0, max_output_tokens: 12, input: "Once upon a time", store: false };
        const whole = await client.responses.create(ask);
        let text = "";
        let last;
        for await (const event of await client.responses.create({ ...ask, stream: true })) {
            text += event.type === "response.output_text.delta" ? event.delta : "";
            last = event;
        }
        assert.equal(text, whole.output_text);
        assert.equal(last.response.status, whole.status);
        assert.deepEqual(last.response.output[0].content, whole.output[0].content);
        const assembled = await client.responses.stream(ask).finalResponse();
        assert.equal(assembled.output_text, whole.output_text);
    },

    async "a field of the wrong kind is a BadRequestError that names it"() {
        const wrong = client.chat.completions.create({ ...told, max_tokens: "many" });
        await assert.rejects(wrong, (error) => {
            assert.ok(error instanceof OpenAI.BadRequestError);
            assert.equal(error.status, 400);
            assert.equal(error.type, "invalid_request_error");
            assert.equal(error.param, "max_tokens");
            assert.match(error.message, /max_tokens/);
            return true;
        });
    },

    async "a prompt beyond the context is a BadRequestError"() {
        const long = client.completions.create({ model: MODEL, prompt: "word ".repeat(4000), max_tokens: 4 });
        await assert.rejects(long, (error) => error instanceof OpenAI.BadRequestError && /context/.test(error.message));
    },

    async "an unknown path is a NotFoundError"() {
        await assert.rejects(client.files.list(), (error) => error instanceof OpenAI.NotFoundError);
    },

    async "an aborted stream frees what it held"() {
        const stream = await client.chat.completions.create({ ...told, max_tokens: 400, stream: true });
        for await (const chunk of stream) {
            if (chunk.choices[0]?.delta.content) {
                stream.controller.abort();
                break;
            }
        }
        for (;;) { // until the server has noticed; the test's own time limit ends this
            const metrics = await (await fetch(`${url}/metrics`, { headers: { Authorization: `Bearer ${key ?? ""}` } })).text();
            if (/^quire_num_requests_running 0$/m.test(metrics)) {
                break;
            }
        }
    },

    async "without the right key: AuthenticationError"() {
        const stranger = connect("not a key").models.list();
        if (key) {
            await assert.rejects(stranger, (error) => error instanceof OpenAI.AuthenticationError && error.status === 401);
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
