// transcript.mjs - made-up transcripts of agents: the same arguments give the same messages.
//
// The sizes follow published figures of coding agents: 43 turns, most of the prompt from results of
// tools, short answers.
//
// SPDX-License-Identifier: MIT

// A generator of 32-bit numbers (a linear congruence with a mixed output).
function numbers(seed) {
    let state = seed >>> 0;
    return (below) => {
        state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
        return ((state ^ (state >>> 15)) >>> 0) % below;
    };
}

const WORDS = ("the file table list of pages in memory holds each entry that a reader needs when its test fails because a " +
    "value was not written before another thread looked at this place so we check the size first and return an error with " +
    "a line for the user who runs it again after the change").split(" ");
const STEMS = ["read", "table", "cache", "parse", "main", "store", "index", "queue"];

const MORE_SEED = 1 << 20;

function writer(seed) {
    const below = numbers(seed);
    return { below, text: (n) => Array.from({ length: n }, () => WORDS[below(WORDS.length)]).join(" ") };
}

const SYSTEM = "You are an agent that repairs programs. Work in small steps. Read before you write, run the tests after each " +
    "change, and say what you found in one or two sentences. Paths are absolute. Ask when a request can be read in two ways. " +
    "Never delete what you did not make. When a command fails, read its output before you try another.";

// size: a factor on the number of lines in a tool's result, which has at least one line. With size
// 1, 43 turns and 8 tools the last prompts have about 14,000 tokens. Calls have OpenAI's form.
// Returns { system, turns: [{ messages, answer }] }: the messages that a turn adds before its
// request, and the recorded answer in the history of the next turn.
export function transcript({ seed, turns, size = 1 }) {
    const { below, text } = writer(seed);
    const more = writer(seed + MORE_SEED); // of its own, so that all sizes have the same calls
    const path = () => `/src/${STEMS[below(STEMS.length)]}/${STEMS[below(STEMS.length)]}.c`;
    // Results are short at times, and long at others.
    const result = () => {
        const lines = Array.from({ length: 1 + below(4) + (below(6) === 0 ? 12 : 0) }, () => text(8 + below(24)));
        const wanted = Math.max(1, Math.round(size * lines.length));
        while (lines.length < wanted) {
            lines.push(more.text(8 + more.below(24)));
        }
        return lines.slice(0, wanted).map((line, i) => `${100 + 7 * i}: ${line};`).join("\n");
    };
    const call = (number) => {
        const [name, args] = below(3) === 0 ? ["run_shell", { command: `make test-${STEMS[below(STEMS.length)]}`, timeout_s: 60 }]
            : below(2) === 0 ? ["read_file", { path: path(), offset: 1 + below(400), limit: 80 }]
                : ["grep", { pattern: STEMS[below(STEMS.length)], mode: "content", before: 2 }];
        return { id: `call_${seed}_${number}`, type: "function", function: { name, arguments: JSON.stringify(args) } };
    };
    const list = [];
    let pending = [{ role: "user", content: `Repair the test of ${path()}. ${text(40)}.` }];
    for (let turn = 0; turn < turns; turn++) {
        const isEnd = turn % 11 === 10; // the agent is done, and a person asks for more
        const answer = { role: "assistant", content: `${text(6 + below(30))}.` };
        if (!isEnd) {
            answer.tool_calls = [call(turn)];
        }
        list.push({ messages: pending, answer });
        pending = isEnd ? [{ role: "user", content: `${text(10 + below(60))}.` }]
            : [{ role: "tool", tool_call_id: answer.tool_calls[0].id, content: result() }];
    }
    return { system: SYSTEM, turns: list };
}
