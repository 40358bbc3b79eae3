// measure.mjs - one cell of `make retention`: its runs of the program, and what they gave.
//
// A model has a folder in the cache folder, by its digest: the logits with all tokens, the maps of
// predict, the conversations. They are made when the first cell needs them, and stay for later
// calls.
//
// SPDX-License-Identifier: MIT
import { existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { digestOf } from "./models.mjs";
import { BLOCK } from "./plan.mjs";
import { FULL, argsOf, parsed } from "./policies.mjs";
import { Refused, memo, runJson } from "./runs.mjs";
import { TASKS, taskText } from "./tasks.mjs";

const FIGURES = ["kept", "read", "peak", "state"];
const mean = (values) => values.reduce((sum, v) => sum + v, 0) / values.length;

// Bytes of K and V at the end of a text. Of all tokens in a format: without the copies in 8 bit of
// the first and the last tokens, whose number does not grow with the text.
const stateOf = (kv) => (kv.retained === undefined ? kv.computed_bytes : kv.charged_bytes);

// The same result with the means of its figures.
const means = (r) => ({ ...r, ...Object.fromEntries(FIGURES.map((key) => [key, r[key].length > 0 ? mean(r[key]) : undefined])) });

// What a file says that is written whole or not at all; undefined: there is none.
const known = (path) => (existsSync(path) ? JSON.parse(readFileSync(path, "utf8")) : undefined);

function keep(path, document) {
    writeFileSync(`${path}.part`, JSON.stringify(document));
    renameSync(`${path}.part`, path);
}

export class Meter {
    // quire: the program. work: a folder that stays. threads: of one run.
    constructor({ quire, work, threads }) {
        Object.assign(this, { quire, work, threads });
        this.once = memo();
        this.program = existsSync(quire) ? digestOf(quire) : undefined; // --only plan asks without a program
    }

    folder(m, ...names) {
        const path = join(this.work, `${m.key}-${m.digest}`, ...names);
        mkdirSync(path, { recursive: true });
        return path;
    }

    // Maps of predict are found in the cache folder of the program, which is this model's own.
    #run(m, command, args) {
        return runJson(this.quire, [command, "--json", "-m", m.model, "-t", this.threads, ...args],
            { XDG_CACHE_HOME: this.folder(m, "cache") });
    }

    // Work before the runs of a cell: their measured time then has no part of this work. What fails
    // here with all tokens is no refusal of the cell's policy.
    async prepare(m, cell, full) {
        if (cell.policy !== FULL && parsed(cell.policy).name === "predict") {
            await this.once(`fit ${m.key}`, () => this.#fit(m));
        }
        try {
            if (cell.part === "continuation" && cell.policy !== FULL) {
                await this.once(`logits ${full.id}`, () => this.#logits(m, full));
            }
            if (cell.part === "conversations") {
                await this.once(`talks ${m.key} ${cell.block} ${cell.texts}`, () => this.#talks(m, cell));
            }
        } catch (error) {
            throw error instanceof Refused ? new Error(`with all tokens: ${error.message}`) : error;
        }
    }

    // The result of a cell. full: the cell with all tokens. fullResult: its result.
    measure(m, cell, full, fullResult) {
        if (cell.part === "continuation") {
            return cell.policy === FULL ? this.once(`logits ${cell.id}`, () => this.#logits(m, cell)) : this.#continue(m, cell, full);
        }
        if (cell.part === "tasks") {
            return cell.policy === FULL ? this.#solveFull(m, cell) : this.#solve(m, cell, fullResult);
        }
        return this.once(`talks ${m.key} ${cell.block} ${cell.texts}`, () => this.#talks(m, cell))
            .then((talks) => (cell.policy === FULL ? this.#talksFull(talks) : this.#talk(m, cell, talks)));
    }

    // ---- maps of predict ----

    // Learning uses the second half of the text, or tasks that are not asked. The beginning is
    // scored.
    async #fit(m) {
        const mark = join(this.folder(m), "fit.json");
        if (!existsSync(mark)) {
            const { ctx, chunks } = m.calibrate ?? { ctx: Math.min(1024, m.ctx / 2), chunks: 16 };
            const path = join(this.folder(m), "learn.txt");
            const bytes = m.text === undefined || m.isMade ? undefined : readFileSync(m.text);
            writeFileSync(path, bytes !== undefined ? bytes.subarray(bytes.indexOf(10, bytes.length / 2) + 1)
                : Array.from({ length: Math.ceil(1.25 * chunks) }, (_, i) => taskText(TASKS[i % TASKS.length], ctx, 100000 + i))
                    .map((t) => `${t.text}${t.question}${t.answer}\n`).join(""));
            const doc = await this.#run(m, "calibrate", ["--retain", "-f", path, "-c", `${ctx}`, "--chunks", `${chunks}`]);
            keep(mark, { correlation: mean(doc.correlation) });
            rmSync(path);
        }
        return known(mark);
    }

    // ---- continuation ----

    #evaluate(m, cell, args) {
        const chunks = cell.settings.match(/(\d+) chunks/)[1];
        return this.#run(m, "perplexity", ["-f", m.text, "-c", `${m.ctx}`, "--chunks", chunks,
            ...(m.scoreFrom ? ["--score-from", `${m.scoreFrom}`] : []), ...args]);
    }

    #logitsPath(m, full) {
        return join(this.folder(m), `${full.settings.replace(/\W+/g, "-")}.logits`);
    }

    // The predictions with all tokens, and their result. Those of another program or text are made
    // again: a policy's divergence would have the difference of the programs in it.
    async #logits(m, full) {
        const path = this.#logitsPath(m, full), mark = `${path}.json`, made = { program: this.program, text: digestOf(m.text) };
        const before = existsSync(path) ? known(mark) : undefined;
        if (before === undefined || before.program !== made.program || before.text !== made.text) {
            const doc = await this.#evaluate(m, full, ["--kv", "f16", "--save-logits", `${path}.part`]);
            rmSync(mark, { force: true });
            renameSync(`${path}.part`, path);
            keep(mark, { ...made, result: { chunks: doc.n_chunks, scored: doc.n_scored, nll: doc.nll, nll_stderr: doc.nll_stderr,
                bytes: doc.kv.live_peak_bytes } });
        }
        return known(mark).result;
    }

    async #continue(m, cell, full) {
        const doc = await this.#evaluate(m, cell, [...argsOf(parsed(cell.policy), m, m.chunk), "--logits-base", this.#logitsPath(m, full)]);
        const all = await this.once(`logits ${full.id}`, () => this.#logits(m, full));
        const { base, kv } = doc;
        return { kld: base.kld.mean, kld_stderr: base.kld.stderr, log_ratio: base.nll_difference.mean,
            log_ratio_stderr: base.nll_difference.stderr, top1: base.top1_agreement, top1_stderr: base.top1_agreement_stderr,
            kept: kv.retained?.share ?? 1, read: kv.retained?.read_share ?? 1, peak: kv.live_peak_bytes / all.bytes,
            state: stateOf(kv) / all.bytes };
    }

    // ---- tasks ----

    #answer(m, prompt, n, args) {
        return this.#run(m, "run", ["-p", prompt, "-n", `${n}`, "--temp", "0", "--ignore-eos", ...args]);
    }

    // Tokens of a question behind a text.
    #questionTokens(m, question) {
        return m.isBytes ? Buffer.byteLength(question) : this.once(`question ${m.key} ${question}`,
            async () => (await this.#answer(m, question, 1, [])).prompt_tokens - 1); // less the first token of all texts
    }

    // Which texts of the block are solved with all tokens: [seed, tokens of the prompt, tokens of
    // the question, bytes].
    async #solveFull(m, cell) {
        const solved = [];
        for (let seed = 1 + BLOCK.tasks * cell.block; seed <= BLOCK.tasks * cell.block + cell.texts; seed++) {
            const t = taskText(cell.task, cell.length, seed);
            const doc = await this.#answer(m, t.text + t.question, t.answer.length, ["--kv", "f16"]);
            if (doc.text.startsWith(t.answer)) {
                solved.push([seed, doc.prompt_tokens, await this.#questionTokens(m, t.question), doc.kv.charged_bytes]);
            }
        }
        return { texts: cell.texts, solved };
    }

    // How many of the solved texts a policy answers. The text is condensed once: before the
    // question is read, or, inside, before its last token is. With --attend answers choose pages.
    async #solve(m, cell, full) {
        const p = parsed(cell.policy), r = { texts: full.solved.length, right: 0, kept: [], read: [], peak: [], state: [] };
        for (const [seed, nPrompt, nQuestion, bytes] of full.solved) {
            const t = taskText(cell.task, cell.length, seed);
            const n = cell.where === "inside" ? nPrompt - 1 : nPrompt - nQuestion;
            const doc = await this.#answer(m, t.text + t.question, t.answer.length, argsOf(p, m, Math.max(64, n)));
            r.right += doc.text.startsWith(t.answer) ? 1 : 0;
            r.kept.push(doc.kv.retained?.share ?? 1);
            r.read.push(doc.kv.retained?.read_share ?? 1);
            r.peak.push((doc.kv.retained?.peak_bytes ?? doc.kv.charged_bytes) / bytes);
            r.state.push(stateOf(doc.kv) / bytes);
        }
        return means(r);
    }

    // ---- conversations ----

    // Two questions with two turns each: all answers but the last are context.
    async #makeTalk(m, questions, path) {
        const turn = m.turn, stored = `${path}.kv`;
        let text = "", before = 0;
        for (const ask of questions.flatMap((q) => q.turns)) {
            text += `${turn.user}${ask}${turn.assistant}`;
            const doc = await this.#answer(m, text, turn.answer, ["-c", `${m.ctx}`, "--kv", "f16", "--cache-dir", stored]);
            before = doc.prompt_tokens;
            text += doc.text + turn.end;
        }
        rmSync(stored, { recursive: true, force: true });
        writeFileSync(`${path}.txt`, text);
        keep(`${path}.json`, { before, n: before + turn.answer }); // last: the text is there
    }

    // The predictions of the last answer with all tokens, if the conversation fits the context.
    // Those of another program are made again.
    async #score(m, talk) {
        const mark = `${talk.path}.scored.json`;
        if (talk.n <= m.ctx && (!existsSync(`${talk.path}.logits`) || known(mark)?.program !== this.program)) {
            rmSync(mark, { force: true });
            const doc = await this.#hear(m, talk, ["--kv", "f16", "--save-logits", `${talk.path}.logits`]);
            keep(mark, { program: this.program, bytes: doc.kv.live_peak_bytes });
        }
        return { ...talk, bytes: talk.n <= m.ctx ? known(mark).bytes : undefined };
    }

    #hear(m, talk, args) {
        return this.#run(m, "perplexity", ["-f", `${talk.path}.txt`, "-c", `${talk.n}`, "--score-from", `${talk.before - 1}`, "--chunks", "1",
            ...args]);
    }

    // The conversations of a block that fit the context.
    async #talks(m, cell) {
        const questions = readFileSync(m.talk, "utf8").trim().split("\n").map((line) => JSON.parse(line));
        const folder = this.folder(m, `answers-${m.turn.answer}`), half = Math.floor(questions.length / 2), talks = [];
        const first = cell.block * BLOCK.conversations;
        for (let i = first; i < Math.min(first + cell.texts, half); i++) {
            const path = join(folder, `${i}`);
            if (!existsSync(`${path}.json`)) {
                await this.#makeTalk(m, [questions[i], questions[half + i]], path);
            }
            talks.push(await this.#score(m, { ...known(`${path}.json`), path }));
        }
        return talks.filter((talk) => talk.bytes !== undefined);
    }

    #talksFull(talks) {
        return { texts: talks.length, tokens: talks.map((talk) => talk.n) };
    }

    async #talk(m, cell, talks) {
        const p = parsed(cell.policy), r = { agreement: [], kld: [], kept: [], read: [], peak: [], state: [] };
        for (const talk of talks) {
            const doc = await this.#hear(m, talk, [...argsOf(p, { ...m, recent: m.turn.recent }, m.turn.chunk), "--logits-base", `${talk.path}.logits`]);
            const kv = doc.kv;
            r.agreement.push(doc.base.top1_agreement);
            r.kld.push(doc.base.kld.mean);
            r.kept.push(kv.retained?.share ?? 1);
            r.read.push(kv.retained?.read_share ?? 1);
            r.peak.push(kv.live_peak_bytes / talk.bytes);
            r.state.push(stateOf(kv) / talk.bytes);
        }
        return means(r);
    }
}
