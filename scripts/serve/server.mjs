// server.mjs - a server's process: started on a free port, watched, ended by its id.
//
// SPDX-License-Identifier: MIT
import { spawn } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { Client } from "./client.mjs";

const READY_MS = 120 * 1000;
const END_MS = 60 * 1000;
const TAIL_CHARS = 4000;
const TICKS_PER_SECOND = 100; // USER_HZ of Linux

const running = new Set();
process.on("exit", () => running.forEach((child) => child.kill("SIGKILL")));
for (const [signal, status] of [["SIGINT", 130], ["SIGTERM", 143]]) {
    process.on(signal, () => process.exit(status)); // the handler above ends all running servers
}

// Both programs say `http://HOST:PORT` once they listen.
const LISTENING = /https?:\/\/[^\s:/]+:(\d+)[\s/]/;

export class Server {
    // args: without host and port. Resolves when /health says 200.
    static async start(program, args, env = {}) {
        const server = new Server();
        server.command = [program, ...args].join(" ");
        server.said = "";
        server.child = spawn(program, [...args, "--host", "127.0.0.1", "--port", "0"], {
            stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, ...env } });
        running.add(server.child);
        server.ended = new Promise((done) => {
            server.child.on("error", (error) => done({ error: error.message }));
            server.child.on("close", (status, signal) => done({ status, signal }));
        }).finally(() => running.delete(server.child));
        try {
            server.port = await server.listening();
            server.client = new Client(server.port);
            await server.ready();
        } catch (error) {
            server.child.kill("SIGKILL");
            const last = server.said.trim().split("\n").at(-1);
            throw new Error(`${server.command}: ${error.message}${last ? `, saying: ${last}` : ""}`);
        }
        return server;
    }

    get pid() {
        return this.child.pid;
    }

    listening() {
        return new Promise((done, fail) => {
            const hear = (text) => {
                this.said = (this.said + text).slice(-TAIL_CHARS);
                const port = this.said.match(LISTENING)?.[1];
                if (port && port !== "0") {
                    done(Number(port));
                }
            };
            this.child.stdout.setEncoding("utf8").on("data", hear);
            this.child.stderr.setEncoding("utf8").on("data", hear);
            this.ended.then((end) => fail(new Error(`it ended with ${end.error ?? end.status ?? end.signal}`)));
            setTimeout(() => fail(new Error("it did not say where it listens")), READY_MS).unref();
        });
    }

    async ready() {
        for (const limit = Date.now() + READY_MS; Date.now() < limit;) {
            const { status } = await this.client.json("GET", "/health");
            if (status === 200) {
                return;
            }
            await new Promise((done) => setTimeout(done, 50));
        }
        throw new Error("/health never said 200");
    }

    // Peak of resident memory so far of the process and its children, in bytes.
    peakBytes() {
        return memoryOf(this.pid, "VmHWM");
    }

    residentBytes() {
        return memoryOf(this.pid, "VmRSS");
    }

    // Processor time used so far in seconds: the cost of a load, independent of other load on the
    // machine.
    cpuSeconds() {
        const fields = read(`/proc/${this.pid}/stat`).split(") ").at(-1).split(" ");
        return (Number(fields[11]) + Number(fields[12])) / TICKS_PER_SECOND;
    }

    // SIGTERM, and wait for the end: { status, signal, isKilled }.
    async stop() {
        this.client?.close();
        this.child.kill("SIGTERM");
        let isKilled = false;
        const alarm = setTimeout(() => {
            isKilled = true;
            this.child.kill("SIGKILL");
        }, END_MS);
        const end = await this.ended;
        clearTimeout(alarm);
        return { ...end, isKilled };
    }
}

const read = (path) => {
    try {
        return readFileSync(path, "utf8");
    } catch {
        return ""; // a thread or process that has just ended
    }
};

function memoryOf(pid, field) {
    const own = read(`/proc/${pid}/status`).match(new RegExp(`^${field}:\\s+(\\d+) kB`, "m"))?.[1] ?? 0;
    const children = readdirSync(`/proc/${pid}/task`).flatMap((task) =>
        read(`/proc/${pid}/task/${task}/children`).split(" ").filter(Boolean));
    return Number(own) * 1024 + children.reduce((sum, child) => sum + memoryOf(child, field), 0);
}
