// hung.mjs - the cost of a failing shared store for requests: the store hangs (SIGSTOP), is dead
// (SIGKILL), or is full.
//
// Three servers get the same prompts in turns, each prompt a new text: one with the store, two
// without. The difference of TTFT between the first two is the store's cost; the difference between
// the last two is the noise of the machine.
//
// SPDX-License-Identifier: MIT
import { randomBytes } from "node:crypto";
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { percentile } from "../serve/summary.mjs";
import { verdict } from "../serve/race.mjs";
import { Server } from "../serve/server.mjs";
import { ask, metrics, say, serveArgs, sleep, text } from "./setting.mjs";

const COST_MS = { floor: 50, aim: 20, isLess: true };
const PROMPT = 512, WARM = 4;
const FULL = "8mb";
const STATES = [
    { name: "works", fail: () => {} },
    { name: "hung (SIGSTOP)", fail: (store) => store.kill("SIGSTOP"), target: COST_MS },
    { name: "dead (SIGKILL)", fail: (store) => store.kill("SIGKILL"), target: COST_MS },
    { name: `full (maxmemory ${FULL}, noeviction)`, fail: () => {}, target: COST_MS,
        args: ["--maxmemory", FULL, "--maxmemory-policy", "noeviction"] },
];

const running = new Set();
process.on("exit", () => running.forEach((child) => child.kill("SIGKILL")));

const freePort = () => new Promise((done) => {
    const server = createServer().listen(0, "127.0.0.1", () => {
        const { port } = server.address();
        server.close(() => done(port));
    });
});

// Name of the store's program; undefined: there is none.
function storeProgram() {
    return ["valkey-server", "redis-server"].find((name) => {
        try {
            execFileSync(name, ["--version"], { stdio: "ignore" });
            return true;
        } catch {
            return false;
        }
    });
}

async function startStore(c, program, args) {
    const port = await freePort();
    const child = spawn(program, ["--port", `${port}`, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir",
        mkdtempSync(join(c.folder, "store-")), ...args], { stdio: ["ignore", "pipe", "ignore"] });
    running.add(child);
    await new Promise((done, fail) => {
        child.stdout.setEncoding("utf8").on("data", (said) => /ready to accept connections/i.test(said) && done());
        child.on("error", fail);
        child.on("close", () => {
            running.delete(child);
            fail(new Error(`${program} ended before it was ready`));
        });
    });
    return { port, child };
}

// The differences in ms, one by prompt.
async function inTurns(c, servers, seed) {
    const differences = { store: [], noise: [], with: [], without: [] };
    for (let i = 0; i < c.prompts; i++) {
        const ms = [];
        for (let k = 0; k < servers.length; k++) {
            const which = (i + k) % servers.length;
            ms[which] = (await ask(servers[which], text(seed + i, PROMPT), 2)).firstMs;
        }
        differences.store.push(ms[0] - ms[1]);
        differences.noise.push(ms[2] - ms[1]);
        differences.with.push(ms[0]);
        differences.without.push(ms[1]);
    }
    return differences;
}

async function oneState(c, program, state, key, seed) {
    const { port, child } = await startStore(c, program, state.args ?? []);
    const args = serveArgs(c, c.model, PROMPT);
    const servers = [];
    try {
        // One by one: a server whose next one does not start is ended, too.
        for (const more of [["--store", `valkey://127.0.0.1:${port}`, "--store-key-file", key, "--store-all"], [], []]) {
            servers.push(await Server.start(c.quire, [...args, ...more]));
        }
        for (let i = 0; i < WARM; i++) {
            for (const server of servers) {
                await ask(server, text(seed - 1 - i, PROMPT), 2);
            }
        }
        await sleep(500); // the computed pages are on their way to the store
        state.fail(child);
        const result = await inTurns(c, servers, seed);
        say((await metrics(servers[0])).split("\n").filter((l) => /^quire_(tier|store)_.*(total|degraded)/.test(l) && !/ 0$/.test(l)).join("\n"));
        return result;
    } finally {
        child.kill("SIGKILL");
        await Promise.all(servers.map((server) => server.stop()));
    }
}

export async function hung(c) {
    const program = storeProgram();
    if (program === undefined) {
        c.report.skip("a shared store that fails", "neither valkey-server nor redis-server is installed");
        return;
    }
    const key = join(c.folder, "store.key");
    writeFileSync(key, randomBytes(32), { mode: 0o600 });
    for (const [i, state] of STATES.entries()) {
        const { store, noise, with: slow, without } = await oneState(c, program, state, key, 10000 * (i + 1));
        const cost = percentile(store, 0.99);
        c.report.add({ what: `TTFT ms over computing, p99 of ${c.prompts} prompts of ${PROMPT} tokens, the store ${state.name} : without a store twice`,
            ours: cost, theirs: percentile(noise, 0.99), floor: state.target && `<= ${state.target.floor} ms`,
            aim: state.target && `<= ${state.target.aim} ms`, verdict: state.target ? verdict(cost, state.target) : "reported",
            note: `median ${percentile(store, 0.5).toFixed(1)}, most ${percentile(store, 1).toFixed(1)}; TTFT p99 ` +
                `${percentile(slow, 0.99).toFixed(0)} with, ${percentile(without, 0.99).toFixed(0)} without` });
    }
}
