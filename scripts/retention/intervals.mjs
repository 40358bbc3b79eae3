// intervals.mjs - the 95 % intervals of `make retention`.
//
// Shares of answers: Wilson's. Means over conversations: Student's t. Means over the scored tokens
// of a text, of which there are hundreds: the normal distribution.
//
// SPDX-License-Identifier: MIT
import { interval } from "../schemes/statistics.mjs";

export const Z = 1.96;

// { value, low, high } of hits among n.
export function ofShare(hits, n) {
    const p = hits / n;
    const middle = (p + Z * Z / (2 * n)) / (1 + Z * Z / n);
    const half = (Z / (1 + Z * Z / n)) * Math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n));
    return { value: p, low: Math.max(0, middle - half), high: Math.min(1, middle + half) };
}

export function ofMean(values) {
    const { mean, half } = interval(values);
    return { value: mean, low: mean - (half ?? Infinity), high: mean + (half ?? Infinity) };
}

export const ofTokens = (mean, stderr) => ({ value: mean, low: mean - Z * stderr, high: mean + Z * stderr });

// Of exp(mean).
export const ofLog = (mean, stderr) => ({ value: Math.exp(mean), low: Math.exp(mean - Z * stderr), high: Math.exp(mean + Z * stderr) });

// The least n of which all must be right so that the interval lies above a floor.
export const enough = (floor) => Math.ceil(Z * Z * floor / (1 - floor));

// "floor met" and its like; aboveIsGood: floor and aim are least values.
export function verdict(i, { floor, aim, aboveIsGood }) {
    const meets = (v, bound) => (aboveIsGood ? v >= bound : v <= bound);
    const worst = aboveIsGood ? i.low : i.high;
    const name = meets(i.value, aim) ? "aim" : "floor";
    if (!meets(i.value, floor)) {
        return `**floor missed**${meets(aboveIsGood ? i.high : i.low, floor) ? ", within the interval" : ""}`;
    }
    const beyond = [["floor", floor], ["aim", aim]].filter(([what, bound]) => !(name === "floor" && what === "aim") && !meets(worst, bound));
    return `${name} met${beyond.length === 0 ? "" : `, interval reaches beyond ${beyond.length === 2 ? "both" : `the ${beyond[0][0]}`}`}`;
}
