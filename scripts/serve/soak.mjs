// soak.mjs - 100 clients, 20,000 mixed requests, random cancels, pins, slow readers: no stuck
// request, no wrong page, no leak.
//
//   node scripts/serve/soak.mjs --quire build/quire [--model FILE] [--requests 20000]
//                               [--clients 100] [--prompts 400] [--seed N] [--kv f32]
//                               [--kv-budget 2MiB]
//
// Every prompt is first answered once by a server without a prefix cache; from then on each greedy
// answer must be that text. (Batches of other sizes add in another order: where an answer differs,
// the likeliest two tokens must have been nearly equal there, else a page was wrong. In f32 that is
// hardly ever needed.) The KV budget is far too small for all prompts, so pages are evicted all the
// time and requests preempted now and then. In the end nothing may run, every page must be the
// prefix tree's, invalidating all must free every one of them, and SIGTERM must end the server with
// status 0.
//
// SPDX-License-Identifier: MIT
import { existsSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { readOptions } from "../compare/options.mjs";
import { Client } from "./client.mjs";
import { Server } from "./server.mjs";
import { prompts } from "./stories.mjs";
import { randomFrom } from "./texts.mjs";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "../..");
// Differences of log-probabilities that can turn round when batches of other sizes add in another
// order, in nats. In 8 bit that order also decides which way values are rounded.
const NEARLY = { f32: 0.001, f16: 0.02, q8: 0.15 };
const options = readOptions("soak", {
    quire: { type: "string", default: join(root, "build", "quire") },
    model: { type: "string" },
    requests: { type: "string", default: "20000", whole: 20 },
    clients: { type: "string", default: "100", whole: 1 },
    prompts: { type: "string", default: "400", whole: 1 },
    seed: { type: "string", default: `${Date.now() % 1e9}`, whole: 0 },
    kv: { type: "string", default: "f32", known: Object.keys(NEARLY) },
    "kv-budget": { type: "string", default: "2MiB" },
    threads: { type: "string", default: "2", whole: 1 },
    "stuck-seconds": { type: "string", default: "180", above: 0 },
});
const model = options.model ?? join(root, "tests", "data", "stories260K-f32.gguf");
const total = Number(options.requests);
const clients = Number(options.clients);
const seed = Number(options.seed);
const stuckMs = Number(options["stuck-seconds"]) * 1000;

const COMPLETIONS = "/v1/completions";
const ANSWER_TOKENS_MAX = 48;
const WARM_SHARE = 0.2; // of the requests; memory may grow in this part
const GROWTH_MAX = 1.15;
const GROWTH_BYTES_MAX = 24e6;

if (!existsSync(model)) {
    process.stdout.write(`skipped: ${model} is missing\n`);
    process.exit(77);
}

const problems = [];
function problem(text) {
    problems.push(text);
    process.stderr.write(`soak: ${text}\n`);
}

const common = ["serve", "-m", model, "-t", options.threads, "--kv", options.kv, "--kv-budget", options["kv-budget"],
    "--chat-template", "chatml", "--log-level", "errors"];
const asked = prompts().filter((_, i, { length }) => i % Math.ceil(length / Number(options.prompts)) === 0);

// ---- right answers ----

const greedy = (prompt) => ({ prompt, max_tokens: ANSWER_TOKENS_MAX, temperature: 0, ignore_eos: true });

async function reference() {
    const server = await Server.start(options.quire, [...common, "--no-prefix-cache"]);
    const answers = [];
    for (const prompt of asked) {
        const { status, body } = await server.client.json("POST", COMPLETIONS, { ...greedy(prompt), logprobs: 2 });
        if (status !== 200) {
            throw new Error(`reference: status ${status}: ${JSON.stringify(body)}`);
        }
        const { text, logprobs } = body.choices[0];
        answers.push({ text, logprobs });
    }
    await server.stop();
    return answers;
}

// How much likelier the reference's token was than the next one where the answer parts from it, in
// nats.
function gap({ text, logprobs }, answer) {
    let at = 0;
    while (at < text.length && text[at] === answer[at]) {
        at++;
    }
    const i = logprobs.text_offset.findLastIndex((offset) => offset <= at);
    const [best, second] = Object.values(logprobs.top_logprobs[i] ?? {}).sort((a, b) => b - a);
    return best - second;
}

// ---- acts of clients ----

const count = {};
const tally = (what) => {
    count[what] = (count[what] ?? 0) + 1;
};

// n: tokens of an answer that ended by itself; undefined: it was given up at any place.
function check(answers, which, text, n) {
    const right = answers[which];
    const expected = n === undefined ? right.text.slice(0, text.length) : right.text.slice(0, right.logprobs.text_offset[n]);
    if (text === expected) {
        tally("right");
    } else if (gap(right, text) < NEARLY[options.kv]) {
        tally("tie");
    } else {
        problem(`prompt ${which}: expected ${JSON.stringify(right.text)}, got ${JSON.stringify(text)}; ` +
            `${gap(right, text)} nats between the two likeliest tokens`);
    }
}

function settled(reply, what) {
    if (reply.isStuck) {
        problem(`${what}: stuck`);
    } else if (reply.status === 429) {
        tally("queue full");
    } else if (reply.error && reply.error !== "cancelled") {
        problem(`${what}: ${reply.error}`);
    } else {
        return true;
    }
    return false;
}

const pick = (random, list) => list[Math.floor(random() * list.length)];
const salted = (random) => (random() < 0.1 ? { cache_salt: pick(random, ["a", "b", "c"]) } : {});

// A greedy request for one of the prompts, and which one.
function greedily(random) {
    const which = Math.floor(random() * asked.length);
    const tokens = pick(random, [4, 16, ANSWER_TOKENS_MAX]);
    return [{ ...greedy(asked[which]), ...salted(random), max_tokens: tokens }, which];
}

async function streamed(client, random, answers) {
    const [body, which] = greedily(random);
    const reply = await client.stream(COMPLETIONS, body, { stuckMs });
    if (settled(reply, "stream")) {
        check(answers, which, reply.text, reply.usage.completion_tokens);
    }
}

// The client goes away after some pieces of text, or some milliseconds.
async function cancelled(client, random, answers) {
    const [body, which] = greedily(random);
    const abort = new AbortController();
    const pieces = Math.floor(random() * body.max_tokens);
    const onText = (reply) => reply.pieces > pieces && abort.abort();
    const timer = random() < 0.5 ? setTimeout(() => abort.abort(), random() * 300) : undefined;
    const reply = await client.stream(COMPLETIONS, body, { signal: abort.signal, onText, stuckMs });
    clearTimeout(timer);
    if (settled(reply, "cancelled stream")) {
        tally(reply.error === "cancelled" ? "cancelled" : "too late to cancel");
        check(answers, which, reply.text, reply.error === "cancelled" ? undefined : reply.usage.completion_tokens);
    }
}

async function whole(client, random, answers) {
    const [sent, which] = greedily(random);
    const { status, body } = await client.json("POST", COMPLETIONS, { ...sent, cache_prompt: random() < 0.8 });
    if (settled({ status, error: status === 200 ? undefined : JSON.stringify(body) }, "whole")) {
        check(answers, which, body.choices[0].text, body.usage.completion_tokens);
    }
}

// Several answers that may become long. Such a request takes more memory than admission reserves,
// so other requests give way.
async function sampled(client, random) {
    const { status, body } = await client.json("POST", "/v1/chat/completions", {
        messages: [{ role: "user", content: pick(random, asked).slice(0, 200) }], max_tokens: 200, temperature: 1,
        seed: Math.floor(random() * 1e6), n: 1 + Math.floor(random() * 3), stop: pick(random, [[], ["."]]) });
    if (settled({ status, error: status === 200 ? undefined : JSON.stringify(body) }, "sampled")) {
        tally("sampled");
    }
}

// A turn of one of a few sessions, which several clients use at once: that it is busy is an answer,
// too.
async function turn(client, random) {
    const { status, body } = await client.json("POST", "/v1/chat/completions", {
        session_id: `session-${Math.floor(random() * 20)}`, messages: [{ role: "user", content: "And then?" }], max_tokens: 8,
        temperature: 0, context_overflow: "truncate_turns" });
    const isBusy = status === 409 || (status === 429 && body.error.code !== "queue_full");
    if (isBusy || settled({ status, error: status === 200 ? undefined : JSON.stringify(body) }, "turn")) {
        tally(isBusy ? "session busy" : "turn");
    }
}

async function wrong(client, random) {
    const bodies = [[], { prompt: 7 }, { prompt: "a", max_tokens: 0 }, { prompt: "a", temperature: "hot" },
        { prompt: "a ".repeat(5000) }];
    const { status, body } = await client.json("POST", COMPLETIONS, pick(random, bodies));
    tally("refused");
    if (![400, 429].includes(status) || body?.error?.message === undefined) {
        problem(`wrong input: status ${status}: ${JSON.stringify(body)}`);
    }
}

async function looked(client, random) {
    const paths = ["/health", "/metrics", "/v1/models", "/props", "/v1/cache/stats", "/v1/cache/sessions",
        "/v1/cache/explain?n=5"];
    const path = pick(random, paths);
    const { status } = await client.json("GET", path);
    tally("looked");
    if (status !== 200) {
        problem(`${path}: status ${status}`);
    }
}

async function invalidated(client, random) {
    const whats = [{ all: true }, { session: `session-${Math.floor(random() * 20)}` }, { prefix: pick(random, asked) }];
    const { status, body } = await client.json("POST", "/v1/cache/invalidate", pick(random, whats));
    tally("invalidated");
    if (status !== 200 && status !== 404) {
        problem(`invalidate: status ${status}: ${JSON.stringify(body)}`);
    }
}

// A client that reads late: the server must not wait for it.
async function slow(client, random, answers) {
    const [body, which] = greedily(random);
    const reply = await client.stream(COMPLETIONS, body, { stuckMs, pauseMs: Math.floor(random() * 50) });
    if (settled(reply, "slow stream")) {
        tally("slow");
        check(answers, which, reply.text, reply.usage.completion_tokens);
    }
}

// Pins of a few names, which several clients make, renew and drop at once. Pins hold a half of the
// memory at most.
const PINS = "/v1/cache/pins";
const PIN_NAMES = ["a", "b", "c", "d"];
const PIN_STATUSES = [200, 201, 404, 409, 429, 507];

async function pinned(client, random) {
    const name = pick(random, PIN_NAMES);
    const [method, path, sent] = pick(random, [["POST", PINS, { name, text: pick(random, asked), ttl: 60 }],
        ["POST", `${PINS}/${name}`, { ttl: 60 }], ["DELETE", `${PINS}/${name}`]]);
    const { status, body } = await client.json(method, path, sent);
    tally(status < 300 ? "pin" : "no pin");
    if (!PIN_STATUSES.includes(status)) {
        problem(`${method} ${path}: status ${status}: ${JSON.stringify(body)}`);
    }
}

// The acts of a client, by their share.
const ACTS = [[0.41, streamed], [0.24, cancelled], [0.1, whole], [0.06, sampled], [0.05, turn], [0.04, wrong],
    [0.045, looked], [0.02, slow], [0.03, pinned], [0.005, invalidated]];

function choose(random) {
    let left = random();
    return (ACTS.find(([share]) => (left -= share) < 0) ?? ACTS[0])[1];
}

// ---- the run ----

async function load(server, answers) {
    const memory = [];
    let done = 0;
    let begun = 0;
    const work = async (who) => {
        const client = new Client(server.port);
        const random = randomFrom(seed * 1000 + who);
        while (begun < total && problems.length < 20) {
            begun++;
            const full = count["queue full"];
            await choose(random)(client, random, answers).catch((error) => problem(error.message));
            if (count["queue full"] !== full) {
                await new Promise((again) => setTimeout(again, 200 * random())); // Retry-After says a second
            }
            if (++done % Math.ceil(total / 20) === 0) {
                memory.push({ share: done / total, bytes: server.residentBytes() });
                process.stderr.write(`soak: ${done} requests, ${(memory.at(-1).bytes / 1e6).toFixed(1)} MB resident\n`);
            }
        }
        client.close();
    };
    await Promise.all(Array.from({ length: clients }, (_, who) => work(who)));
    return memory;
}

function checkMemory(memory) {
    if (problems.length > 0) {
        return; // a load that was given up is not to be compared
    }
    const warm = Math.max(...memory.filter((look) => look.share <= WARM_SHARE).map((look) => look.bytes));
    const last = memory.at(-1).bytes;
    if (last > warm * GROWTH_MAX && last > warm + GROWTH_BYTES_MAX) {
        problem(`memory grew from ${(warm / 1e6).toFixed(1)} MB to ${(last / 1e6).toFixed(1)} MB`);
    }
}

const stats = async (server) => (await server.client.json("GET", "/v1/cache/stats")).body;
const busy = ({ requests }) => requests.waiting + requests.prefilling + requests.decoding;

// Cancelled requests end within one step; give them time, not steps.
async function idle(server) {
    for (const limit = Date.now() + stuckMs; Date.now() < limit;) {
        const now = await stats(server);
        if (busy(now) === 0) {
            return now;
        }
        await new Promise((done) => setTimeout(done, 20));
    }
    problem("requests still run although nobody waits for them");
    return stats(server);
}

async function checkPages(server) {
    for (const name of PIN_NAMES) {
        await server.client.json("DELETE", `${PINS}/${name}`);
    }
    const { cache, prefix, requests } = await idle(server);
    const ended = requests.stop_total + requests.length_total + requests.cancelled_total + requests.error_total;
    process.stderr.write(`soak: ${JSON.stringify({ requests, cache, prefix })}\n`);
    if (requests.accepted_total !== ended || requests.error_total !== 0) {
        problem(`${requests.accepted_total} requests accepted, ${ended} ended, ${requests.error_total} of them with an error`);
    }
    if (cache.charged_bytes !== prefix.evictable_bytes) {
        problem(`idle, but of ${cache.charged_bytes} bytes charged only ${prefix.evictable_bytes} are the prefix tree's alone`);
    }
    await server.client.json("POST", "/v1/cache/invalidate", { all: true });
    const empty = await stats(server);
    if (empty.cache.charged_bytes !== 0 || empty.cache.pages_live !== 0 || empty.prefix.nodes !== 0) {
        problem(`all is invalidated, but there are pages: ${JSON.stringify(empty.cache)} ${JSON.stringify(empty.prefix)}`);
    }
}

process.stderr.write(`soak: ${total} requests, ${clients} clients, --seed ${seed}\n`);
const answers = await reference();
const server = await Server.start(options.quire, [...common, "-np", "32", "--max-queue", "80"]);
checkMemory(await load(server, answers));
await checkPages(server);
const end = await server.stop();
if (end.status !== 0 || end.isKilled) {
    problem(`SIGTERM: the server ended with ${JSON.stringify(end)}\n${server.said}`);
}
process.stdout.write(`${JSON.stringify(count)}\n${problems.length === 0 ? "no" : problems.length} problems with --seed ${seed}\n`);
process.exit(problems.length === 0 ? 0 : 1);
