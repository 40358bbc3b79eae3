// sides.mjs - how each server is started for a load, and the targets of `make compare-serve`. Data
// only.
//
// SPDX-License-Identifier: MIT

// A request of `document` has 8,000 tokens and more; one slot must hold it.
const CTX = 9216;

// Settings of llama-server that were tried, by name; --tune runs them all. Slots have CTX tokens
// each, or share them.
const split = (slots) => ["-np", `${slots}`, "-c", `${slots * CTX}`];
const unified = (slots, requests) => ["-np", `${slots}`, "-c", `${requests * CTX}`, "--kv-unified"];
const q8 = ["-ctk", "q8_0", "-ctv", "q8_0"];
export const PEER_SETTINGS = {
    "-np 8 -fa on": { args: [...split(8), "-fa", "on"] },
    "-np 8 -fa off": { args: [...split(8), "-fa", "off"] },
    "-np 8 -fa on --kv-unified": { args: [...unified(8, 4), "-fa", "on"] },
    "-np 8 -fa off --kv-unified": { args: [...unified(8, 4), "-fa", "off"] },
    "-np 4 -fa on": { args: [...split(4), "-fa", "on"] },
    "-np 4 -fa off": { args: [...split(4), "-fa", "off"] },
    "-np 8 -fa on -ctk q8_0 -ctv q8_0": { args: [...split(8), "-fa", "on", ...q8] },
    "-np 8 -fa on --cache-reuse 256": { args: [...split(8), "-fa", "on", "--cache-reuse", "256"] },
    // With windows: all tokens stay, so a later turn finds its prompt.
    "-np 8 -fa on --swa-full": { args: [...split(8), "-fa", "on", "--swa-full"] },
    "-np 8 -fa on -b 512": { args: [...split(8), "-fa", "on", "-b", "512"] },
    "-np 8 -fa on, OMP_WAIT_POLICY=passive": { args: [...split(8), "-fa", "on"], env: { OMP_WAIT_POLICY: "passive" } },
    "-np 8 -fa on, GOMP_SPINCOUNT=1000": { args: [...split(8), "-fa", "on"], env: { GOMP_SPINCOUNT: "1000" } },
};

export const peerArgs = (model, threads, settings) =>
    ["-m", model, "-t", `${threads}`, "--chat-template", "chatml", "--no-ui", ...settings];
export const quireArgs = (model, threads, settings) =>
    ["serve", "-m", model, "-t", `${threads}`, "-c", `${CTX}`, "--chat-template", "chatml", ...settings];

// The shorter chat of FAMILY_CHAT (workloads.mjs) on a model of another family than llama's. raced:
// which of compare/shapes.mjs.
const chatOn = (raced) => ({
    raced,
    isFamilyChat: true,
    peer: ["-np 8 -fa on", "-np 8 -fa on --kv-unified"],
    ours: { "": [], "session_id": [] },
    rows: [
        { what: "requests/s", field: "requestsPerSecond", floor: 2, aim: 3 },
        { what: "TTFT p95", field: "ttftP95", best: "ttftP95" },
        { what: "peak memory", field: "peakBytes" },
    ],
});

// The settings for each load. Of the peer's settings the fastest counts, and in rows with `best`
// the one with the least of that figure (bench/results/serve-*.md lists all tried ones). Ours are
// the defaults, and the defaults with KV in f16 like the peer's.
export const LOADS = {
    conversations: {
        peer: ["-np 8 -fa on", "-np 8 -fa on --kv-unified"],
        ours: { "": [], "--kv f16": ["--kv", "f16"], "session_id": [] },
        rows: [
            { what: "requests/s", field: "requestsPerSecond", floor: 1.5, aim: 3 },
            { what: "TTFT p95", field: "ttftP95", best: "ttftP95", floor: 0.5, aim: 0.2, isLess: true },
            { what: "peak memory", field: "peakBytes", floor: 0.6, aim: 0.4, isLess: true },
        ],
    },
    arrivals: {
        peer: ["-np 8 -fa on", "-np 8 -fa on --kv-unified"],
        ours: { "": [], "--kv f16": ["--kv", "f16"] },
        rows: [
            { what: "requests/s", field: "requestsPerSecond", floor: 1.0, aim: 1.15 },
            { what: "TTFT p95", field: "ttftP95", best: "ttftP95", floor: 0.8, aim: 0.6, isLess: true },
        ],
    },
    document: {
        peer: ["-np 4 -fa on", "-np 8 -fa on --kv-unified"],
        ours: { "": [], "--kv f16": ["--kv", "f16"] },
        rows: [
            { what: "requests/s", field: "requestsPerSecond", floor: 3, aim: 6 },
            { what: "peak memory", field: "peakBytes", floor: 0.6, aim: 0.4, isLess: true },
        ],
    },
    "chat-gemma3": chatOn("gemma"),
    "chat-qwen3.5": chatOn("qwenDelta"),
};
export const FAMILIES = ["chat-gemma3", "chat-qwen3.5", "turn"];
export const SECOND_TURN = { raced: "qwenDelta", tokens: 4096, answerTokens: 16, rounds: 3, floor: 0.03, aim: 0.015, isLess: true };
export const MINIMUM = { floor: 1.05, aim: 1.0, isLess: true };
export const CACHED_PREFIX = { tokens: 4096, rounds: 5, floor: 0.03, aim: 0.01, isLess: true };
export const FIT = { budgetBytes: 2e9, ctx: 8192, floor: 3, aim: 5 };
