// client.mjs - a client of an OpenAI-compatible server that streams completions and measures them
// from outside.
//
// The client does not know the kind of server: it reads only fields that both llama-server and
// quire send.
//
// SPDX-License-Identifier: MIT
import { Agent, request } from "node:http";

const STUCK_MS = 15 * 60 * 1000;

export class Client {
    constructor(port, host = "127.0.0.1") {
        this.where = { host, port };
        this.agent = new Agent({ keepAlive: true });
    }

    close() {
        this.agent.destroy();
    }

    // A kept connection may be closed by the server just when it is used again: such a request is
    // sent once more.
    open(method, path, body, { onReply, onError, signal }) {
        const payload = body === undefined ? undefined : JSON.stringify(body);
        const headers = payload === undefined ? {} : { "Content-Type": "application/json",
            "Content-Length": Buffer.byteLength(payload) };
        const sent = request({ ...this.where, agent: this.agent, method, path, headers }, onReply);
        // Without an error, and not by request()'s own signal, which gives one: while the last of a
        // reply is read its socket may have gone back to the agent already, where nobody listens to
        // errors.
        const abort = () => sent.destroy();
        signal.addEventListener("abort", abort, { once: true });
        sent.on("close", () => signal.removeEventListener("abort", abort));
        sent.on("error", (error) => {
            if (["ECONNRESET", "EPIPE"].includes(error.code) && sent.reusedSocket && !sent.res && !signal.aborted) {
                this.open(method, path, body, { onReply, onError, signal });
            } else {
                onError(error);
            }
        });
        sent.setNoDelay(true);
        sent.end(payload);
    }

    // A reply that is read whole: { status, headers, body }, body parsed when it is JSON, else
    // text. Throws when there is none.
    json(method, path, body) {
        return new Promise((done, fail) => {
            const onReply = (reply) => whole(reply).then((text) =>
                done({ status: reply.statusCode, headers: reply.headers, body: parsed(text) ?? text }), fail);
            this.open(method, path, body, { onReply, onError: fail, signal: AbortSignal.timeout(STUCK_MS) });
        });
    }

    // Stream a completion. Never throws: `error` holds the failure, "cancelled" after the signal.
    // Times are in milliseconds since the request was sent; firstMs and lastMs are those of the
    // first and last text, thought or part of a call. With pauseMs the client stops reading for
    // that long after each part.
    stream(path, body, { signal, onText, stuckMs = STUCK_MS, pauseMs = 0 } = {}) {
        const begin = performance.now();
        const reply = { text: "", pieces: 0 };
        return new Promise((done) => {
            let isOver = false;
            const end = (error) => {
                if (isOver) {
                    return;
                }
                isOver = true;
                clearTimeout(alarm);
                reply.totalMs = performance.now() - begin;
                reply.error = signal?.aborted ? "cancelled" : reply.isStuck ? `not answered in ${stuckMs / 1000} s` : error;
                done(reply);
            };
            const onReply = (incoming) => {
                reply.status = incoming.statusCode;
                incoming.on("error", (error) => end(error.message));
                if (incoming.statusCode !== 200) {
                    whole(incoming).then((text) => end(parsed(text)?.error?.message ?? `status ${incoming.statusCode}: ${text}`),
                        (error) => end(error.message));
                    return;
                }
                incoming.on("close", () => end("the connection closed early"));
                readEvents(incoming, (event) => take(reply, event, performance.now() - begin, onText), () =>
                    end(reply.problem ?? (reply.isComplete ? undefined : "the stream ended early")));
                if (pauseMs > 0) {
                    incoming.on("data", () => {
                        incoming.pause();
                        setTimeout(() => incoming.resume(), pauseMs);
                    });
                }
            };
            const stuck = new AbortController();
            const alarm = setTimeout(() => {
                reply.isStuck = true;
                stuck.abort();
            }, stuckMs);
            const sent = { ...body, stream: true, stream_options: { include_usage: true } };
            this.open("POST", path, sent, { onReply, onError: (error) => end(error.message),
                signal: signal ? AbortSignal.any([signal, stuck.signal]) : stuck.signal });
        });
    }
}

function parsed(text) {
    try {
        return JSON.parse(text);
    } catch {
        return undefined;
    }
}

async function whole(incoming) {
    let text = "";
    for await (const part of incoming.setEncoding("utf8")) {
        text += part;
    }
    return text;
}

// Server-sent events, one `data:` line each here: calls onEvent with its text.
function readEvents(incoming, onEvent, onEnd) {
    let rest = "";
    incoming.setEncoding("utf8");
    incoming.on("data", (part) => {
        const lines = (rest + part).split("\n");
        rest = lines.pop();
        for (const line of lines) {
            if (line.startsWith("data:")) {
                onEvent(line.slice(5).trim());
            }
        }
    });
    incoming.on("end", onEnd);
}

// One event of the stream into the reply.
function take(reply, event, ms, onText) {
    if (event === "[DONE]") {
        reply.isComplete = true;
        return;
    }
    const said = parsed(event);
    if (said === undefined || said.error) {
        reply.problem = said?.error?.message ?? `not JSON: ${event}`;
        return;
    }
    const choice = said.choices?.[0];
    const text = choice?.delta?.content ?? choice?.text ?? "";
    if (text !== "") {
        reply.firstMs ??= ms;
        reply.lastMs = ms;
        reply.text += text;
        reply.pieces++;
        onText?.(reply);
    }
    if (choice?.delta?.reasoning_content || choice?.delta?.tool_calls) {
        reply.firstMs ??= ms; // of an answer that has no text, or not yet
        reply.lastMs = ms;
    }
    reply.id ??= said.id;
    reply.finish = choice?.finish_reason ?? reply.finish;
    reply.usage = said.usage ?? reply.usage;
    reply.timings = said.timings ?? reply.timings;
}
