// summary.mjs - from the replies of one run to its figures, and from the runs of one side to
// medians.
//
// SPDX-License-Identifier: MIT
import { median } from "../compare/tools.mjs";

// The smallest value that at least `share` of the values do not exceed.
export function percentile(values, share) {
    const sorted = [...values].sort((a, b) => a - b);
    return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)];
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

// replies: of Client.stream(), each with the number of tokens it was to have (`wanted`). A run with
// an error or a short answer has no figures: it throws.
export function summarize(replies, { wallMs, peakBytes, cpuSeconds }) {
    for (const reply of replies) {
        if (reply.error || !reply.usage || !reply.timings || reply.firstMs === undefined) {
            throw new Error(`a request failed: ${reply.error ?? "no text, usage or timings"}`);
        }
        if (reply.usage.completion_tokens !== reply.wanted) {
            throw new Error(`an answer has ${reply.usage.completion_tokens} tokens, not ${reply.wanted}`);
        }
    }
    const ttft = replies.map((reply) => reply.firstMs / 1000);
    const tpot = replies.filter(({ wanted }) => wanted > 1).map(({ firstMs, lastMs, wanted }) => (lastMs - firstMs) / (wanted - 1));
    return {
        requests: replies.length,
        seconds: wallMs / 1000,
        requestsPerSecond: replies.length / (wallMs / 1000),
        ttftP50: percentile(ttft, 0.5),
        ttftP95: percentile(ttft, 0.95),
        tpotP50: percentile(tpot, 0.5),
        tpotP95: percentile(tpot, 0.95),
        endP50: percentile(replies.map((reply) => reply.totalMs / 1000), 0.5),
        promptTokens: sum(replies.map((reply) => reply.usage.prompt_tokens)),
        cachedTokens: sum(replies.map((reply) => reply.timings.cache_n)),
        computedTokens: sum(replies.map((reply) => reply.timings.prompt_n + reply.timings.predicted_n)),
        peakBytes,
        cpuSeconds,
    };
}

// Medians of several runs' figures, field by field; `runs` keeps them all.
export function medians(runs) {
    const fields = Object.keys(runs[0]);
    return { ...Object.fromEntries(fields.map((field) => [field, median(runs.map((run) => run[field]))])), runs };
}

export const RUN_HEAD = "| load | server | requests/s | TTFT p50 s | p95 s | TPOT p50 ms | p95 ms | prompt tokens | cached | computed | " +
    "CPU s | peak GB |\n" +
    "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|";

export function runLine(load, name, figures) {
    const range = (field, digits) => {
        const values = (figures.runs ?? [figures]).map((run) => run[field]);
        const [low, high] = [Math.min(...values), Math.max(...values)].map((value) => value.toFixed(digits));
        return `${figures[field].toFixed(digits)}${low === high ? "" : ` (${low}..${high})`}`;
    };
    const cells = [load, name, range("requestsPerSecond", 3), range("ttftP50", 2), range("ttftP95", 2), range("tpotP50", 1),
        range("tpotP95", 1), figures.promptTokens, figures.cachedTokens, figures.computedTokens, range("cpuSeconds", 1),
        (figures.peakBytes / 1e9).toFixed(2)];
    return `| ${cells.join(" | ")} |`;
}
