// gather.mjs - the measured cells of `make retention` as rows of tables and panels.
//
// SPDX-License-Identifier: MIT
import { ofLog, ofMean, ofShare, ofTokens } from "./intervals.mjs";
import { fullCells, policyCells } from "./plan.mjs";

const sum = (values) => values.reduce((a, b) => a + b, 0);
const SOLVES = 0.5; // of the texts of a task: with all tokens fewer are solved, so a policy has nothing to lose

// The weighted mean of a figure over the cells that have it.
function over(results, key, weight) {
    const some = results.filter((r) => typeof r[key] === "number");
    const total = sum(some.map(weight));
    return total > 0 ? sum(some.map((r) => r[key] * weight(r))) / total : undefined;
}

const figures = (results, weight) => Object.fromEntries(["kept", "read", "peak", "state"].map((key) => [key, over(results, key, weight)]));

// Of the texts of a task with a length: asked, and solved with all tokens. undefined: not measured.
export function solvedOf(cells, m, task, length, asked) {
    const all = fullCells([m], { ...asked, parts: ["tasks"] }).filter((c) => c.task === task && c.length === length);
    const results = all.map((c) => cells.result(c)).filter((r) => r !== undefined);
    return results.length === 0 ? undefined : { asked: sum(results.map((r) => r.texts)), solved: sum(results.map((r) => r.solved.length)) };
}

// Whether policies are asked this task: not before it is known.
export function isSolved(cells, m, task, length, asked) {
    const s = solvedOf(cells, m, task, length, asked);
    return s === undefined || s.solved >= SOLVES * s.asked;
}

function continuationOf(cells, m, policies, asked) {
    const own = { ...asked, parts: ["continuation"] };
    const all = fullCells([m], own).map((c) => cells.result(c))[0];
    const rows = policyCells([m], policies, own).flatMap((cell) => {
        const r = cells.result(cell);
        return r === undefined ? [] : [{ policy: cell.policy, kept: r.kept, peak: r.peak, state: r.state, read: r.read,
            kld: ofTokens(r.kld, r.kld_stderr), ppl: ofLog(r.log_ratio, r.log_ratio_stderr), top1: ofTokens(r.top1, r.top1_stderr) }];
    });
    return all === undefined || rows.length === 0 ? undefined : { chunks: all.chunks, scored: all.scored, ppl: ofLog(all.nll, all.nll_stderr), rows };
}

// Answers of some tasks of one length: of the texts that are solved with all tokens.
export function answersOf(cells, m, { policy, where, length, tasks }, asked) {
    const results = policyCells([m], [policy], { ...asked, parts: ["tasks"], tasks, lengths: [length] })
        .filter((c) => c.where === where && isSolved(cells, m, c.task, c.length, asked)).map((c) => cells.result(c))
        .filter((r) => r !== undefined);
    const texts = sum(results.map((r) => r.texts)), right = sum(results.map((r) => r.right));
    return texts === 0 ? undefined : { texts, right, share: ofShare(right, texts), ...figures(results, (r) => r.texts) };
}

export const lengthsOf = (m, asked) => [...(asked.lengths ?? m.lengths ?? [])].sort((a, b) => a - b);

// The longest of the lengths at which at least one of the tasks is measured and solved.
export function longest(cells, m, tasks, asked) {
    return lengthsOf(m, asked).filter((length) => tasks.some((task) => {
        const s = solvedOf(cells, m, task, length, asked);
        return s !== undefined && s.solved >= SOLVES * s.asked;
    })).at(-1);
}

function tasksOf(cells, m, policies, asked) {
    const tasks = m.tasks.filter((t) => asked.tasks.includes(t)), lengths = lengthsOf(m, asked);
    const solved = tasks.map((task) => ({ task, lengths: lengths.map((length) => solvedOf(cells, m, task, length, asked)) }));
    const last = longest(cells, m, tasks, asked);
    const rows = policies.flatMap((policy) => ["after", "inside"].flatMap((where) => {
        const of = (length, some) => answersOf(cells, m, { policy, where, length, tasks: some }, asked);
        const byLength = lengths.map((length) => of(length, tasks));
        return byLength.every((a) => a === undefined) ? [] : [{ policy, where, byLength, longest: of(last, tasks),
            byTask: tasks.map((task) => of(last, [task])) }];
    }));
    return rows.length === 0 ? undefined : { tasks, lengths, longest: last, solved, rows };
}

function conversationsOf(cells, m, policies, asked) {
    const own = { ...asked, parts: ["conversations"] };
    const all = fullCells([m], own).map((c) => cells.result(c)).filter((r) => r !== undefined);
    const rows = policies.flatMap((policy) => {
        const results = policyCells([m], [policy], own).map((c) => cells.result(c)).filter((r) => r !== undefined);
        const texts = results.flatMap((r) => r.agreement);
        return texts.length < 2 ? [] : [{ policy, texts: texts.length, agreement: ofMean(texts), kld: ofMean(results.flatMap((r) => r.kld)),
            ...figures(results, (r) => r.agreement.length) }];
    });
    return rows.length === 0 ? undefined : { texts: sum(all.map((r) => r.texts)),
        tokens: Math.round(sum(all.flatMap((r) => r.tokens)) / Math.max(1, sum(all.map((r) => r.texts)))), rows };
}

// What the program refused: [policy, message].
function refusedOf(cells, m, policies, asked) {
    const messages = new Map();
    for (const cell of policyCells([m], policies, asked)) {
        const message = cells.of(cell)?.refused;
        if (message !== undefined) {
            messages.set(cell.policy, message);
        }
    }
    return [...messages];
}

// { model, continuation, tasks, conversations, refused, machines } of each model with results.
export function gathered(cells, models, policies, asked) {
    return models.map((m) => {
        const records = [...fullCells([m], asked), ...policyCells([m], policies, asked)].map((c) => cells.of(c)).filter((r) => r?.result !== undefined);
        return { model: m, continuation: m.text === undefined ? undefined : continuationOf(cells, m, policies, asked),
            tasks: m.lengths === undefined ? undefined : tasksOf(cells, m, policies, asked),
            conversations: m.turn === undefined ? undefined : conversationsOf(cells, m, policies, asked),
            refused: refusedOf(cells, m, policies, asked),
            machines: [...new Set(records.map((r) => `${r.machine}, ${r.date}`))].sort() };
    }).filter((g) => g.continuation ?? g.tasks ?? g.conversations);
}
