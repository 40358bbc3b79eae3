// gguf.mjs - keys and f32 tensors of a GGUF file, for models that are small enough to lie in
// memory.
//
// SPDX-License-Identifier: MIT
import { readFileSync } from "node:fs";

const MAGIC = 0x46554747; // "GGUF"
const STRING = 8, ARRAY = 9;
const F32 = 0;
const ALIGNMENT = 32;
// Of a value's type: bytes, and the name of DataView's way of reading it.
const NUMBERS = { 0: [1, "getUint8"], 1: [1, "getInt8"], 2: [2, "getUint16"], 3: [2, "getInt16"], 4: [4, "getUint32"],
    5: [4, "getInt32"], 6: [4, "getFloat32"], 7: [1, "getUint8"], 10: [8, "getBigUint64"], 11: [8, "getBigInt64"],
    12: [8, "getFloat64"] };

class Reader {
    constructor(bytes) {
        this.bytes = bytes;
        this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
        this.at = 0;
    }

    number(type) {
        const [size, way] = NUMBERS[type] ?? [];
        if (!size) {
            throw new Error(`a value of type ${type}`);
        }
        const value = this.view[way](this.at, true);
        this.at += size;
        return typeof value === "bigint" ? Number(value) : value;
    }

    text() {
        const n = this.number(10);
        const text = this.bytes.toString("utf8", this.at, this.at + n);
        this.at += n;
        return text;
    }

    value(type) {
        if (type === STRING) {
            return this.text();
        }
        if (type !== ARRAY) {
            return this.number(type);
        }
        const inner = this.number(4), n = this.number(10);
        return Array.from({ length: n }, () => this.value(inner));
    }
}

// { keys: {name: value}, tensors: Map of name to {shape, type, at}, floats(name) }. Throws with the
// path when the bytes are no GGUF file.
export function readGguf(path) {
    try {
        const bytes = readFileSync(path), reader = new Reader(bytes);
        if (reader.number(4) !== MAGIC) {
            throw new Error("not a GGUF file");
        }
        reader.number(4);
        const nTensors = reader.number(10), nKeys = reader.number(10);
        const keys = {}, tensors = new Map();
        for (let i = 0; i < nKeys; i++) {
            const name = reader.text();
            keys[name] = reader.value(reader.number(4));
        }
        for (let i = 0; i < nTensors; i++) {
            const name = reader.text(), shape = Array.from({ length: reader.number(4) }, () => reader.number(10));
            tensors.set(name, { shape, type: reader.number(4), at: reader.number(10) });
        }
        const alignment = keys["general.alignment"] ?? ALIGNMENT;
        const data = Math.ceil(reader.at / alignment) * alignment;
        return { keys, tensors, floats: (name) => floats(reader, data, name, tensors.get(name)) };
    } catch (error) {
        throw new Error(`${path}: ${error.message}`);
    }
}

function floats(reader, data, name, tensor) {
    if (tensor?.type !== F32) {
        throw new Error(`${name}: ${tensor ? "not of f32" : "there is no such tensor"}`);
    }
    const n = tensor.shape.reduce((product, size) => product * size, 1);
    return Float32Array.from({ length: n }, (_, i) => reader.view.getFloat32(data + tensor.at + 4 * i, true));
}
