// fit.mjs - how many requests of real lengths fit in a given size of KV: in pages, and in one buffer of the longest
// length each. bench_fit opens them in the real cache until it refuses one.
//
// SPDX-License-Identifier: MIT
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { run } from "../compare/tools.mjs";
import { fresh, ourSide, verdict } from "./race.mjs";
import { tokenize } from "./texts.mjs";

const WORK_FILE = "sharegpt-lengths.txt";

export async function fit(c, report, target) {
    const server = await fresh(ourSide(c, "", []));
    const lengths = [];
    try {
        for (const { input, output_length: answer } of c.data.prompts) {
            lengths.push(Math.min(target.ctx, (await tokenize(server.client, input)).length + answer));
        }
    } finally {
        await server.stop();
    }
    const file = join(c.work, WORK_FILE);
    writeFileSync(file, `${lengths.join("\n")}\n`);
    for (const kv of ["q8", "f16"]) {
        const what = `requests of sharegpt lengths at once in ${target.budgetBytes / 1e9} GB of KV, ${kv}: paged : a buffer of ` +
            `${target.ctx} tokens each`;
        try {
            const args = ["-m", c.model, "--lengths", file, "--kv", kv, "--ctx", `${target.ctx}`, "--budget", `${target.budgetBytes}`];
            const { paged, contiguous, paged_tokens: tokens } = JSON.parse(run(target.program, args).stdout);
            report.add({ what, ours: paged, theirs: contiguous, ratio: paged / contiguous, floor: `>= ${target.floor}x`,
                aim: `>= ${target.aim}x`, verdict: verdict(paged / contiguous, target),
                note: `${(tokens / paged).toFixed(0)} tokens on average` });
        } catch (error) {
            report.add({ what, verdict: "failed", note: error.message.split("\n")[0] });
        }
    }
}
