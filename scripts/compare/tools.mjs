// tools.mjs - running the two sides and keeping the books of one comparison.
//
// SPDX-License-Identifier: MIT
import { spawnSync } from "node:child_process";
import { cpus, totalmem } from "node:os";
import { existsSync, mkdirSync, readFileSync, readdirSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { spawnOwn } from "./children.mjs";

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

// The peak of a process's resident memory so far, in bytes; 0 once it is gone.
function residentPeak(pid) {
    try {
        return Number(readFileSync(`/proc/${pid}/status`, "utf8").match(/^VmHWM:\s+(\d+) kB/m)?.[1] ?? 0) * 1024;
    } catch {
        return 0;
    }
}

// Run a program and watch its resident memory from outside. Does not throw when it fails: the
// status tells.
export function watch(program, args) {
    return new Promise((done, fail) => {
        const child = spawnOwn(program, args, { stdio: ["ignore", "pipe", "pipe"] });
        const result = { stdout: "", stderr: "", peakBytes: 0 };
        const look = () => {
            result.peakBytes = Math.max(result.peakBytes, residentPeak(child.pid));
        };
        const timer = setInterval(look, 50);
        child.stdout.setEncoding("utf8").on("data", (text) => {
            look(); // it is still there while it prints
            result.stdout += text;
        });
        child.stderr.setEncoding("utf8").on("data", (text) => {
            result.stderr += text;
        });
        child.on("error", (error) => {
            clearInterval(timer);
            fail(new Error(`${program}: ${error.message}`));
        });
        child.on("close", (status, signal) => {
            clearInterval(timer);
            done({ ...result, status: status ?? signal });
        });
    });
}

// A model of a named shape with random weights, made once and kept in folder. more: the type of the
// output and of part of V and ffn_down, as in mixes such as Q4_K_M. toy: further arguments of the
// generator, for a small model.
export function shapeModel(generator, folder, shape, type, more, toy) {
    const path = join(folder, `${shape}-${toy ? "toy" : "shape"}-${type}${more ? `-${more}` : ""}.gguf`);
    if (!existsSync(path)) {
        process.stderr.write(`making ${path}\n`);
        try {
            run(generator, ["--shape", shape, "--type", type, ...(more ? ["--type-more", more] : []), "--ctx", "65536", "--seed", "1",
                ...(toy ?? []), "-o", `${path}.part`]);
            renameSync(`${path}.part`, path);
        } finally {
            rmSync(`${path}.part`, { force: true });
        }
    }
    return path;
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

// The machine with the version of ggml in a program of ours and its threads: the head of a report.
export function measuredOn(quire, threads) {
    const ggml = run(quire, ["--version"]).stdout.match(/ggml ([\d.]+)/)?.[1] ?? "unknown";
    return { ...machine(), threads, ggml };
}

// Where models, generated files and the peers' programs are; see scripts/setup.sh.
export function places(root) {
    const cache = join(process.env.XDG_CACHE_HOME || join(process.env.HOME || "/tmp", ".cache"), "quire");
    const work = join(cache, "compare");
    mkdirSync(work, { recursive: true });
    return { root, cache, work };
}

// Path of a model or text by name: from the repository, the cache folder, or QUIRE_MODELS_DIR and
// the folders in it. A name that is in none of them gives a path that does not exist; need() and
// its like name it.
export function asset(at, name) {
    const added = process.env.QUIRE_MODELS_DIR;
    const inside = added && existsSync(added)
        ? readdirSync(added, { withFileTypes: true }).filter((e) => e.isDirectory()).map((e) => join(added, e.name)) : [];
    const folders = [join(at.root, "tests", "data"), join(at.root, "bench", "data"), join(at.cache, "models"),
        ...(added ? [added] : []), ...inside];
    return folders.map((folder) => join(folder, name)).find((path) => existsSync(path)) ?? join(added ?? "$QUIRE_MODELS_DIR", name);
}

export function missing(path) {
    return `${path} is missing: QUIRE_MODELS_DIR names a folder of models and texts`;
}

// The rows of the report. A row meets its floor (or its aim as well) or misses it, is reported
// without one, is skipped by name, or failed because a program did.
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
            `${facts.threads} threads${facts.ggml ? `; peer: llama.cpp (ggml ${facts.ggml})` : ""}.\n\n`;
        const lines = ["| what | quire | compared with | ratio | floor | aim | verdict |", "|---|---:|---:|---:|---|---|---|"];
        for (const r of this.rows) {
            const cell = (v) => (v === undefined || v === null ? "" : typeof v === "number" ? number(v) : v);
            lines.push(`| ${r.what}${r.note ? ` (${r.note})` : ""} | ${cell(r.ours)} | ${cell(r.theirs)} | ` +
                `${cell(r.ratio)} | ${r.floor ?? ""} | ${r.aim ?? ""} | ${r.verdict} |`);
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
    return `${row.verdict.padEnd(8)} ${row.what}${part("quire", row.ours)}${part("compared with", row.theirs)}` +
        `${part("ratio", row.ratio)}${part("floor", row.floor)}${part("aim", row.aim)}${row.note ? `  (${row.note})` : ""}`;
}

export function need(report, what, ...paths) {
    const absent = paths.find((p) => !existsSync(p));
    if (absent) {
        report.skip(what, missing(absent));
        return false;
    }
    return true;
}
