// plan.mjs - the cells of `make retention`: what is asked of which model, in which order, and how
// long it may take.
//
// SPDX-License-Identifier: MIT
import { FULL, argsOf, parsed, placesOf } from "./policies.mjs";

export const BLOCK = { tasks: 20, conversations: 10 }; // texts of a cell
// Texts that are asked: if all of 73 are right, the interval lies above 95 %.
export const SAMPLES = { recall: 100, passkey: 60, instruction: 60 };
const STEP = 2.5; // a token that is written, to one of a prompt

// The name of a cell with its settings, and the cell's place in the tables.
function cellOf(m, part, policy, settings, more) {
    const id = [m.key, part, ...Object.values(more), policy, settings].join(" | ");
    return { id, digest: m.digest, model: m.key, part, ...more, policy, settings };
}

// How much longer than with all tokens a text takes.
function factor(m, p) {
    const fits = p.keys.includes("merge=fit") ? 2.5 : 1;
    return { reconstruct: m.repeat * fits, predict: 1.3, heavy: 2.5, expected: 1.5 }[p.name] ?? (p.kind === "format" ? 1.3 : 1.15);
}

function continuationCell(m, policy, chunks) {
    const settings = `ctx ${m.ctx}, chunk ${m.chunk}, from ${m.scoreFrom ?? m.ctx / 2}, ${chunks} chunks`;
    if (policy === FULL) {
        return { ...cellOf(m, "continuation", policy, settings, {}), guess: chunks * m.cost(m.ctx) };
    }
    const p = parsed(policy);
    const written = p.kind === "attend" ? (m.ctx - (m.scoreFrom ?? m.ctx / 2)) * STEP : 0;
    return { ...cellOf(m, "continuation", policy, `${settings}, ${argsOf(p, m, m.chunk).slice(2, 4).join(" ")}`, {}),
        guess: chunks * factor(m, p) * m.cost(m.ctx + written) };
}

function taskCells(m, policy, task, length, n) {
    const p = policy === FULL ? undefined : parsed(policy);
    const settings = p === undefined ? "" : argsOf(p, m, 0).slice(2, 4).join(" ");
    return (p === undefined ? [""] : placesOf(p)).flatMap((where) => Array.from({ length: Math.ceil(n / BLOCK.tasks) }, (_, block) => {
        const texts = Math.min(BLOCK.tasks, n - block * BLOCK.tasks);
        const tokens = m.isBytes ? length : length / 3.4;
        return { ...cellOf(m, "tasks", policy, settings, { task, length, where, block, texts }),
            guess: texts * m.cost(tokens) * (p === undefined ? 1 : factor(m, p)) };
    }));
}

function conversationCells(m, policy, n) {
    const p = policy === FULL ? undefined : parsed(policy);
    const turn = m.turn;
    const how = p === undefined ? "" : `, ${argsOf(p, { ...m, ...turn }, 0).slice(2, 4).join(" ")}`;
    const settings = `answer ${turn.answer}, chunk ${turn.chunk}${how}`;
    return Array.from({ length: Math.ceil(n / BLOCK.conversations) }, (_, block) => {
        const texts = Math.min(BLOCK.conversations, n - block * BLOCK.conversations);
        const seconds = p === undefined ? 2 * m.cost(500 + 4 * turn.answer * STEP) : factor(m, p) * m.cost(500);
        return { ...cellOf(m, "conversations", policy, settings, { block, texts }), guess: texts * seconds };
    });
}

// The cells of one policy (or of FULL) of a model. asked: { parts, tasks, lengths, samples,
// conversations, chunks }.
function cellsOf(m, policy, asked) {
    const cells = [];
    if (m.lengths !== undefined && asked.parts.includes("tasks")) {
        for (const length of [...(asked.lengths ?? m.lengths)].sort((a, b) => b - a)) {
            for (const task of m.tasks.filter((t) => asked.tasks.includes(t))) {
                cells.push(...taskCells(m, policy, task, length, asked.samples ?? m.samples ?? SAMPLES[task]));
            }
        }
    }
    if (m.text !== undefined && asked.parts.includes("continuation")) {
        cells.push(continuationCell(m, policy, asked.chunks ?? m.chunks));
    }
    if (m.turn !== undefined && asked.parts.includes("conversations")) {
        cells.push(...conversationCells(m, policy, asked.conversations));
    }
    return cells;
}

// The cells with all tokens, which the others are compared with.
export const fullCells = (models, asked) => models.flatMap((m) => cellsOf(m, FULL, asked));

// The cells of the policies, a policy of all models after the other.
export const policyCells = (models, policies, asked) => policies.flatMap((policy) => models.flatMap((m) => cellsOf(m, policy, asked)));

// The cell with all tokens that a cell is compared with.
export function fullOf(m, cell, asked) {
    return cellsOf(m, FULL, asked).find((c) => c.part === cell.part && c.task === cell.task && c.length === cell.length && c.block === cell.block);
}

// Seconds of a cell: its guess, corrected by the cells of its kind that are done.
export class Clock {
    constructor(cells) {
        this.ratios = new Map();
        for (const cell of cells) {
            this.add(cell, cell.seconds);
        }
    }

    #keys(cell) {
        return [`${cell.model} ${cell.part} ${cell.length ?? ""} ${cell.policy}`, `${cell.model} ${cell.part} ${cell.length ?? ""}`,
            `${cell.model} ${cell.part}`];
    }

    add(cell, seconds) {
        for (const key of cell.guess > 0 && seconds > 0 ? this.#keys(cell) : []) {
            const sums = this.ratios.get(key) ?? [0, 0];
            this.ratios.set(key, [sums[0] + seconds, sums[1] + cell.guess]);
        }
    }

    seconds(cell) {
        const known = this.#keys(cell).map((key) => this.ratios.get(key)).find((sums) => sums !== undefined);
        return cell.guess * (known === undefined ? 1 : known[0] / known[1]);
    }
}
