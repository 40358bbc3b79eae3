// tool-calls.mjs - whether the arguments of required calls are valid under their schemas.
//
//   node scripts/tool-calls.mjs --quire build/quire --ajv DIR --model FILE [--template FILE]
//                               [--model ...] [--tools scripts/agents/tools.json] [--seeds 2]
//                               [--only NAME,NAME] [--ctx 2048] [--together 4] [--brief]
//
// `make tool-calls` builds the program and calls this with the default model. For each model a
// server starts. Each tool is demanded with several seeds and prompts, at temperatures 0 and 1, in
// a stream and whole, with an ample max_tokens and with none; the last rows demand calls among
// several tools in one answer. ajv (the npm package ajv-dist) validates what comes. An answer that
// max_tokens or the context cut ends with `length` and is counted apart. A line for each model;
// exits 1 when an answer that ended by itself holds no call or a call that is not valid.
//
// --brief asks once for each tool: for models that are slow here. --url uses a server that runs
// already, and no model.
//
// SPDX-License-Identifier: MIT
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { validators } from "./agents/validate.mjs";
import { readOptions, stopOf } from "./compare/options.mjs";
import { Client } from "./serve/client.mjs";
import { Server } from "./serve/server.mjs";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "..");
const stop = stopOf("tool-calls");
const options = readOptions("tool-calls", {
    quire: { type: "string", default: join(root, "build", "quire") },
    ajv: { type: "string" },
    model: { type: "string", multiple: true, default: [] },
    template: { type: "string", multiple: true, default: [] },
    tools: { type: "string", default: join(root, "scripts", "agents", "tools.json") },
    only: { type: "string" },
    seeds: { type: "string", default: "2", whole: 1 },
    ctx: { type: "string", default: "2048", whole: 1 },
    together: { type: "string", default: "4", whole: 1 },
    brief: { type: "boolean", default: false },
    url: { type: "string" },
});
if (!options.ajv || (options.model.length === 0 && !options.url)) {
    stop("--ajv DIR and --model FILE are needed; use `make tool-calls`");
}

const PROMPTS = ["Please use the tool. Choose sensible values.", "Do what seems best next, with all details that you can give."];
const AMPLE = 1000;
const TOOLS_OF_ONE_ANSWER = 3;

const wanted = options.only?.split(",");
const allTools = JSON.parse(readFileSync(options.tools, "utf8")), names = allTools.map((tool) => tool.name);
const strange = wanted?.find((name) => !names.includes(name));
if (strange !== undefined) {
    stop(`--only '${strange}' is unknown: it takes ${names.join(", ")}, comma-separated`);
}
const tools = allTools.filter((tool) => !wanted || wanted.includes(tool.name));
const validate = validators(createRequire(import.meta.url), options.ajv, tools);

// All requests for one tool or for several in one answer.
function* requests() {
    for (const [i, tool] of options.brief ? tools.entries() : []) {
        yield { tools: [tool], content: PROMPTS[i % PROMPTS.length], seed: i, temperature: 1, stream: i % 2 === 0,
            max_tokens: AMPLE, parallel_tool_calls: false };
    }
    if (options.brief) {
        return;
    }
    for (const tool of tools) {
        for (let seed = 1; seed <= Number(options.seeds); seed++) {
            const content = PROMPTS[seed % PROMPTS.length];
            const one = { tools: [tool], content, seed, parallel_tool_calls: false };
            yield { ...one, temperature: 0, stream: seed % 2 === 1, max_tokens: AMPLE };
            yield { ...one, temperature: 1, stream: seed % 2 === 0, max_tokens: AMPLE };
            yield { ...one, temperature: 1, stream: seed % 2 === 1, seed: seed + 100 };
        }
    }
    for (let at = 0; at + TOOLS_OF_ONE_ANSWER <= tools.length; at += TOOLS_OF_ONE_ANSWER) {
        yield { tools: tools.slice(at, at + TOOLS_OF_ONE_ANSWER), content: PROMPTS[1], seed: at, temperature: 1,
            stream: at % 2 === 0, max_tokens: AMPLE, parallel_tool_calls: true };
    }
}

// The message and finish_reason of an answer, whether streamed or whole.
async function ask(client, { tools: offered, content, ...rest }) {
    const body = { messages: [{ role: "user", content }], tool_choice: "required",
        tools: offered.map((tool) => ({ type: "function", function: tool })), ...rest };
    const { status, body: said } = await client.json("POST", "/v1/chat/completions", body);
    if (status !== 200) {
        throw new Error(`status ${status}: ${said.error?.message}`);
    }
    if (!rest.stream) {
        const choice = said.choices[0];
        return { finish: choice.finish_reason, calls: (choice.message.tool_calls ?? []).map((call) => call.function) };
    }
    const calls = [];
    let finish;
    for (const line of said.split("\n").filter((each) => each.startsWith("data: {"))) {
        const event = JSON.parse(line.slice(6));
        if (event.error) {
            throw new Error(event.error.message);
        }
        const choice = event.choices[0];
        for (const { index, function: part } of choice?.delta?.tool_calls ?? []) {
            calls[index] ??= { name: "", arguments: "" };
            calls[index].name += part.name ?? "";
            calls[index].arguments += part.arguments ?? "";
        }
        finish = choice?.finish_reason ?? finish;
    }
    return { finish, calls };
}

// The fault of an answer that ended by itself; undefined for a right answer.
function fault({ finish, calls }, { tools: offered, parallel_tool_calls: parallel }) {
    if (finish !== "tool_calls" || calls.length === 0) {
        return `finish_reason ${finish}, ${calls.length} calls`;
    }
    if (parallel === false && calls.length > 1) {
        return `${calls.length} calls in spite of parallel_tool_calls: false`;
    }
    for (const call of calls) {
        if (!offered.some((tool) => tool.name === call.name)) {
            return `no tool has the name ${call.name}`;
        }
        const why = validate(call.name, call.arguments);
        if (why) {
            return `${call.name}: ${why}: ${call.arguments}`;
        }
    }
    return undefined;
}

// Ask everything of one server, --together at a time.
async function check(client, name) {
    const counts = { ended: 0, valid: 0, cut: 0, calls: 0 };
    const waiting = requests();
    const work = async () => {
        for (const request of waiting) {
            let wrong;
            let answer = { calls: [] };
            try {
                answer = await ask(client, request);
                wrong = answer.finish === "length" ? undefined : fault(answer, request);
            } catch (error) {
                wrong = error.message;
            }
            counts.cut += answer.finish === "length";
            counts.ended += answer.finish !== "length";
            counts.valid += answer.finish !== "length" && !wrong;
            counts.calls += answer.calls.length;
            if (wrong) {
                const { tools: offered, ...rest } = request;
                process.stderr.write(`${name}: ${offered.map((tool) => tool.name)} ${JSON.stringify(rest)}: ${wrong}\n`);
            }
        }
    };
    await Promise.all(Array.from({ length: Number(options.together) }, work));
    process.stdout.write(`${name}: ${tools.length} schemas, ${counts.valid} of ${counts.ended} answers valid ` +
        `(${counts.calls} calls), ${counts.cut} cut off\n`);
    return counts.ended === counts.valid && counts.ended > 0;
}

let isGood = true;
if (options.url) {
    const { hostname, port } = new URL(options.url);
    const client = new Client(port, hostname);
    isGood = await check(client, "the server");
    client.close();
}
for (const [i, model] of options.model.entries()) {
    const template = options.template[i] ? ["--chat-template-file", options.template[i]] : [];
    const server = await Server.start(options.quire, ["serve", "-m", model, "-c", options.ctx, ...template]);
    try {
        isGood = await check(server.client, basename(model)) && isGood;
    } finally {
        await server.stop();
    }
}
process.exit(isGood ? 0 : 1);
