// curves_page.mjs - the page of scripts/compare-schemes.mjs in a real browser.
//
//   node curves_page.mjs --playwright DIR --axe DIR [--page FILE] [--windows NAME]
//
// Asserts that the page of made-up runs loads without an error and nothing from outside, that all
// curves are drawn inside of their axes, that runs of a scheme have one colour, that a run can be
// hidden, and the checks of all pages. --page: a page that is there already, for screenshots
// NAME-WIDTH-SCHEME.png.
//
// SPDX-License-Identifier: MIT
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { curvesPage, findingParts } from "../../scripts/schemes/curves.mjs";
import { findingsOf } from "../../scripts/schemes/findings.mjs";
import { checkPage, openPage } from "../page_checks.mjs";

const { values: args } = parseArgs({ options: { playwright: { type: "string" }, axe: { type: "string" }, page: { type: "string" },
    windows: { type: "string" } } });
const { chromium } = await import(pathToFileURL(join(args.playwright, "index.mjs")));
const SCHEMES = ["mha", "gqa", "cla2", "yoco", "fusedkv-lite", "fusedkv-lite-learnable", "fusedkv"];
const STEPS = 100;

// Losses that fall from 7 to about 2, and a little lower for later schemes.
function madeRun(scheme, seed) {
    const loss = (i) => 2 + 5 * Math.exp(-i / 10) - 0.05 * SCHEMES.indexOf(scheme) + 0.01 * seed + 0.05 * Math.sin(i * (seed + 1));
    const points = (each) => Array.from({ length: STEPS / each }, (_, i) => [4096 * each * (i + 1), loss(each * (i + 1))]);
    const gates = scheme !== "fusedkv" ? [] : [4, 5, 6, 7].map((layer) => ({ layer, k: { sources: [0, 3], sizes: [0.3, 0.7], share: 0.3 },
        v: { sources: [0, 3], sizes: [0.6, 0.5], share: 0.55 } }));
    return { scheme, seed, name: `${scheme}-${seed}`, group: scheme, log: { train: points(1), held: points(5) }, loss: loss(STEPS),
        cacheBytes: scheme === "mha" ? 2048 : 1024, flop: 1e10, parameters: 1e6, gates,
        recall: [0, 1, 2, 4, 8, 47].map((distance) => ({ distance, share: 1 / (1 + distance / 20) })) };
}

const runs = [1, 2, 3].flatMap((seed) => SCHEMES.map((scheme) => madeRun(scheme, seed)));

async function testPage(browser, path) {
    const { page, problems } = await openPage(browser, path);
    if (!args.page) {
        await testCurves(page);
    }
    const settle = () => page.waitForFunction(() => [...document.querySelectorAll("[data-plot] svg")].every((svg) =>
        Math.abs(svg.viewBox.baseVal.width - Math.max(300, svg.parentElement.clientWidth)) < 2));
    await checkPage(page, { axe: args.axe, settle, screenshot: args.windows });
    assert.deepEqual(problems, []);
}

const curves = (page, id) => page.evaluate((name) => [...document.querySelectorAll(`[data-plot=${name}] path[data-series]`)].map((path) => {
    const box = path.getBBox(), view = path.ownerSVGElement.viewBox.baseVal;
    return { name: path.dataset.series, colour: path.style.stroke, isInside: box.y > 0 && box.y + box.height < view.height && box.width > 100 };
}), id);

async function testCurves(page) {
    for (const id of ["held", "train"]) {
        const drawn = await curves(page, id);
        assert.deepEqual(drawn.map((c) => c.name).sort(), runs.map((r) => r.name).sort());
        assert.ok(drawn.every((c) => c.isInside), JSON.stringify(drawn));
        assert.equal(new Set(drawn.map((c) => c.colour)).size, SCHEMES.length);
    }
    assert.equal((await curves(page, "recall")).length, SCHEMES.length);
    assert.deepEqual((await curves(page, "gates-fusedkv")).map((c) => c.name), ["K", "V"]);
    assert.equal(await page.locator("[data-table=schemes] tr").count(), 1 + SCHEMES.length);
    await page.locator("[data-plot=held] .legend button").filter({ hasText: /^yoco-2$/ }).click();
    assert.ok(!(await curves(page, "held")).some((c) => c.name === "yoco-2"));
    await page.locator("[data-plot=held] svg").hover();
    assert.match(await page.textContent("#tip"), /tokens.*fusedkv-1\d\.\d{4}/);
    await page.mouse.move(1, 1);
}

const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
const folder = mkdtempSync(join(tmpdir(), "quire-curves-"));
try {
    const path = join(folder, "curves.html");
    writeFileSync(path, curvesPage({ title: "Runs of a test", about: "made up", runs, parts: findingParts(findingsOf(runs)) }));
    await testPage(browser, args.page ?? path);
    console.log("ok - curves, colours, legend, tip, tables");
} finally {
    await browser.close();
    rmSync(folder, { recursive: true });
}
