// policies.mjs - what is measured: retention policies, KV formats with all tokens, and reading
// less.
//
// One text each:
//   [KV+]POLICY[:SHARE][,KEY=VALUE...]   --retain
//   [KV+]top:SHARE                       --attend
//   KV                                   a format with all tokens
//
// SPDX-License-Identifier: MIT
export const FULL = "all tokens";
export const BLIND = ["window", "last", "stride", "random"]; // policies that look at no query
const NAMES = ["reconstruct", "predict", "entropy", "expected", "snap", "heavy", "keydiff", ...BLIND];
const KINDS = ["q8", "q6", "q5", "q4", "q3", "f16", "bf16", "f32"];

// In the order in which they are measured: those with floors first.
export const POLICIES = ["reconstruct:0.3", "predict:0.3", "predict:0.5", "entropy:0.5", "window:0.5", "last:0.5", "stride:0.5",
    "random:0.5", "q4+predict:0.5", "top:0.125", "q8", "q6", "q5", "q4", "q3", "reconstruct:0.5", "reconstruct:0.3,merge=fit",
    "reconstruct:0.5,merge=fit", "snap:0.5", "expected:0.5", "heavy:0.5", "keydiff:0.5", "entropy,threshold=0.5", "window:0.3",
    "last:0.3", "stride:0.3", "random:0.3"];

// { kind: "format" | "attend" | "retain", kv, name, share, keys }. Throws where the text is none of
// the forms.
export function parsed(text) {
    if (KINDS.includes(text)) {
        return { kind: "format", kv: text, name: text, keys: [] };
    }
    const [, kv, name, share, keys] = text.match(/^(?:(\w+)\+)?(\w+)(?::([\d.]+))?((?:,[^,=]+=[^,]+)*)$/) ?? [];
    const isKnown = NAMES.includes(name) || (name === "top" && share !== undefined && keys === "");
    if (!isKnown || (kv !== undefined && !KINDS.includes(kv))) {
        throw new Error(`'${text}' is none of a KV format, [KV+]top:SHARE and [KV+]POLICY[:SHARE][,KEY=VALUE...]`);
    }
    return { kind: name === "top" ? "attend" : "retain", kv: kv ?? "f16", name, share: share === undefined ? undefined : Number(share),
        keys: keys.split(",").filter((k) => k !== "") };
}

// The policies of --policies and --shares. With shares, policies without one get each of them; with
// shares and no policies, all of ours get these shares instead of their own.
export function chosen(policies, shares) {
    const list = policies ?? (shares === undefined ? POLICIES : POLICIES.map((text) => {
        const p = parsed(text);
        return p.kind === "retain" && !p.keys.some((k) => k.startsWith("threshold=")) ? text.replace(/:[\d.]+/, "") : text;
    }));
    const out = list.flatMap((text) => {
        const p = parsed(text);
        const isFree = p.kind === "retain" && p.share === undefined && !p.keys.some((k) => k.startsWith("threshold="));
        return !isFree ? [text] : (shares ?? [0.5]).map((share) => text.replace(p.name, `${p.name}:${share}`));
    });
    return [...new Set(out)];
}

// The value of --retain. recent: protected last tokens of this yardstick. wholeLayers: full_layers
// of entropy, where the default ones would be most of the model's.
export function retainOf(p, { recent, wholeLayers }) {
    const has = (key) => p.keys.some((k) => k.startsWith(`${key}=`));
    const more = [...(p.name === "last" || has("recent") ? [] : [`recent=${recent}`]),
        ...(p.name === "entropy" && wholeLayers !== undefined && !has("full_layers") ? [`full_layers=${wholeLayers}`] : [])];
    return [p.share === undefined ? p.name : `${p.name}:${p.share}`, ...p.keys, ...more].join(",");
}

const SEALED = ["q6", "q5", "q4", "q3"];

// The options of a policy in one run, which condenses every `chunk` tokens. isShort: the model's
// texts are so short that sealed formats would be read in 8 bit by default.
export function argsOf(p, m, chunk) {
    const kv = ["--kv", p.kv];
    if (p.kind === "format") {
        return m.isShort && SEALED.includes(p.kv) ? [...kv, "--kv-recent", "0", "--kv-sinks", "0"] : kv;
    }
    return p.kind === "attend" ? [...kv, "--attend", `top:${p.share}`]
        : [...kv, "--retain", retainOf(p, m), "--prefill-chunk", `${chunk}`, "-b", `${chunk}`];
}

// Where the question of a task may be. Policies that look at no query, formats and reading less do
// not depend on it.
export const placesOf = (p) => (p.kind !== "retain" || BLIND.includes(p.name) ? ["after"] : ["after", "inside"]);

// As a reader sees it.
export const shown = (text) => text.replace("top:", "--attend top:").replace(/^(q\d|f16|bf16|f32)$/, "--kv $1");
