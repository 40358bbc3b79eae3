// options.mjs - options of a script, all checked before anything is measured. A wrong one ends the
// script with one line and status 2.
//
// SPDX-License-Identifier: MIT
import { parseArgs } from "node:util";

// A function that says why a script cannot run, and ends it.
export const stopOf = (script) => (message) => {
    process.stderr.write(`${script}: ${message}\n`);
    process.exit(2);
};

// What is wrong with the text of an option, or undefined.
function fault(name, text, { whole, above, known, isList }) {
    for (const item of isList ? text.split(",") : [text]) {
        const value = item.trim() === "" ? NaN : Number(item);
        if (whole !== undefined && !(Number.isInteger(value) && value >= whole)) {
            return `--${name} ${item}: a whole number from ${whole} is wanted`;
        }
        if (above !== undefined && !(Number.isFinite(value) && value > above)) {
            return `--${name} ${item}: a number above ${above} is wanted`;
        }
        if (known !== undefined && !known.includes(item)) {
            return `--${name} '${item}' is unknown: it takes ${known.join(", ")}${isList ? ", comma-separated" : ""}`;
        }
    }
    return undefined;
}

// The values of options, as texts. spec: the `options` of parseArgs(), with rules for each option:
//   whole   the value is a whole number, at least this
//   above   the value is a number above this
//   known   the value is one of these texts
//   isList  the text has several values, comma-separated
export function readOptions(script, spec) {
    const stop = stopOf(script);
    let options;
    try {
        options = parseArgs({ options: Object.fromEntries(Object.entries(spec).map(([name, { whole, above, known, isList, ...rest }]) => [name, rest])) }).values;
    } catch (error) {
        return stop(error.message.replaceAll("\n", " "));
    }
    for (const [name, rules] of Object.entries(spec)) {
        const wrong = [options[name] ?? []].flat().filter((value) => typeof value === "string").map((text) => fault(name, text, rules)).find((message) => message !== undefined);
        if (wrong !== undefined) {
            return stop(wrong);
        }
    }
    return options;
}
