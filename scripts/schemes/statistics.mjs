// statistics.mjs - means over seeds, their 95 % confidence intervals, and verdicts about an order.
//
// SPDX-License-Identifier: MIT

// Student's t at 97.5 % by degrees of freedom 1, 2, ...; the last is that of infinitely many.
const T = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.16, 2.145, 2.131, 2.12, 2.11,
    2.101, 2.093, 2.086, 2.08, 2.074, 2.069, 2.064, 2.06, 2.056, 2.052, 2.048, 2.045, 2.042];
const T_INFINITE = 1.96;

// Between whole degrees of freedom, linear in their inverse.
export function quantile(freedom) {
    const below = Math.min(Math.floor(freedom), T.length);
    const [low, high] = [T[below - 1], T[below] ?? T_INFINITE];
    const span = 1 / below - (below < T.length ? 1 / (below + 1) : 0);
    return low + (high - low) * (1 / below - 1 / freedom) / span;
}

export const mean = (values) => values.reduce((sum, v) => sum + v, 0) / values.length;

function variance(values) {
    const middle = mean(values);
    return values.reduce((sum, v) => sum + (v - middle) ** 2, 0) / (values.length - 1);
}

// { mean, half, n }: mean - half to mean + half is the interval; half is undefined with one value.
export function interval(values) {
    const n = values.length;
    const half = n < 2 ? undefined : quantile(n - 1) * Math.sqrt(variance(values) / n);
    return { mean: mean(values), half, n };
}

// The interval of mean(a) - mean(b), the variances being unequal (Welch).
export function difference(a, b) {
    const of = mean(a) - mean(b);
    if (a.length < 2 || b.length < 2) {
        return { mean: of };
    }
    const [va, vb] = [variance(a) / a.length, variance(b) / b.length];
    if (va + vb === 0) {
        return { mean: of, half: 0 };
    }
    const freedom = (va + vb) ** 2 / (va ** 2 / (a.length - 1) + vb ** 2 / (b.length - 1));
    return { mean: of, half: quantile(freedom) * Math.sqrt(va + vb) };
}

// The interval of the mean of a - b, of Maps of seed to value. With the same seeds in both it is
// that of the differences seed by seed (paired): runs of a seed have the same text, tasks and
// order, so what the seed does to both falls out. Otherwise Welch's.
export function differenceBySeed(a, b) {
    const isPaired = a.size === b.size && [...a.keys()].every((seed) => b.has(seed));
    const { mean: middle, half } = isPaired ? interval([...a].map(([seed, value]) => value - b.get(seed)))
        : difference([...a.values()], [...b.values()]);
    return { mean: middle, half, isPaired };
}

// On which side of 0 an interval lies: -1, 1, 0 when it holds 0, undefined without an interval.
export const sideOf = ({ mean: middle, half }) => (half === undefined ? undefined : middle + half < 0 ? -1 : middle - half > 0 ? 1 : 0);

// The verdict of the values, Maps of seed to value, on "a is below b".
export function judgeBelow(a, b) {
    const d = differenceBySeed(a, b), side = sideOf(d);
    return { ...d, verdict: side === undefined ? "one seed: no interval" : { "-1": "seen", 1: "not seen: the opposite is", 0: "within noise" }[side] };
}
