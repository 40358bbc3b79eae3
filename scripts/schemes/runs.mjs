// runs.mjs - training runs that go on where they were stopped, and their logs.
//
// A run has the files NAME.yaml, .jsonl (the output of quire train --json), .checkpoint and .gguf
// in the folder of its settings. The .gguf is written at the end, so a run with one is complete. A
// run that was stopped prints the steps since its last checkpoint again; the last line of a step
// counts.
//
// SPDX-License-Identifier: MIT
import { spawn } from "node:child_process";
import { closeSync, existsSync, openSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { runYaml } from "./plan.mjs";

const STOP_STATUS = 143; // as a shell says of SIGTERM

const children = new Set();
let isStopping = false;

function stopRuns() {
    isStopping = true;
    children.forEach((child) => child.kill("SIGTERM"));
}

// Ctrl-C and SIGTERM: each run writes its checkpoint; then this process ends. Other handlers, which
// end the process at once, are taken away: if this process ended first, its runs and those of the
// next call would write the same files.
export function stopRunsOnSignals() {
    for (const signal of ["SIGINT", "SIGTERM"]) {
        process.removeAllListeners(signal);
        process.on(signal, () => {
            stopRuns();
            if (children.size === 0) {
                process.exit(STOP_STATUS);
            }
        });
    }
}

// Run a program and append its stdout to a file. Resolves to the exit status. The program's stderr
// goes to ours.
function runInto(program, args, path) {
    const out = openSync(path, "a");
    return new Promise((done, fail) => {
        const child = spawn(program, args, { stdio: ["ignore", out, "inherit"] });
        children.add(child);
        child.on("error", fail);
        child.on("close", (status, signal) => {
            children.delete(child);
            done(status ?? signal);
        });
    }).finally(() => closeSync(out));
}

export const runName = (scheme, seed) => `${scheme}-${seed}`;
export const recallName = (scheme, seed) => `${runName(scheme, seed)}-recall`;
export const runFiles = (folder, name) => ({ config: join(folder, `${name}.yaml`), log: join(folder, `${name}.jsonl`),
    checkpoint: join(folder, `${name}.checkpoint`), model: join(folder, `${name}.gguf`) });

// All runs take the vocabulary that one small run learns from the text, or without a text from
// tasks.
export async function sharedTokenizer(c, settings) {
    if (!settings.tokenizer.startsWith("bpe:")) {
        return settings.tokenizer;
    }
    const checkpoint = join(c.folder, "vocabulary"), file = `${checkpoint}.tokenizer.gguf`;
    if (!existsSync(file)) {
        const text = settings.data ? ["--data", settings.data] : ["--task-kinds", settings.task_kinds];
        const status = await runInto(c.quire, ["train", ...text, "--tokenizer", settings.tokenizer, "--checkpoint", checkpoint, "--threads",
            "1", "--scheme", "mha", "--n-layer", "1", "--d-model", "32", "--n-head", "1", "--d-ff", "32", "--ctx", "64", "--steps", "1",
            "--json"], join(c.folder, "vocabulary.jsonl"));
        if (!existsSync(file)) {
            throw new Error(`quire train made no vocabulary: exit ${status}`);
        }
    }
    return file;
}

async function runOne(c, settings, { scheme, seed }, name) {
    const files = runFiles(c.folder, name);
    if (existsSync(files.model) || isStopping) {
        return;
    }
    writeFileSync(files.config, runYaml(settings, scheme, seed, { checkpoint: files.checkpoint, output: files.model, threads: c.threads }));
    process.stderr.write(`${name}: ${files.log}\n`);
    const status = await runInto(c.quire, ["train", files.config, "--json"], files.log);
    if (isStopping) {
        return;
    }
    if (status !== 0) {
        throw new Error(`${name}: quire train ended with ${status}`);
    }
    process.stderr.write(`${name}: validation loss ${lastHeld(readLog(files.log))?.toFixed(4)}\n`);
}

// All runs, c.jobs of them at once, each followed by its run for recall, if there is one, and by
// finish(run). A run that fails stops the others.
export async function trainAll(c, settings, recall, list, finish) {
    const waiting = [...list];
    let failure;
    await Promise.all(Array.from({ length: c.jobs }, async () => {
        while (waiting.length > 0 && !isStopping) {
            const run = waiting.shift();
            const one = async () => {
                await runOne(c, settings, run, runName(run.scheme, run.seed));
                await (recall && runOne(c, recall, run, recallName(run.scheme, run.seed)));
                await (isStopping || finish(run));
            };
            await one().catch((error) => {
                failure ??= error;
                stopRuns();
            });
        }
    }));
    if (failure) {
        throw failure;
    }
    if (isStopping) {
        process.stderr.write("stopped; the same command goes on\n");
        process.exit(STOP_STATUS);
    }
}

// ---- logs ----

// { train: [[tokens, loss]], held: [[tokens, loss]] } in the order of steps, of the lines of quire
// train --json. Half a line, the last one of a run that was killed, is left out.
export function parseLog(text) {
    const train = new Map(), held = new Map(), tokensOf = new Map();
    for (const line of text.split("\n")) {
        let said;
        try {
            said = JSON.parse(line);
        } catch {
            continue;
        }
        if (Number.isFinite(said.held_loss)) {
            held.set(said.step, said.held_loss);
        } else if (Number.isFinite(said.loss)) {
            train.set(said.step, said.loss);
            tokensOf.set(said.step, said.tokens);
        }
    }
    const steps = [...tokensOf.keys()];
    const perStep = steps.length ? tokensOf.get(Math.max(...steps)) / Math.max(...steps) : 1;
    const points = (map) => [...map].sort((a, b) => a[0] - b[0]).map(([step, loss]) => [Math.round(step * perStep), loss]);
    return { train: points(train), held: points(held) };
}

// About the seconds of training in a log. A line gives its tokens divided by its rate; the rate is
// the mean of the process so far.
export function secondsOf(text) {
    let seconds = 0, before = 0;
    for (const line of text.split("\n")) {
        try {
            const said = JSON.parse(line);
            if (said.tokens > before && said.tokens_per_s > 0) {
                seconds += (said.tokens - before) / said.tokens_per_s;
                before = said.tokens;
            }
        } catch {
            continue;
        }
    }
    return seconds;
}

export const readLog = (path) => parseLog(readFileSync(path, "utf8"));
export const lastHeld = (log) => log.held.at(-1)?.[1];
