// table.mjs - the tables of `make retention`, as Markdown.
//
// SPDX-License-Identifier: MIT
import { floorRows } from "./floors.mjs";
import { shown } from "./policies.mjs";

const percent = (v, digits = 0) => (v === undefined ? "" : `${(100 * v).toFixed(digits)} %`);
const count = (n) => n.toLocaleString("en-US");
const range = (i, format) => `${format(i.value)} (${format(i.low)} to ${format(i.high)})`;
const number = (digits) => (v) => v.toFixed(digits);
const bare = (digits) => (v) => (100 * v).toFixed(digits);
// Kept tokens, and the share of them that a step reads.
const kept = (r) => (r === undefined ? "" : `${percent(r.kept)}${r.read < 1 ? `, ${percent(r.read)} read` : ""}`);
const answers = (a) => (a === undefined ? "" : `${a.right} of ${a.texts}: ${percent(a.share.value)} (${bare(0)(a.share.low)} to ${bare(0)(a.share.high)})`);
const mark = (policy) => `\`${shown(policy)}\``;
const row = (columns) => `| ${columns.join(" | ")} |`;

// Text in lines of at most 100 columns.
const wrapped = (text) => text.replace(/(.{1,100})(?: |$)/g, "$1\n").trimEnd();

function continuationTable({ model: m, continuation: c }) {
    const from = m.scoreFrom ?? m.ctx / 2;
    return [`### ${m.name}: continuation`, "", wrapped(`${m.textName}, ${c.chunks} chunks of ${count(m.ctx)} tokens, condensed every ` +
        `${count(m.chunk)} tokens; what follows ${count(from)} tokens is scored, ${count(c.scored)} tokens in all. Perplexity with all ` +
        `tokens: ${range(c.ppl, number(2))}.${m.isShort ? " Formats q6 to q3 have --kv-recent 0 --kv-sinks 0." : ""}`), "",
    row(["policy", "kept", "bytes at the end", "most bytes", "KL divergence", "perplexity, ratio", "same top token, %"]),
    row(["---", "---:", "---:", "---:", "---:", "---:", "---:"]),
    ...c.rows.map((r) => row([mark(r.policy), kept(r), percent(r.state), percent(r.peak), range(r.kld, number(4)),
        range(r.ppl, number(4)), range(r.top1, bare(1))]))].join("\n");
}

function tasksTable({ model: m, tasks: t }) {
    const lines = [`### ${m.name}: answers`, "", "Texts that all tokens answer:", "",
        row(["task", ...t.lengths.map((l) => `${count(l)} bytes`)]), row(["---", ...t.lengths.map(() => "---:")]),
        ...t.solved.map((s) => row([s.task, ...s.lengths.map((x) => (x === undefined ? "" : `${x.solved} of ${x.asked}`))])), "",
        wrapped(`Of these, those that a policy answers${t.tasks.length > 1 ? ", all tasks together" : ""}. Bytes are those of texts of ` +
        `${count(t.longest ?? t.lengths.at(-1))} bytes.`), "",
        row(["policy", "question", "kept", "bytes at the end", "most bytes", ...t.lengths.map((l) => `${count(l)} bytes`)]),
        row(["---", "---", "---:", "---:", "---:", ...t.lengths.map(() => "---:")]),
        ...t.rows.map((r) => row([mark(r.policy), r.where, kept(r.longest), percent(r.longest?.state), percent(r.longest?.peak),
            ...r.byLength.map(answers)]))];
    if (t.tasks.length > 1 && t.longest !== undefined) {
        lines.push("", `By task, ${count(t.longest)} bytes:`, "", row(["policy", "question", ...t.tasks]), row(["---", "---", ...t.tasks.map(() => "---:")]),
            ...t.rows.filter((r) => r.longest !== undefined).map((r) => row([mark(r.policy), r.where, ...r.byTask.map(answers)])));
    }
    return lines.join("\n");
}

function conversationsTable({ model: m, conversations: c }) {
    return [`### ${m.name}: conversations`, "", wrapped(`${c.texts} conversations of four turns, ${c.tokens} tokens on average; the last ` +
        `answer of ${m.turn.answer} tokens is read token by token. The text is condensed every ${m.turn.chunk} tokens.`), "",
    row(["policy", "conversations", "kept", "bytes at the end", "most bytes", "same top token, %", "KL divergence"]),
    row(["---", "---:", "---:", "---:", "---:", "---:", "---:"]),
    ...c.rows.map((r) => row([mark(r.policy), r.texts, kept(r), percent(r.state), percent(r.peak), range(r.agreement, bare(1)),
        range(r.kld, number(4))]))].join("\n");
}

function refusedList(groups) {
    const lines = groups.flatMap((g) => g.refused.map(([policy, message]) => `- ${g.model.name}, ${mark(policy)}: ${message.replace(/^quire: /, "")}`));
    return lines.length === 0 ? [] : [["### Refused", "", ...lines.map((l) => wrapped(l).replaceAll("\n", "\n  "))].join("\n")];
}

// One text of all tables.
export function markdown(cells, groups, asked) {
    const floors = floorRows(cells, groups.map((g) => g.model), asked);
    const machines = [...new Set(groups.flatMap((g) => g.machines))].sort();
    const head = wrapped("Brackets are 95 % intervals. Kept: tokens kept at the end of a text, as a share of its tokens. Read: pages behind layer 1 that a step of one token reads, as a share of the pages before the step. Bytes at the end and most " +
        `bytes: bytes of pages, as a share of the bytes of all tokens in f16. For sealed formats with all tokens, the bytes at the end leave out copies in 8 bit, and the most bytes include these copies. Measured with \`make retention\` on ${machines.join("; ")}.`);
    return [head, ...(floors.length === 0 ? [] : [["### Floors and aims", "", row(["row", "measured", "floor", "aim", ""]),
        row(["---", "---:", "---:", "---:", "---"]), ...floors.map(row)].join("\n")]),
    ...groups.flatMap((g) => [g.tasks && tasksTable(g), g.continuation && continuationTable(g), g.conversations && conversationsTable(g)]
        .filter((t) => t)), ...refusedList(groups)].join("\n\n");
}
