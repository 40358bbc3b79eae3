// page_checks.mjs - checks that hold for every page of Quire: nothing sticks out of a phone's or a
// laptop's window, and axe-core finds nothing to object to, in light and in dark colours.
//
// SPDX-License-Identifier: MIT
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

export const WINDOWS = [{ width: 390, height: 844 }, { width: 1280, height: 800 }];
const SCHEMES = ["light", "dark"];

// Elements that reach beyond the right border of the window, outside of parts that scroll.
const sticksOut = (page) => page.evaluate(() => {
    const scrolls = (e) => e && (/auto|scroll|hidden/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
    return [...document.body.querySelectorAll("*")]
        .filter((e) => e.getBoundingClientRect().right > window.innerWidth + 0.5 && !scrolls(e.parentElement))
        .map((e) => `${e.tagName.toLowerCase()} ${e.id || e.className}: ${Math.round(e.getBoundingClientRect().right)} px`);
});

// The rules that a page breaks, with the first elements that break them.
async function broken(page, axe) {
    await page.evaluate(readFileSync(join(axe, "axe.min.js"), "utf8"));
    const { violations } = await page.evaluate(() => globalThis.axe.run(document));
    return violations.map((v) => `${v.id}: ${v.help}: ${v.nodes.slice(0, 4).map((n) => `${n.html.slice(0, 160)} ${n.any[0]?.message ?? ""}`).join(" | ")}`);
}

// Open the page of a file, in a window with these options. problems fills with errors, and with the
// addresses of anything loaded from outside.
export async function openPage(browser, path, options = {}) {
    const page = await browser.newPage({ viewport: { width: 1280, height: 960 }, deviceScaleFactor: 1, ...options });
    const problems = [];
    page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
    page.on("console", (message) => { if (message.type() === "error") { problems.push(`console: ${message.text()}`); } });
    page.on("request", (request) => {
        if (request.url() !== pathToFileURL(path).href && !request.url().startsWith("data:")) {
            problems.push(`from outside: ${request.url()}`);
        }
    });
    await page.goto(pathToFileURL(path).href);
    return { page, problems };
}

// axe: the folder of axe-core. settle: waits until the page has drawn itself anew. screenshot: for
// files NAME-WIDTH-SCHEME.png, if given. windows: other sizes.
export async function checkPage(page, { axe, settle, screenshot, windows = WINDOWS }) {
    const before = page.viewportSize();
    const problems = [];
    for (const size of windows) {
        for (const scheme of SCHEMES) {
            const where = `${size.width} x ${size.height}, ${scheme}`;
            await page.setViewportSize(size);
            await page.emulateMedia({ colorScheme: scheme });
            await settle();
            const width = await page.evaluate(() => document.documentElement.scrollWidth);
            if (width > size.width) {
                problems.push(`${where}: ${width} px wide: ${(await sticksOut(page)).slice(0, 6).join(", ")}`);
            }
            problems.push(...(await broken(page, axe)).map((text) => `${where}: ${text}`));
            if (screenshot) {
                await page.screenshot({ path: `${screenshot}-${size.width}-${scheme}.png`, fullPage: true });
            }
        }
    }
    assert.deepEqual(problems, []);
    await page.emulateMedia({ colorScheme: null });
    await page.setViewportSize(before);
}
