// work.mjs - a folder of a run's own for files that may have gigabytes, below a folder that stays.
//
// A run that was killed cannot remove its folder: the next run of the kind does. The folder's name
// has the number of the process, by which a folder in use is known.
//
// SPDX-License-Identifier: MIT
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";

function isAlive(pid) {
    try {
        process.kill(pid, 0);
        return true;
    } catch (error) {
        return error.code === "EPERM";
    }
}

// The path of a new folder KIND-PID-XXXXXX in `parent`. Folders of the kind whose process has ended
// are removed.
export function ownFolder(parent, kind) {
    for (const name of readdirSync(parent)) {
        const pid = name.match(new RegExp(`^${kind}-(\\d+)-\\w{6}$`))?.[1];
        if (pid !== undefined && !isAlive(Number(pid))) {
            rmSync(join(parent, name), { recursive: true, force: true });
        }
    }
    return mkdtempSync(join(parent, `${kind}-${process.pid}-`));
}
