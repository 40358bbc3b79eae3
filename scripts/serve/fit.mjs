// fit.mjs - how many requests of real lengths fit in a given size of KV: in pages, and in one
// buffer of the longest length each. bench_fit opens them in the real cache until it refuses one.
//
// The lengths are those of the prompts in sharegpt-prompts.json. The default model's tokenizer
// counts the tokens where the default model was fetched, else the tokenizer of a generated model,
// whose made-up vocabulary cuts a text into twice as many tokens.
//
// SPDX-License-Identifier: MIT
import { existsSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { run } from "../compare/tools.mjs";
import { bound, fresh, ourSide, verdict } from "./race.mjs";
import { tokenize } from "./texts.mjs";

const WORK_FILE = "sharegpt-lengths.txt";

async function lengthsBy(c, model, ctx) {
    const server = await fresh(ourSide({ ...c, model }, "", ["-c", "2048"]));
    const lengths = [];
    try {
        for (const { input, output_length: answer } of c.data.prompts) {
            lengths.push(Math.min(ctx, (await tokenize(server.client, input)).length + answer));
        }
    } finally {
        await server.stop();
    }
    return lengths;
}

function fitRow(c, target, kv, file) {
    const args = ["-m", c.model, "--lengths", file, "--kv", kv, "--ctx", `${target.ctx}`, "--budget", `${target.budgetBytes}`];
    const { paged, contiguous, paged_tokens: tokens } = JSON.parse(run(target.program, args).stdout);
    return { ours: paged, theirs: contiguous, ratio: paged / contiguous, floor: bound(target.floor, target), aim: bound(target.aim, target),
        verdict: verdict(paged / contiguous, target), note: `${(tokens / paged).toFixed(0)} tokens each on average` };
}

export async function fit(c, report, target) {
    const [name, model] = existsSync(c.realModel) ? ["TinyLlama's tokenizer", c.realModel] : ["the generated tokenizer", c.model];
    const file = join(c.work, WORK_FILE);
    writeFileSync(file, `${(await lengthsBy(c, model, target.ctx)).join("\n")}\n`);
    for (const kv of ["q8", "f16"]) {
        const what = `requests of sharegpt lengths (${name}) at once in ${target.budgetBytes / 1e9} GB of KV, ${kv}: ` +
            `paged : a buffer of ${target.ctx} tokens each`;
        try {
            report.add({ what, ...fitRow(c, target, kv, file) });
        } catch (error) {
            report.add({ what, verdict: "failed", note: error.message.split("\n")[0] });
        }
    }
}
