// families.mjs - perplexity of every architecture in every quantisation that its files come in,
// beside llama.cpp's.
//
// A cell is a small model with random weights (make_gguf --family) in one quantisation. Both
// engines score the same random text, whose perplexity is near the size of the vocabulary. A cell
// is met if
//   - the difference of the perplexities is below llama.cpp's own +/-;
//   - the KL divergence of the two engines' predictions is below a limit, or a few times that
//     between two of llama.cpp's own settings: errors may cancel out over a text, and in deep
//     models rounding errors grow.
// It is told whether ours also lies in the narrow band that llama.cpp's settings span, widened as
// in quality.mjs, or as near as the noise of the paired difference allows. That noise is
// underestimated: a text of letters repeats its tokens, and rounding errors of one token have much
// in common.
//
// Results are kept in a file, by cell, until one of the programs changes: an interrupted run goes
// on where it ended.
//
// SPDX-License-Identifier: MIT
import { createHash } from "node:crypto";
import { existsSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { peerPerplexity } from "./peer.mjs";
import { SETTINGS, WIDEN, ours } from "./quality.mjs";
import { median, run } from "./tools.mjs";

const CTX = 256;
const CHUNKS = 4; // 508 tokens are scored; the divergence is a mean over all of their predictions
const THREADS = 1; // models are so small that threads would wait for each other
const TRIES = 3;
const TEXT_BYTES = 4000;

// Nats by token. Rounding activations to 8 bits, ours in blocks of 32 and llama.cpp's in blocks of
// 32 or 256, costs some 1e-3 in models of a few layers, and 1e-2 where logits are large
// (granitehybrid).
const KLD_MAX = 0.02;
const KLD_OF_OWN = 3;
const SIGMAS = 4;

// By the name of the file's quantisation: types of most matrices, of the output, V and ffn_down of
// half of the layers, and of experts. llama-quantize mixes more types; each of its types is in one
// of these rows.
const TYPES = {
    q8_0: { type: "q8_0" },
    q6_k: { type: "q6_K" },
    q5_k_m: { type: "q5_K", more: "q6_K" },
    q4_k_m: { type: "q4_K", more: "q6_K" },
    q3_k_m: { type: "q3_K", more: "q5_K" },
    q2_k: { type: "q2_K", more: "q4_K" },
    q4_0: { type: "q4_0", more: "q6_K" },
    iq4_xs: { type: "iq4_xs", more: "q5_K" },
    iq4_nl: { type: "iq4_nl", more: "q5_K" },
    iq3_m: { type: "iq3_s", more: "q4_K" },
    iq3_xxs: { type: "iq3_xxs", more: "iq3_s" },
    iq2_m: { type: "iq2_s", more: "iq3_s" },
    iq2_xs: { type: "iq2_xs", more: "q4_K" },
    iq2_xxs: { type: "iq2_xxs", more: "q2_K" },
    iq1_m: { type: "iq1_m", more: "q2_K" },
    iq1_s: { type: "iq1_s", more: "q2_K" },
    mxfp4: { type: "q8_0", experts: "mxfp4" },
};

// Words of letters, the same ones in each run.
function randomText() {
    let state = 1;
    const below = (n) => {
        state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
        return Math.floor(state / 2 ** 32 * n);
    };
    let text = "";
    while (text.length < TEXT_BYTES) {
        for (let letters = 1 + below(8); letters > 0; letters--) {
            text += String.fromCharCode(97 + below(26));
        }
        text += " ";
    }
    return text;
}

// [{ name, hasExperts }], as the generator lists them.
function allFamilies(generator) {
    return run(generator, ["--families"]).stdout.trim().split("\n").map((line) => line.split(" "))
        .map(([name, experts]) => ({ name, hasExperts: experts === "experts" }));
}

function chosen(all, list, what) {
    if (list === undefined) {
        return all;
    }
    const names = list.split(",");
    const unknown = names.find((name) => !all.includes(name));
    if (unknown !== undefined) {
        throw new Error(`--${what} '${unknown}' is unknown: it takes ${all.join(", ")}, comma-separated`);
    }
    return all.filter((name) => names.includes(name));
}

// Results by "family type", of the same programs, types, text and settings.
class Kept {
    constructor(path, programs) {
        const hash = createHash("sha256");
        programs.forEach((program) => hash.update(readFileSync(program)));
        hash.update(JSON.stringify([TYPES, SETTINGS, CTX, CHUNKS, KLD_MAX, WIDEN, SIGMAS, randomText()]));
        this.path = path;
        this.programs = hash.digest("hex").slice(0, 16);
        const read = existsSync(path) ? JSON.parse(readFileSync(path, "utf8")) : {};
        this.cells = read.programs === this.programs ? read.cells : {};
    }

    put(key, cell) {
        this.cells[key] = cell;
        writeFileSync(`${this.path}.part`, JSON.stringify({ programs: this.programs, cells: this.cells }, null, 1));
        renameSync(`${this.path}.part`, this.path);
    }
}

function isInBand(cell) {
    const isInside = cell.ppl >= Math.min(...cell.theirs) * (1 - WIDEN) && cell.ppl <= Math.max(...cell.theirs) * (1 + WIDEN);
    return isInside || Math.abs(cell.difference) <= SIGMAS * cell.differenceError;
}

function isMet(cell) {
    const isClose = cell.kld <= KLD_MAX || cell.kld <= KLD_OF_OWN * cell.own;
    return isClose && Math.abs(cell.ppl - cell.theirs[0]) <= cell.error;
}

// llama-perplexity may end before its last line, the estimate, is out: its messages wait in a
// thread.
function theirsOf(c, s) {
    for (let i = 1; ; i++) {
        try {
            return peerPerplexity(c.peer, s);
        } catch (error) {
            if (i === TRIES || !error.message.includes("no estimate")) {
                throw error;
            }
        }
    }
}

// The first setting's predictions are in a file, from which quire perplexity makes the same
// estimate.
function saveTheirs(c, s) {
    try {
        peerPerplexity(c.peer, s);
    } catch (error) {
        if (!error.message.includes("no estimate")) {
            throw error;
        }
    }
}

function measure(c, s) {
    const base = join(c.work, "family.logits");
    try {
        return measureFrom(c, s, base);
    } finally {
        rmSync(base, { force: true });
    }
}

function measureFrom(c, s, base) {
    const common = { model: s.model, text: s.text, ctx: CTX, chunks: CHUNKS, threads: THREADS };
    saveTheirs(c, { ...common, ...SETTINGS[0], saveLogits: base });
    const mine = ours({ ...c, threads: THREADS }, { ...common, kv: "f16" }, ["--logits-base", base]);
    // From the paired difference, because the file's numbers end at some 16 nats below the largest
    // one.
    const theirs = [mine.ppl / mine.base.ppl_ratio];
    const cell = {
        ppl: mine.ppl, theirs, error: mine.base.ppl_stderr, ratio: mine.base.ppl_ratio, kld: mine.base.kld.mean,
        top1: mine.base.top1_agreement, difference: mine.base.nll_difference.mean,
        differenceError: mine.base.nll_difference.stderr,
    };
    if (cell.kld > KLD_MAX) {
        cell.own = theirsOf(c, { ...common, ...SETTINGS[1], baseLogits: base }).kld;
    }
    for (const setting of SETTINGS.slice(1)) {
        if (isInBand(cell)) { // a further setting changes nothing
            break;
        }
        theirs.push(theirsOf(c, { ...common, ...setting }).ppl);
    }
    return cell;
}

function cellOf(c, kept, family, type) {
    const key = `${family} ${type}`;
    if (kept.cells[key] === undefined) {
        const { type: most, more, experts } = TYPES[type];
        const model = join(c.work, "family.gguf");
        run(c.generator, ["--family", family, "--type", most, ...(more ? ["--type-more", more] : []),
            ...(experts ? ["--expert-type", experts] : []), "--seed", "1", "-o", model]);
        try {
            kept.put(key, measure(c, { model, text: c.text }));
        } finally {
            rmSync(model, { force: true });
        }
    }
    return kept.cells[key];
}

const percent = (share, digits = 3) => `${(100 * share).toFixed(digits)}`;
const signed = (share) => (share < 0 ? "" : "+") + percent(share);
const largest = (cells, of) => Math.max(...cells.map(of));

// One row by quantisation, over its families.
function summarise(report, type, cells) {
    const missed = cells.filter((cell) => !isMet(cell)).length;
    const ofOwn = cells.filter((cell) => isMet(cell) && cell.kld > KLD_MAX).length;
    report.add({
        what: `perplexity, ${cells.length} families, ${type}: largest difference from llama.cpp, %`,
        ours: largest(cells, (cell) => Math.abs(cell.ratio - 1) * 100),
        theirs: median(cells.map((cell) => cell.error / cell.theirs[0] * 100)),
        floor: "its +/-, and KLD", verdict: missed > 0 ? "missed" : "met",
        note: `compared with the median of its own +/-, %; ${missed} missed; ${ofOwn} above KLD ${KLD_MAX}, but at most ${KLD_OF_OWN} times ` +
            `that of two settings of its own; ` +
            `${cells.filter(isInBand).length} in the band of its settings; ` +
            `KLD median ${median(cells.map((cell) => cell.kld)).toExponential(1)}, ` +
            `largest ${largest(cells, (cell) => cell.kld).toExponential(1)}; same top token at least ` +
            `${percent(Math.min(...cells.map((cell) => cell.top1)), 1)} %`,
    });
}

// Empty: the family has no such type.
function table(families, types, cells) {
    const lines = [`| family | ${types.join(" | ")} |`, `|---|${types.map(() => "---:|").join("")}`];
    for (const family of families) {
        const row = types.map((type) => {
            const cell = cells[`${family} ${type}`];
            return cell === undefined ? "" : cell === null ? "failed" : (isMet(cell) ? "" : "missed ") + signed(cell.ratio - 1) + (isInBand(cell) ? "" : "*");
        });
        lines.push(`| ${family} | ${row.join(" | ")} |`);
    }
    return lines.join("\n");
}

// The families and types of --families and --types. Throws where one is unknown.
export function choice(generator, options) {
    const all = allFamilies(generator);
    return { all, families: chosen(all.map((family) => family.name), options.families, "families"),
        types: chosen(Object.keys(TYPES), options.types, "types") };
}

// Measure the chosen cells and report them by type; the table of all of them, in Markdown.
export function perplexityFamilies(c, report, { all, families, types }) {
    const kept = new Kept(join(c.work, "families.json"), [c.quire, c.generator, join(c.peer, "llama-perplexity")]);
    const text = join(c.work, "families.txt");
    const cells = {};
    writeFileSync(text, randomText());
    for (const family of families) {
        const { hasExperts } = all.find(({ name }) => name === family);
        for (const type of types.filter((name) => hasExperts || TYPES[name].experts === undefined)) {
            try {
                const cell = cellOf({ ...c, text }, kept, family, type);
                cells[`${family} ${type}`] = cell;
                process.stderr.write(`${!isMet(cell) ? "missed" : isInBand(cell) ? "in band" : "met"} ${family} ${type}: ${signed(cell.ratio - 1)} %, ` +
                    `+/- ${percent(cell.error / cell.theirs[0])}, paired ${signed(cell.difference)} +/- ` +
                    `${percent(cell.differenceError)}, KLD ${cell.kld.toExponential(2)}${cell.own ? ` (its own ${cell.own.toExponential(2)})` : ""}, same top ${percent(cell.top1, 1)}\n`);
            } catch (error) {
                cells[`${family} ${type}`] = null;
                report.add({ what: `perplexity, ${family}, ${type}`, verdict: "failed", note: error.message.replaceAll("\n", " ") });
            }
        }
    }
    for (const type of types) {
        const ofType = families.map((family) => cells[`${family} ${type}`]).filter((cell) => cell);
        if (ofType.length > 0) {
            summarise(report, type, ofType);
        }
    }
    return `\nPerplexity of a random text, ours : llama.cpp's, difference in %; random weights, ${CHUNKS} chunks of ${CTX} tokens; ` +
        `a star: outside of the band of llama.cpp's settings\n\n${table(families, types, cells)}\n`;
}
