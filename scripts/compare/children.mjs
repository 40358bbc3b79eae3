// children.mjs - child processes that end with this process, also when a signal ends it.
//
// The handlers are there from the first child on. Node runs them between two turns of its loop: a
// script that only waits for children with spawnSync has no use for them.
//
// SPDX-License-Identifier: MIT
import { spawn } from "node:child_process";

// SIGHUP is not here: nohup has it ignored, and a handler would undo that.
const SIGNALS = [["SIGINT", 130], ["SIGTERM", 143]];

const running = new Set();
let isReady = false;

function prepare() {
    if (!isReady) {
        isReady = true;
        process.on("exit", () => running.forEach((child) => child.kill("SIGKILL")));
        SIGNALS.forEach(([signal, status]) => process.on(signal, () => process.exit(status)));
    }
}

// As spawn().
export function spawnOwn(program, args, options) {
    prepare();
    const child = spawn(program, args, options);
    running.add(child);
    child.on("close", () => running.delete(child));
    return child;
}
