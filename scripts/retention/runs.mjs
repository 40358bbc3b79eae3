// runs.mjs - runs of the program for `make retention`, several at once.
//
// SPDX-License-Identifier: MIT
import { spawnOwn } from "../compare/children.mjs";

// A run that ended with a message of the program: settings that it refuses, memory that is missing.
export class Refused extends Error {}

// The JSON document that the program prints. Throws Refused with the last line of the program's
// errors if the program ended with a status other than 0, and Error if a signal ended the program.
export function runJson(program, args, env = {}) {
    return new Promise((done, fail) => {
        const child = spawnOwn(program, args, { stdio: ["ignore", "pipe", "pipe"], env: { ...process.env, ...env } });
        let out = "", err = "";
        child.stdout.setEncoding("utf8").on("data", (text) => { out += text; });
        child.stderr.setEncoding("utf8").on("data", (text) => { err = (err + text).slice(-4000); });
        child.on("error", fail);
        child.on("close", (status, signal) => {
            const last = err.trim().split(/[\n\r]/).at(-1);
            if (status === 0) {
                try {
                    done(JSON.parse(out));
                } catch (error) {
                    fail(new Error(`${program}: its output is no JSON: ${error.message}`));
                }
            } else if (signal !== null) {
                fail(new Error(`${program}: ended by ${signal}`));
            } else {
                fail(new Refused(last));
            }
        });
    });
}

// Runs work(item) for all items, `jobs` at a time, in order of their beginning. mayBegin() is asked
// before each; items that it refuses are left.
export async function pool(items, jobs, work, mayBegin = () => true) {
    const waiting = [...items];
    await Promise.all(Array.from({ length: jobs }, async () => {
        while (waiting.length > 0 && mayBegin()) {
            await work(waiting.shift());
        }
    }));
}

// fn() at most once for a key; all callers get the same promise.
export function memo() {
    const known = new Map();
    return (key, fn) => {
        if (!known.has(key)) {
            known.set(key, fn());
        }
        return known.get(key);
    };
}
