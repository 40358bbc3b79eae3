// traces.mjs - made-up traces of many kinds of work, in Mooncake's format, for `quire sim`.
//
//   node scripts/traces.mjs DIR [SEED [NAME...]]
//
// A policy of eviction must be judged on work that it was not tuned on. Each trace is an hour of
// requests, at most 10,000 of them, in blocks of 512 tokens; equal seeds give equal files.
//
//   chat-fast   many turns, 25 s apart         chat-slow   few turns, 5 minutes apart
//   chat-system a system prompt for all        agents      20 quick turns behind shared tools
//   rag         documents, Zipf 0.9            rag-flat    documents, Zipf 0.5
//   hot         60 prompts and what is asked   news        documents asked for while they are new
//   burst       the same prompt up to 8 times  tool        shared prefixes, some turns
//   mix         chat, agents, documents, scan  phases      chat, documents, a loop, agents in turn
//   loop        12,000 blocks again and again  loop-small  5,000 blocks, not quite in order
//   scan        nothing twice
//
// SPDX-License-Identifier: MIT
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const HOUR = 3600;
const REQUESTS_MAX = 10000;

// mulberry32
function generator(seed) {
    let state = seed >>> 0;
    return () => {
        state = (state + 0x6d2b79f5) >>> 0;
        let z = state;
        z = Math.imul(z ^ (z >>> 15), z | 1);
        z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
        return ((z ^ (z >>> 14)) >>> 0) / 4294967296;
    };
}

class Trace {
    constructor(seed) {
        this.uniform = generator(seed);
        this.nBlocks = 0;
        this.requests = [];
    }

    blocks(n) {
        const ids = Array.from({ length: n }, (_, i) => this.nBlocks + i);
        this.nBlocks += n;
        return ids;
    }

    ask(second, ids) {
        this.requests.push({ second, ids });
    }

    whole(low, high) {
        return low + Math.floor(this.uniform() * (high - low + 1));
    }

    exponential(mean) {
        return -mean * Math.log(1 - this.uniform());
    }

    normal() {
        const radius = Math.sqrt(-2 * Math.log(1 - this.uniform()));
        return radius * Math.cos(2 * Math.PI * this.uniform());
    }

    lognormal(median, sigma) {
        return median * Math.exp(sigma * this.normal());
    }

    * arrivals(begin, end, perSecond) {
        for (let t = begin + this.exponential(1 / perSecond); t < end;
            t += this.exponential(1 / perSecond)) {
            yield t;
        }
    }

    text() {
        const lines = this.requests.map((request, i) => ({ ...request, i }));
        lines.sort((a, b) => a.second - b.second || a.i - b.i);
        return lines.slice(0, REQUESTS_MAX).map(({ second, ids }) => JSON.stringify({
            timestamp: Math.floor(second * 1000),
            input_length: ids.length * 512 - 100,
            output_length: 200,
            hash_ids: ids,
        })).join("\n") + "\n";
    }
}

function zipf(trace, n, exponent) {
    const sums = [];
    let sum = 0;
    for (let i = 1; i <= n; i++) {
        sum += i ** -exponent;
        sums.push(sum);
    }
    return () => {
        const at = trace.uniform() * sum;
        let low = 0;
        let high = n - 1;
        while (low < high) {
            const middle = (low + high) >> 1;
            if (sums[middle] < at) low = middle + 1; else high = middle;
        }
        return low;
    };
}

// Everybody thinks at a pace of his own and ends with a chance of his own.
function chat(trace, begin, end, { rate, think, stop, first, grow, system = [] }) {
    for (const start of trace.arrivals(begin, end, rate)) {
        let ids = [...system, ...trace.blocks(Math.max(1, Math.floor(trace.lognormal(first, 0.9))))];
        const chance = Math.min(0.95, Math.max(0.05, stop + 0.2 * trace.normal()));
        const pace = trace.lognormal(think, 0.5);
        for (let t = start; t < end * 1.2; t += pace * trace.lognormal(1, 0.8)) {
            trace.ask(t, [...ids, ...trace.blocks(1)]);
            if (trace.uniform() < chance) break;
            ids = [...ids, ...trace.blocks(Math.floor(trace.exponential(grow)))];
        }
    }
}

function documents(trace, begin, end, { rate, n, exponent, low, high, tail = 1 }) {
    const system = trace.blocks(1);
    const texts = Array.from({ length: n }, () => trace.blocks(trace.whole(low, high)));
    const draw = zipf(trace, n, exponent);
    for (const t of trace.arrivals(begin, end, rate)) {
        trace.ask(t, [...system, ...texts[draw()], ...trace.blocks(trace.whole(1, tail))]);
    }
}

function agents(trace, begin, end, { rate, turns, gap, grow, tools }) {
    const prompts = Array.from({ length: tools }, () => trace.blocks(8));
    for (const start of trace.arrivals(begin, end, rate)) {
        let ids = [...prompts[trace.whole(0, tools - 1)], ...trace.blocks(trace.whole(1, 6))];
        const n = Math.max(1, Math.floor(trace.exponential(turns)));
        for (let i = 0, t = start; i < n; i++) {
            trace.ask(t, [...ids, ...trace.blocks(1)]);
            ids = [...ids, ...trace.blocks(trace.whole(0, grow))];
            t += trace.lognormal(gap, 0.8) + (trace.uniform() < 0.03 ? trace.exponential(300) : 0);
        }
    }
}

function scan(trace, begin, end, { rate, low, high }) {
    for (const t of trace.arrivals(begin, end, rate)) {
        trace.ask(t, trace.blocks(trace.whole(low, high)));
    }
}

function loop(trace, begin, end, { rate, n, length, jitter = 0 }) {
    const texts = Array.from({ length: n }, () => trace.blocks(length));
    for (let t = begin, i = 0; t < end; i++) {
        trace.ask(t, texts[((i % n) + n) % n]);
        t += (1 + jitter * (trace.uniform() - 0.5)) / rate;
        if (jitter > 0 && trace.uniform() < 0.05) i += trace.whole(-5, 5);
    }
}

function news(trace, begin, end, { rate, uses, gap }) {
    for (const start of trace.arrivals(begin, end, rate)) {
        const ids = trace.blocks(trace.whole(3, 20));
        const n = Math.max(1, Math.floor(trace.exponential(uses)));
        for (let i = 0, t = start; i < n; i++, t += trace.exponential(gap)) {
            trace.ask(t, [...ids, ...trace.blocks(1)]);
        }
    }
}

function burst(trace, begin, end, { rate, most }) {
    for (const t of trace.arrivals(begin, end, rate)) {
        const ids = trace.blocks(trace.whole(3, 30));
        for (let i = trace.whole(1, most); i > 0; i--) {
            trace.ask(t + trace.uniform() * i * 0.5, [...ids, ...trace.blocks(1)]);
        }
    }
}

function tool(trace, begin, end, { rate }) {
    const prompts = Array.from({ length: 60 }, () => trace.blocks(trace.whole(2, 16)));
    const draw = zipf(trace, 60, 1.1);
    for (const start of trace.arrivals(begin, end, rate)) {
        const length = Math.max(1, Math.floor(trace.lognormal(6, 1)));
        let ids = [...prompts[draw()], ...trace.blocks(length)];
        const n = trace.uniform() < 0.75 ? 1 : 1 + Math.floor(trace.exponential(4));
        for (let i = 0, t = start; i < n; i++, t += trace.lognormal(25, 0.9)) {
            trace.ask(t, ids);
            ids = [...ids, ...trace.blocks(trace.whole(1, 3))];
        }
    }
}

const SLOW = { rate: 1.2, think: 300, stop: 0.45, first: 12, grow: 1.5 };
const QUICK = { rate: 0.15, turns: 20, gap: 5, grow: 4, tools: 2 };
const RAG = { rate: 2.5, n: 2000, exponent: 0.9, low: 2, high: 20 };

const KINDS = {
    "chat-fast": (t) => chat(t, 0, HOUR, { rate: 0.6, think: 25, stop: 0.2, first: 8, grow: 1.2 }),
    "chat-slow": (t) => chat(t, 0, HOUR, SLOW),
    "chat-system": (t) => chat(t, 0, HOUR, {
        rate: 1, think: 90, stop: 0.3, first: 4, grow: 1, system: t.blocks(6),
    }),
    agents: (t) => agents(t, 0, HOUR, QUICK),
    rag: (t) => documents(t, 0, HOUR, RAG),
    "rag-flat": (t) => documents(t, 0, HOUR, { ...RAG, n: 1000, exponent: 0.5, low: 5 }),
    hot: (t) => documents(t, 0, HOUR, { ...RAG, n: 60, exponent: 1, low: 4, high: 12, tail: 10 }),
    news: (t) => news(t, 0, HOUR, { rate: 0.4, uses: 6, gap: 60 }),
    burst: (t) => burst(t, 0, HOUR, { rate: 0.6, most: 8 }),
    tool: (t) => tool(t, 0, HOUR, { rate: 1.4 }),
    mix: (t) => {
        chat(t, 0, HOUR, { ...SLOW, rate: 0.25, think: 200, stop: 0.4, first: 10 });
        agents(t, 0, HOUR, { ...QUICK, rate: 0.03, turns: 15, gap: 6, grow: 2, tools: 3 });
        documents(t, 0, HOUR, { ...RAG, rate: 0.6, n: 1000, high: 15 });
        scan(t, 0, HOUR, { rate: 0.3, low: 2, high: 60 });
    },
    phases: (t) => {
        chat(t, 0, HOUR / 4, { rate: 0.7, think: 60, stop: 0.3, first: 8, grow: 1.5 });
        documents(t, HOUR / 4, HOUR / 2, { ...RAG, n: 800, low: 3, high: 15 });
        loop(t, HOUR / 2, HOUR * 3 / 4, { rate: 2.5, n: 300, length: 20, jitter: 0.2 });
        agents(t, HOUR * 3 / 4, HOUR, { ...QUICK, turns: 15, grow: 2, tools: 3 });
    },
    loop: (t) => loop(t, 0, HOUR, { rate: 2.5, n: 600, length: 20 }),
    "loop-small": (t) => loop(t, 0, HOUR, { rate: 2.5, n: 250, length: 20, jitter: 0.5 }),
    scan: (t) => scan(t, 0, HOUR, { rate: 2, low: 2, high: 40 }),
};

const [dir, seed = "1", ...names] = process.argv.slice(2);
const unknown = names.find((name) => !(name in KINDS));
if (dir === undefined || unknown !== undefined || !/^\d+$/.test(seed)) {
    console.error(`usage: node scripts/traces.mjs DIR [SEED [NAME...]], with a whole number and names of ${Object.keys(KINDS).join(" ")}`);
    process.exit(2);
}
mkdirSync(dir, { recursive: true });
for (const [i, [name, make]] of Object.entries(KINDS).entries()) {
    if (names.length > 0 && !names.includes(name)) continue;
    const trace = new Trace(Number(seed) * 1000 + i);
    make(trace);
    writeFileSync(join(dir, `${name}.jsonl`), trace.text());
}
