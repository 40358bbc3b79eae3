// test_compare.mjs - scripts/compare/memory.mjs: what the row of KV bytes asks for, both sides of
// its bound, and the row of a small model with windows.
//
//   node test_compare.mjs --quire PROGRAM --generator PROGRAM
//
// SPDX-License-Identifier: MIT
import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { cacheBytes } from "../../scripts/compare/memory.mjs";
import { Report, run } from "../../scripts/compare/tools.mjs";

const { values: args } = parseArgs({ options: { quire: { type: "string" }, generator: { type: "string" } } });
const folder = mkdtempSync(join(tmpdir(), "quire-compare-"));

function rowOf(quire, model, ctx) {
    const report = new Report();
    cacheBytes({ quire, threads: 1 }, report, { name: "a model", model, ctx, kv: "f16" });
    assert.equal(report.rows.length, 1);
    return report.rows[0];
}

// A program that holds so many bytes where quire info computes 1,000, and keeps its arguments.
function double(heldBytes) {
    const path = join(folder, "quire");
    const info = { need: { kv_bytes: 1000 }, kv: [{ kv: "f16", bits_per_value: 16 }], n_stored_layers: 2, n_kv_head: 1, d_k: 1, d_v: 1 };
    writeFileSync(path, `#!/bin/sh\necho "$@" >>'${folder}/asked'\ncase $1 in\ninfo) echo '${JSON.stringify(info)}' ;;\n` +
        `*) echo '[{"kv_peak_bytes": ${heldBytes}}]' ;;\nesac\n`, { mode: 0o755 });
    writeFileSync(join(folder, "asked"), "");
    return path;
}

function testBoundHasTwoSides() {
    for (const [held, verdict] of [[1000, "met"], [981, "met"], [1019, "met"], [979, "missed"], [1021, "missed"], [920, "missed"], [0, "missed"]]) {
        const row = rowOf(double(held), folder, 4096);
        assert.equal(row.verdict, verdict, `${held} bytes of 1000`);
        assert.equal(row.ours, held);
        assert.equal(row.theirs, 2 * 2 * 2 * (4096 - 50)); // 2 layers, K and V, 2 bytes
        assert.match(row.floor, /^0\.98 to 1\.02x/);
    }
}

// The step that quire info counts is computed: 512 tokens of a prompt, into the context's last
// page.
function testStepIsOfThePrompt() {
    rowOf(double(1000), folder, 4096);
    const asked = readFileSync(join(folder, "asked"), "utf8").trim().split("\n").map((line) => line.split(" "));
    const value = (words, name) => words[words.indexOf(name) + 1];
    assert.deepEqual(asked.map((words) => words[0]), ["info", "bench"]);
    assert.equal(value(asked[0], "-c"), "4096");
    assert.equal(value(asked[1], "-d"), `${4096 - 50 - 512}`);
    assert.equal(value(asked[1], "-p"), "512");
    assert.equal(value(asked[1], "-n"), "0");
}

function testModelWithWindows() {
    const model = join(folder, "windows.gguf");
    run(args.generator, ["--family", "gemma3", "--type", "q8_0", "--ctx", "8192", "--seed", "1", "-o", model]);
    const row = rowOf(args.quire, model, 8192);
    assert.equal(row.verdict, "met", row.note);
    assert.match(row.note, /ratio to it 1\.0000/); // whole pages, all of which are counted
    assert.ok(row.ratio < 0.9, `windows keep ${row.ratio} of all tokens`);
}

try {
    testBoundHasTwoSides();
    testStepIsOfThePrompt();
    testModelWithWindows();
} finally {
    rmSync(folder, { recursive: true, force: true });
}
