// report.mjs - the pages of `quire analyze --html` and `quire sim --html` in a real browser.
//
//   node report.mjs --quire PROGRAM --trace FILE --playwright DIR --axe DIR [--windows NAME]
//                   [--page FILE --screenshot FILE [--dark]]
//
// Asserts that the page loads without an error and nothing from outside, that every plot has drawn
// its series, that values show under the pointer, that a legend hides its series, and that a name
// made to end the script element stays a text. --page: a page that is there already, for a
// screenshot.
//
// SPDX-License-Identifier: MIT
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { checkPage, openPage } from "../page_checks.mjs";

const { values: args } = parseArgs({ options: { quire: { type: "string" }, trace: { type: "string" }, page: { type: "string" },
    playwright: { type: "string" },
    axe: { type: "string" }, windows: { type: "string" }, screenshot: { type: "string" }, dark: { type: "boolean" } } });
const { chromium } = await import(pathToFileURL(join(args.playwright, "index.mjs")));
const PLOTS = ["policies", "lru", "regions", "hits-over-time", "arrivals", "held", "prompts", "new", "answers", "uses", "gaps",
    "gap-requests", "turns", "turn-gaps", "session-tokens"];
const POLICIES = ["default", "lru", "lfu", "slru", "fifo", "s3fifo", "sieve", "arc", "gdsf"];
const NASTY = "a<!--<script>&\"'.jsonl";

const open = (browser, path) => openPage(browser, path, { colorScheme: args.dark ? "dark" : "light" });

// The drawn paths of series, and the bars, by plot.
const drawn = (page) => page.evaluate(() => Object.fromEntries([...document.querySelectorAll("[data-plot]")].map((plot) => [plot.dataset.plot, {
    series: [...plot.querySelectorAll("path[data-series]")].filter((p) => p.getTotalLength() > 20).map((p) => p.dataset.series),
    bars: [...plot.querySelectorAll("rect.bar")].filter((r) => r.getBBox().width > 0 && r.getBBox().height > 0).length,
    ticks: plot.querySelectorAll("svg text").length,
}])));

async function testPlots(page, report, names) {
    const plots = await drawn(page);
    assert.deepEqual(Object.keys(plots).sort(), [...names].sort());
    for (const part of report.parts.filter((p) => p.series)) {
        const plot = plots[part.id];
        if (part.bars) {
            assert.equal(plot.bars, part.bars.filter((b) => b[2] > 0).length, part.id);
        } else if (part.kind === "lines") {
            assert.deepEqual(plot.series.sort(), part.series.map((s) => s.name).sort(), part.id);
        } else {
            assert.equal(plot.series.length, part.series.length, part.id);
        }
        assert.ok(plot.ticks >= 5, `${part.id} has axes`);
    }
    return plots;
}

// Belady's bound is one; LRU grows with the size and is the exact curve where both are.
function testFigures(report) {
    const rates = new Map(report.parts.find((p) => p.id === "policies").series.map((s) => [s.name, s.points]));
    const bound = rates.get("Belady");
    assert.ok(bound.length >= 3);
    for (const name of POLICIES) {
        rates.get(name).forEach(([x, rate], i) => {
            assert.equal(x, bound[i][0]);
            assert.ok(rate <= bound[i][1] + 1e-9, `${name} at ${x}: ${rate} > ${bound[i][1]}`);
        });
    }
    const lru = rates.get("lru");
    assert.ok(lru.every(([, rate], i) => i === 0 || rate >= lru[i - 1][1]));
    assert.ok(lru[lru.length - 1][1] > 0.05, "the trace repeats itself");
}

async function testPointer(page) {
    const box = await page.locator("[data-plot=policies] svg").boundingBox();
    await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
    assert.ok(await page.isVisible("#tip"));
    const tip = await page.textContent("#tip");
    assert.match(tip, /^[\d,]+ blocks/);
    for (const name of ["Belady", ...POLICIES]) {
        assert.ok(tip.includes(name), `${name} in ${tip}`);
    }
    await page.locator("[data-plot=prompts] svg").hover();
    assert.match(await page.textContent("#tip"), /tokens.*share.*%.*up to here.*%/);
    await page.mouse.move(1, 1);
    assert.equal(await page.isVisible("#tip"), false);
}

async function testLegend(page) {
    const key = page.locator("[data-plot=policies] .legend button").filter({ hasText: /^lru$/ });
    await key.click();
    assert.equal(await key.getAttribute("aria-pressed"), "false");
    assert.ok(!(await drawn(page)).policies.series.includes("lru"));
    await key.click();
    assert.ok((await drawn(page)).policies.series.includes("lru"));
}

// Axes of shares end at 100 % at the latest.
async function testAxes(page, report) {
    const shares = report.parts.filter((p) => p.series && p.y.format === "share").map((p) => p.id);
    assert.ok(shares.length >= 2);
    for (const id of shares) {
        const ticks = await page.locator(`[data-plot=${id}] svg text[text-anchor=end]:not(.marked)`).allTextContents();
        const values = ticks.filter((text) => text.endsWith(" %")).map((text) => parseFloat(text));
        assert.ok(values.length >= 2 && Math.max(...values) <= 100, `${id}: ${ticks}`);
    }
}

// Stacked series whose points come in groups of one x.
async function testStack(page) {
    const tops = await page.evaluate(() => stack([{ points: [[0, 1], [0, 2], [3, 1]] }, { points: [[0, 10], [0, 20], [3, 5]] }])
        .map((s) => s.points.map((p) => p[1])));
    assert.deepEqual(tops, [[1, 2, 1], [11, 22, 6]]);
}

// The plots have the width of the window.
async function redrawn(page) {
    await page.waitForFunction(() => [...document.querySelectorAll("[data-plot] svg")].every((svg) =>
        Math.abs(svg.viewBox.baseVal.width - Math.max(300, svg.parentElement.clientWidth)) < 2));
}

const dataOf = (path) => JSON.parse(readFileSync(path, "utf8").match(/<script id="data" type="application\/json">(.*?)<\/script>/s)[1]);

async function testSim(browser, folder) {
    const path = join(folder, "sim.html");
    execFileSync(args.quire, ["sim", args.trace, "--html", path, "--requests", "1000", "--mode", "time", "--policy", "lru,default",
        "--capacity", "3000,500,1000"], { stdio: ["ignore", "ignore", "ignore"] });
    const report = dataOf(path);
    const { page, problems } = await open(browser, path);
    const plots = await testPlots(page, report, ["policies", "ttft", "queued", "regions", "hits-over-time"]);
    assert.deepEqual(plots.policies.series, ["Belady", "default", "lru"]);
    assert.deepEqual(report.parts[0].series[0].points.map((p) => p[0]), [500, 1000, 3000]);
    assert.deepEqual(problems, []);
    await page.close();
    console.log("ok - quire sim's page");
}

async function testPage(browser, folder) {
    const path = join(folder, "page.html"), trace = join(folder, NASTY), yaml = join(folder, "quire.yaml");
    copyFileSync(args.trace, trace);
    execFileSync(args.quire, ["analyze", trace, "--html", path, "--yaml", yaml, "--requests", "3000", "--model", "llama-3-8b",
        "--capacity", "200,1000,4000,16000"], { stdio: ["ignore", "ignore", "inherit"] });
    const report = dataOf(path);
    assert.ok(report.about.startsWith(NASTY));
    const { page, problems } = await open(browser, path);
    assert.ok((await page.textContent("#about")).startsWith(NASTY));
    const plots = await testPlots(page, report, PLOTS);
    assert.deepEqual(plots.policies.series, ["Belady", ...POLICIES].sort());
    testFigures(report);
    await testPointer(page);
    await testLegend(page);
    assert.match(await page.textContent("[data-text=yaml] pre"), /\npage_tokens: \d+\n/);
    assert.equal(await page.textContent("[data-text=yaml] pre"), readFileSync(yaml, "utf8"));
    assert.equal(await page.locator("[data-table=hit-rates] tr").count(), 1 + POLICIES.length + 1);
    await testAxes(page, report);
    await testStack(page);
    await checkPage(page, { axe: args.axe, settle: () => redrawn(page), screenshot: args.windows });
    assert.deepEqual(problems, []);
    console.log(`ok - ${PLOTS.length} plots, pointer, legend, table, settings`);
}

const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const folder = mkdtempSync(join(tmpdir(), "quire-report-"));
try {
    if (args.page) {
        const { page, problems } = await open(browser, args.page);
        await page.screenshot({ path: args.screenshot, fullPage: true });
        assert.deepEqual(problems, []);
    } else {
        await testPage(browser, folder);
        await testSim(browser, folder);
    }
} finally {
    await browser.close();
    rmSync(folder, { recursive: true });
}
