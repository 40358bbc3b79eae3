// tools.mjs - running the two sides and keeping the books of one comparison.
//
// SPDX-License-Identifier: MIT
import { spawnSync } from "node:child_process";
import { cpus, totalmem } from "node:os";
import { existsSync, mkdirSync } from "node:fs";
import { join } from "node:path";

// Run a program to its end; throws with the last lines of its stderr when it fails.
export function run(program, args, options = {}) {
    const result = spawnSync(program, args, {
        encoding: "utf8",
        maxBuffer: 256 * 1024 * 1024,
        stdio: ["ignore", "pipe", "pipe"],
        ...options,
    });
    if (result.error) {
        throw new Error(`${program}: ${result.error.message}`);
    }
    if (result.status !== 0) {
        const tail = result.stderr.trim().split("\n").slice(-3).join("\n  ");
        throw new Error(`${program} ${args.join(" ")}\n  exit ${result.status ?? result.signal}: ${tail}`);
    }
    return { stdout: result.stdout, stderr: result.stderr };
}

export function runJson(program, args) {
    return JSON.parse(run(program, args).stdout);
}

export function median(values) {
    const sorted = [...values].sort((a, b) => a - b);
    const middle = Math.floor(sorted.length / 2);
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

export function machine() {
    return {
        cpu: cpus()[0]?.model.trim() ?? "unknown CPU",
        cores: cpus().length,
        memory_gib: Math.round(totalmem() / 2 ** 30),
        date: new Date().toISOString().slice(0, 10),
    };
}

// Where models, generated files and the peers' programs are; see scripts/setup.sh.
export function places(root) {
    const cache = join(process.env.XDG_CACHE_HOME || join(process.env.HOME || "/tmp", ".cache"), "quire");
    const work = join(cache, "compare");
    mkdirSync(work, { recursive: true });
    return { root, cache, work, shared: process.env.QUIRE_SHARED ?? join(root, "..", "shared") };
}

// The rows of the report. A row meets its bar or misses it, is reported without a bar, is skipped by name, or
// failed because a program did.
export class Report {
    constructor() {
        this.rows = [];
    }

    add(row) {
        this.rows.push(row);
        process.stderr.write(`${format(row)}\n`);
    }

    skip(what, why) {
        this.add({ what, verdict: "skipped", note: why });
    }

    markdown(facts) {
        const head = `Machine: ${facts.cpu}, ${facts.cores} cores, ${facts.memory_gib} GiB; ${facts.date}; ` +
            `${facts.threads} threads; peer: llama.cpp (ggml ${facts.ggml}).\n\n`;
        const lines = ["| what | quire | llama.cpp | ratio | bar | verdict |", "|---|---:|---:|---:|---|---|"];
        for (const r of this.rows) {
            const cell = (v) => (v === undefined || v === null ? "" : typeof v === "number" ? number(v) : v);
            lines.push(`| ${r.what}${r.note ? ` (${r.note})` : ""} | ${cell(r.ours)} | ${cell(r.theirs)} | ` +
                `${cell(r.ratio)} | ${r.bar ?? ""} | ${r.verdict} |`);
        }
        return `${head}${lines.join("\n")}\n`;
    }

    failed() {
        return this.rows.filter((r) => r.verdict === "missed" || r.verdict === "failed").length;
    }
}

export function number(v) {
    if (!Number.isFinite(v)) {
        return String(v);
    }
    const magnitude = Math.abs(v);
    if (magnitude !== 0 && (magnitude < 1e-3 || magnitude >= 1e7)) {
        return v.toExponential(3);
    }
    return magnitude >= 1000 ? v.toFixed(0) : magnitude >= 100 ? v.toFixed(1) : v.toFixed(4);
}

function format(row) {
    const part = (name, v) => (v === undefined ? "" : `  ${name} ${typeof v === "number" ? number(v) : v}`);
    return `${row.verdict.padEnd(8)} ${row.what}${part("quire", row.ours)}${part("llama.cpp", row.theirs)}` +
        `${part("ratio", row.ratio)}${row.bar ? `  bar ${row.bar}` : ""}${row.note ? `  (${row.note})` : ""}`;
}

export function need(report, what, ...paths) {
    const missing = paths.find((p) => !existsSync(p));
    if (missing) {
        report.skip(what, `${missing} is missing`);
        return false;
    }
    return true;
}
