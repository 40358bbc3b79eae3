// kept.mjs - results of finished runs as small files, so that the hours of a comparison can be
// spread over machines.
//
// A file RESULTS/SETTINGS/NAME.json has all that the tables and pages need of one run, and the
// settings, the digest of the texts and the machine. A run counts as finished where such a file has
// the settings and texts of the comparison. No file names a path.
//
// SPDX-License-Identifier: MIT
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { thinned } from "./curves.mjs";

const VERSION = 1;

export const keptPath = (results, name, run) => join(results, name, `${run}.json`);

// Curves are for pictures; validation losses stay as they are.
const rounded = (points) => points.map(([x, y]) => [x, Number(y.toFixed(5))]);

// Write the result of a run, whole or not at all.
export function keep(path, facts, machine, result) {
    const { scheme, seed, log, loss, cacheBytes, flop, parameters, recall, gates, seconds } = result;
    const record = { version: VERSION, scheme, seed, ...facts, machine, seconds: Math.round(seconds), parameters, cacheBytes, flop, loss,
        recall, gates, log: { train: rounded(thinned(log.train)), held: log.held } };
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(`${path}.partial`, `${JSON.stringify(record)}\n`);
    renameSync(`${path}.partial`, path);
}

// The result in a file, or undefined: there is none, or it is of other settings. A damaged file is
// an error.
export function keptResult(path, facts) {
    if (!existsSync(path)) {
        return undefined;
    }
    let record;
    try {
        record = JSON.parse(readFileSync(path, "utf8"));
    } catch (error) {
        throw new Error(`${path}: ${error.message}; remove the file, and the run is trained again`);
    }
    const same = record.version === VERSION && JSON.stringify({ settings: record.settings, texts: record.texts }) === JSON.stringify(facts);
    return same ? record : undefined;
}

// One line of text: the machines and their runs.
export function machinesText(runs) {
    const by = new Map();
    for (const { name, machine } of runs) {
        const key = `${machine.cpu}, ${machine.cores} cores, ${machine.date}`;
        by.set(key, [...(by.get(key) ?? []), name]);
    }
    return ["| machine | runs |", "|---|---|", ...[...by].map(([key, names]) => `| ${key} | ${names.join(", ")} |`)].join("\n");
}
