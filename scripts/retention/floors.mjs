// floors.mjs - rows with a floor and an aim that `make retention` decides.
//
// SPDX-License-Identifier: MIT
import { answersOf, gathered, longest, solvedOf } from "./gather.mjs";
import { verdict } from "./intervals.mjs";

const ANSWERS = [["reconstruct:0.3", 0.95, 0.99], ["predict:0.3", 0.9, 0.97], ["entropy:0.5", 0.85, 0.95]];
const BESIDE = { policy: "entropy:0.5", others: ["window:0.5", "last:0.5", "stride:0.5"] };
const RATIOS = [["predict:0.5", 1.03, 1.01], ["q4+predict:0.5", 1.04, 1.02]];
const ATTEND = "top:0.125";

const percent = (v, digits = 0) => `${(100 * v).toFixed(digits)} %`;
const shareText = (a) => `${a.right} of ${a.texts}: ${percent(a.share.value, 1)} (${percent(a.share.low)} to ${percent(a.share.high)})`;
const signed = (v) => `${v < 1 ? "-" : "+"}${Math.abs(100 * (v - 1)).toFixed(1)} %`;

function answerRows(cells, m, tasks, asked) {
    const length = longest(cells, m, tasks, asked);
    const what = `${tasks.length === m.tasks.length ? "all tasks" : tasks.join(" and ")}, ${length} bytes`;
    const of = (policy) => answersOf(cells, m, { policy, where: "after", length, tasks }, asked);
    const rows = ANSWERS.flatMap(([policy, floor, aim]) => {
        const a = of(policy);
        return a === undefined ? [] : [[`${what}, \`${policy}\``, shareText(a), percent(floor), percent(aim),
            verdict(a.share, { floor, aim, aboveIsGood: true })]];
    });
    const a = of(BESIDE.policy);
    for (const other of a === undefined ? [] : BESIDE.others) {
        const b = of(other);
        if (b !== undefined) {
            const isAbove = a.share.value > b.share.value, isApart = a.share.low > b.share.high;
            rows.push([`${what}, \`${other}\`, beside \`${BESIDE.policy}\``, shareText(b), `below ${percent(a.share.value, 1)}`, "",
                isAbove ? `met${isApart ? "" : ", intervals overlap"}` : "**floor missed**"]);
        }
    }
    const read = of(ATTEND);
    if (read !== undefined) {
        rows.push([`${what}, \`--attend ${ATTEND}\``, shareText(read), "none lost", "", read.right === read.texts ? "met" : "**floor missed**"]);
    }
    return rows;
}

function ratioRows(cells, m, ratios, asked) {
    const c = gathered(cells, [m], [...ratios.map(([policy]) => policy), ATTEND], { ...asked, parts: ["continuation"] })[0]?.continuation;
    const rowOf = (policy) => c?.rows.find((r) => r.policy === policy);
    const rows = ratios.filter(([policy]) => rowOf(policy)).map(([policy, floor, aim]) => {
        const { ppl } = rowOf(policy);
        return [`${m.name} after ${m.scoreFrom} tokens, \`${policy}\`: perplexity`, `${signed(ppl.value)} (${signed(ppl.low)} to ${signed(ppl.high)})`,
            signed(floor), signed(aim), verdict(ppl, { floor, aim, aboveIsGood: false })];
    });
    const read = rowOf(ATTEND);
    return read === undefined ? rows : [...rows, [`${m.name}, \`--attend ${ATTEND}\`: KL divergence`,
        `${read.kld.value.toFixed(4)} (${read.kld.low.toFixed(4)} to ${read.kld.high.toFixed(4)})`, "", "", ""]];
}

// Tasks with texts of the longest length that one of them solves.
function measuredTasks(cells, m, asked) {
    const length = longest(cells, m, m.tasks, asked);
    return m.tasks.filter((task) => solvedOf(cells, m, task, length, asked) !== undefined);
}

function taskRows(cells, m, asked) {
    const measured = measuredTasks(cells, m, asked);
    return [...answerRows(cells, m, ["recall"], asked), ...(measured.length > 1 ? answerRows(cells, m, measured, asked) : [])];
}

// Rows of a table: what, measured, floor, aim, verdict.
export function floorRows(cells, models, asked) {
    const has = (part) => asked.parts.includes(part);
    return models.flatMap((m) => [...(m.key === "recall" && has("tasks") ? taskRows(cells, m, asked) : []),
    ...(["recall", "tinyllama"].includes(m.key) && has("continuation") ? ratioRows(cells, m, m.key === "tinyllama" ? RATIOS : [], asked) : [])]);
}
