// validate.mjs - arguments of calls under the schemas of their tools, by ajv; formats by checks of
// our own.
//
// SPDX-License-Identifier: MIT
import { isIPv4, isIPv6 } from "node:net";
import { join } from "node:path";

const isDate = (text) => /^\d{4}-\d\d-\d\d$/.test(text) && !Number.isNaN(Date.parse(`${text}T00:00:00Z`));
const isTime = (text) => /^([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$/i.test(text);
const FORMATS = {
    date: isDate,
    time: isTime,
    "date-time": (text) => /^[^Tt ]+[Tt][^Tt ]+$/.test(text) && isDate(text.slice(0, 10)) && isTime(text.slice(11)),
    email: (text) => /^[^@\s]{1,64}@[^@\s]{1,255}$/.test(text),
    hostname: (text) => text.length <= 253 && text.split(".").every((label) => /^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/i.test(label)),
    ipv4: isIPv4,
    ipv6: isIPv6,
    uri: (text) => /^[a-z][a-z0-9+.-]*:\S*$/i.test(text) && /^[\x21-\x7e]*$/.test(text),
    uuid: (text) => /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(text),
};

function compiler(require, folder, file) {
    const Ajv = require(join(folder, "dist", file));
    // 16.9 / 0.01 is no whole number in binary: a tolerance makes `multipleOf` mean its decimal
    // digits.
    const ajv = new Ajv({ strict: false, allErrors: false, multipleOfPrecision: 9 });
    for (const [name, check] of Object.entries(FORMATS)) {
        ajv.addFormat(name, check);
    }
    return ajv;
}

// folder: of the npm package ajv-dist. Returns validate(name, text): why the arguments are not
// valid, or undefined.
export function validators(require, folder, tools) {
    const [draft7, draft2020] = ["ajv7.min.js", "ajv2020.min.js"].map((file) => compiler(require, folder, file));
    const checks = new Map(tools.map(({ name, parameters }) =>
        [name, (parameters.$schema?.includes("draft-07") ? draft7 : draft2020).compile(parameters)]));
    return (name, text) => {
        let value;
        try {
            value = JSON.parse(text);
        } catch (error) {
            return error.message;
        }
        const check = checks.get(name);
        return check(value) ? undefined : `${check.errors[0].instancePath} ${check.errors[0].message}`;
    };
}
