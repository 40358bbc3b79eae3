// stories-text.mjs - a folder of little stories to train on, for bench/train/stories.yaml and for
// cuts of the model that tells them (docs/training.md).
//
//   node scripts/train/stories-text.mjs --out DIR --text FILE [--text FILE]
//                                       [--model stories15M.gguf --stories 4000 --tokens 224]
//                                       [--temperature 0.9] [--top-p 0.95] [--words 4]
//                                       [--quire build/quire] [--threads 1]
//
// Each --text is a file of stories. Lines <|endoftext|> part them; in a file without such lines two
// blank lines, or line ends without a blank line, whichever the file has more of. --stories: so
// many more that --model tells, each from the first words of a story of the texts, by a server of
// Quire's: from --words words of each story, then from twice, three and four times as many. A
// second call goes on from the number of stories that are there.
//
// SPDX-License-Identifier: MIT
import { appendFileSync, existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { Server } from "../serve/server.mjs";

const END = "<|endoftext|>";
const AT_ONCE = 16;
const WORDS_MIN = 40; // of a story; shorter ones are ends of others
const TOKENS = 224;   // with its beginning such a story fits into the 256 of stories15M

const root = resolve(dirname(fileURLToPath(import.meta.url)), "../..");

export function storiesOf(text) {
    const counted = (by) => text.split(by).length;
    const lines = /(?<=[^\n])\n(?=[^\n])/, blanks = /\n{3,}/;
    const by = text.includes(`\n${END}\n`) ? `\n${END}\n` : counted(blanks) > counted(lines) ? blanks : lines;
    return text.split(by).map((story) => story.trim()).filter((story) => story.split(/\s+/).length >= WORDS_MIN);
}

export const written = (stories) => stories.map((story) => `${story}\n${END}\n`).join("");

// The first words of story number i of all: `unit` words or two, three, four times as many.
export function beginning(stories, i, unit) {
    const wanted = unit * (1 + Math.floor(i / stories.length) % 4);
    return stories[i % stories.length].match(new RegExp(`^(\\S+\\s*){0,${wanted}}`))[0].trim();
}

// A story with an end: text after the model's end of text is another story, and a story without an
// end is cut at its last sentence.
export function complete(text) {
    const upTo = text.lastIndexOf(".");
    const quote = text[upTo + 1] === '"' ? 2 : 1;
    return upTo < 0 ? "" : text.slice(0, upTo + quote).trim();
}

async function tell(server, path, known, { wanted, tokens, temperature, top_p, unit }) {
    let next = existsSync(path) ? readFileSync(path, "utf8").split(`\n${END}\n`).length - 1 : 0;
    const one = async () => {
        while (next < wanted) {
            const i = next++;
            const prompt = beginning(known, i, unit);
            const { status, body } = await server.client.json("POST", "/v1/completions",
                { prompt, max_tokens: tokens, temperature, top_p, seed: i + 1 });
            if (status !== 200) {
                throw new Error(`the server said ${status}: ${body?.error?.message ?? body}`);
            }
            const choice = body.choices[0];
            const story = choice.finish_reason === "stop" ? (prompt + choice.text).trim() : complete(prompt + choice.text);
            appendFileSync(path, `${story}\n${END}\n`);
            if ((i + 1) % 100 === 0) {
                process.stderr.write(`${i + 1} of ${wanted} stories\n`);
            }
        }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, one));
}

async function main() {
    const { values: options } = parseArgs({ options: { out: { type: "string" }, text: { type: "string", multiple: true },
        model: { type: "string" }, stories: { type: "string", default: "0" }, tokens: { type: "string", default: `${TOKENS}` },
        words: { type: "string", default: "4" }, threads: { type: "string", default: "1" }, temperature: { type: "string", default: "0.9" }, "top-p": { type: "string", default: "0.95" },
        quire: { type: "string", default: join(root, "build", "quire") } } });
    if (!options.out || !options.text) {
        process.stderr.write("stories-text: --out DIR and --text FILE are needed\n");
        process.exit(2);
    }
    mkdirSync(options.out, { recursive: true });
    const known = options.text.flatMap((path) => {
        const stories = storiesOf(readFileSync(path, "utf8"));
        writeFileSync(join(options.out, basename(path)), written(stories));
        process.stderr.write(`${path}: ${stories.length} stories\n`);
        return stories;
    });
    if (options.model) {
        const server = await Server.start(options.quire, ["serve", "--model", options.model, "--threads", options.threads]);
        try {
            await tell(server, join(options.out, "told.txt"), known, { wanted: Number(options.stories), tokens: Number(options.tokens),
                temperature: Number(options.temperature), top_p: Number(options["top-p"]), unit: Number(options.words) });
        } finally {
            await server.stop();
        }
    }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
    await main();
}
