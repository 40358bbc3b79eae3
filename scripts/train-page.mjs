// train-page.mjs - a page with the loss curves of training runs side by side.
//
//   node scripts/train-page.mjs -o page.html [--title TEXT] RUN.jsonl [RUN.jsonl ...]
//
// A RUN.jsonl is the output of `quire train --json`. The page loads nothing from outside.
//
// SPDX-License-Identifier: MIT
import { writeFileSync } from "node:fs";
import { basename } from "node:path";
import { parseArgs } from "node:util";
import { curvesPage } from "./schemes/curves.mjs";
import { lastHeld, readLog } from "./schemes/runs.mjs";

const { values: options, positionals: paths } = parseArgs({ allowPositionals: true, options: {
    out: { type: "string", short: "o" }, title: { type: "string", default: "Training runs" } } });
if (!options.out || paths.length === 0) {
    process.stderr.write("train-page: -o FILE and logs of quire train --json are needed\n");
    process.exit(2);
}
const runs = paths.map((path) => ({ name: basename(path).replace(/\.jsonl?$/, ""), log: readLog(path) }));
const empty = runs.find((r) => r.log.train.length === 0);
if (empty) {
    process.stderr.write(`train-page: ${empty.name}: no line of quire train --json\n`);
    process.exit(1);
}
const rows = [["run", "tokens", "training loss", "validation loss"], ...runs.map((r) =>
    [r.name, r.log.train.at(-1)[0].toLocaleString("en"), r.log.train.at(-1)[1].toFixed(4), lastHeld(r.log)?.toFixed(4) ?? ""])];
writeFileSync(options.out, curvesPage({ title: options.title, about: `${runs.length} runs`, runs,
    parts: [{ id: "runs", kind: "table", size: "", title: "At the end", note: "", rows }] }));
