// peer.mjs - llama.cpp's own programs, asked for one figure at a time.
//
// SPDX-License-Identifier: MIT
import { join } from "node:path";
import { run } from "./tools.mjs";

// llama-perplexity of one setting. saveLogits writes the log-probabilities of every scored token;
// baseLogits compares with such a file instead.
export function peerPerplexity(bin, s) {
    const args = ["-m", s.model, "-f", s.text, "-c", `${s.ctx}`, "--chunks", `${s.chunks}`, "-t", `${s.threads}`,
        "-fa", s.fa, "-ctk", s.kv, "-ctv", s.kv];
    if (s.saveLogits) {
        args.push("--kl-divergence-base", s.saveLogits);
    }
    if (s.baseLogits) {
        args.push("--kl-divergence-base", s.baseLogits, "--kl-divergence");
    }
    const { stdout, stderr } = run(join(bin, "llama-perplexity"), args);
    const text = stdout + stderr;
    const find = (pattern) => {
        const match = text.match(pattern);
        return match ? Number(match[1]) : undefined;
    };
    const result = {
        ppl: find(/Final estimate: PPL = ([\d.]+)/) ?? find(/Mean PPL\(Q\)\s*:\s*([\d.]+)/),
        kld: find(/Mean\s+KLD:\s*([-\d.]+)/),
        sameTop: find(/Same top p:\s*([\d.]+)/),
    };
    if (!Number.isFinite(result.ppl)) {
        throw new Error(`llama-perplexity printed no estimate for ${s.model} (${text.split("\n").slice(-3).join(" ")})`);
    }
    return result;
}

// llama-bench tokens per second at a depth: { prefill: { rates }, decode: { rates } }, whichever
// was asked for. Its depth is computed once for all tests and repeats of a call.
export function peerBench(bin, s) {
    const args = ["-m", s.model, "-t", `${s.threads}`, "-d", `${s.depth}`, "-fa", s.fa, "-ctk", s.kv, "-ctv", s.kv,
        "-p", `${s.prompt ?? 0}`, "-n", `${s.gen ?? 0}`, "-r", `${s.repeats ?? 1}`, "-o", "json"];
    const rows = JSON.parse(run(join(bin, "llama-bench"), args).stdout);
    const result = {};
    for (const row of rows) {
        result[row.n_prompt > 0 ? "prefill" : "decode"] = { rates: row.samples_ts };
    }
    if (rows.length === 0 || rows.some((row) => !(row.avg_ts > 0))) {
        throw new Error(`llama-bench gave ${rows.length} rows for ${args.join(" ")}`);
    }
    return result;
}
