// cells.mjs - measured cells in a file of JSON lines, one a cell, so that hours of measuring can be
// cut in pieces and spread over machines: files of several machines may be put together.
//
// A line: { id, digest, ...place, policy, settings, seconds, machine, date, result | refused }. The
// id names the cell with its settings; the digest names the model's bytes. The last line of an id
// counts. A cell that the program refused has the message, and is tried again.
//
// SPDX-License-Identifier: MIT
import { appendFileSync, existsSync, mkdirSync, readFileSync } from "node:fs";
import { dirname } from "node:path";

export class Cells {
    constructor(path) {
        this.path = path;
        this.records = new Map();
        this.broken = 0;
        for (const line of existsSync(path) ? readFileSync(path, "utf8").split("\n") : []) {
            if (line !== "") {
                this.#read(line);
            }
        }
    }

    // A run that was killed may leave half a line, which counts as not measured.
    #read(line) {
        try {
            const record = JSON.parse(line);
            this.records.set(`${record.digest} ${record.id}`, record);
        } catch {
            this.broken++;
        }
    }

    of(cell) {
        return this.records.get(`${cell.digest} ${cell.id}`);
    }

    result(cell) {
        return this.of(cell)?.result;
    }

    add(record) {
        const text = existsSync(this.path) ? readFileSync(this.path, "utf8") : "";
        mkdirSync(dirname(this.path), { recursive: true });
        appendFileSync(this.path, `${text === "" || text.endsWith("\n") ? "" : "\n"}${JSON.stringify(record)}\n`);
        this.records.set(`${record.digest} ${record.id}`, record);
    }
}
