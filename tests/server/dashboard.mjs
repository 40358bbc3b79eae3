// dashboard.mjs - the dashboard in a real browser, on a server that has something to show.
//
//   node dashboard.mjs --quire PROGRAM --model FILE --playwright DIR --axe DIR [--screenshot FILE]
//                      [--windows NAME]
//
// Asserts that the page loads without an error and nothing from outside, that its figures are those
// of /v1/cache/stats, that closing a session and dropping a pin work, and that the administrator's
// key is asked for.
//
// SPDX-License-Identifier: MIT
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";
import { Server } from "../../scripts/serve/server.mjs";
import { checkPage } from "../page_checks.mjs";

const { values: args } = parseArgs({ options: { quire: { type: "string" }, model: { type: "string" },
    playwright: { type: "string" },
    axe: { type: "string" }, screenshot: { type: "string" }, windows: { type: "string" } } });
const { chromium } = await import(pathToFileURL(join(args.playwright, "index.mjs")));
const FLAGS = ["serve", "-m", args.model, "-t", "1", "--chat-template", "chatml", "--kv-budget", "64MiB", "--pinned", "8MiB",
    "--pinned-ceiling", "16MiB", "--no-precache"];
const WAIT = { timeout: 30000 };

async function ask(port, body, key) {
    const reply = await fetch(`http://127.0.0.1:${port}/v1/completions`, { method: "POST", body: JSON.stringify(body),
        headers: { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) } });
    assert.equal(reply.status, 200, await reply.clone().text());
    return reply.json();
}

// Conversations with a shared beginning (in a session a prompt goes on where the last turn ended),
// a repetition, and a text that differs inside a page.
async function traffic(port, names) {
    const story = "Once upon a time there was a little dog who lived in a small house near the big forest. ".repeat(2);
    for (let turn = 0; turn < 3; turn++) {
        await Promise.all(names.map((name) => ask(port, { prompt: turn ? " Then he saw a cat." : `${story}${name} said: I see.`,
            max_tokens: 24, temperature: 0, ignore_eos: true, session_id: name })));
    }
    await ask(port, { prompt: story, max_tokens: 4, temperature: 0 });
    await ask(port, { prompt: `${story.slice(0, 60)}Then it rained.`, max_tokens: 4, temperature: 0 });
    await Promise.all([["realtime", 12], ["batch", 24]].map(([tier, n]) => ask(port, { prompt: `${story}${tier} asks.`, max_tokens: n,
        temperature: 0, ignore_eos: true, service_tier: tier })));
}

async function pin(port, name) {
    const reply = await fetch(`http://127.0.0.1:${port}/v1/cache/pins`, { method: "POST", headers: { "content-type": "application/json" },
        body: JSON.stringify({ name, text: "Once upon a time there was a little dog who lived in a small house.", ttl: "1h", class: "realtime" }) });
    assert.equal(reply.status, 201, await reply.clone().text());
}

async function openPage(browser, port) {
    const page = await browser.newPage({ viewport: { width: 1280, height: 960 } });
    const problems = [];
    page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
    page.on("console", (message) => {
        if (message.type() === "error" && !message.text().includes("401")) {
            problems.push(`console: ${message.text()}`);
        }
    });
    page.on("request", (request) => {
        if (!request.url().startsWith(`http://127.0.0.1:${port}/`) && !request.url().startsWith("data:")) {
            problems.push(`from outside: ${request.url()}`);
        }
    });
    await page.goto(`http://127.0.0.1:${port}/`);
    return { page, problems };
}

// Two more readings have been drawn.
async function redrawn(page) {
    const seen = await page.evaluate(() => readings.length);
    await page.waitForFunction((n) => readings.length >= n + 2, seen, WAIT);
}

// An axis ends near the highest value shown, so that small use is visible beside a large budget.
// Labels of charts hold their figures.
async function testAxes(page, port) {
    const { cache, memory } = await (await fetch(`http://127.0.0.1:${port}/v1/cache/stats`)).json();
    const used = cache.charged_bytes + memory.pinned_charged_bytes, budget = cache.budget_bytes + memory.pinned_budget_bytes;
    assert.ok(used > 0 && used < budget / 4, `${used} of ${budget}`);
    await redrawn(page);
    const top = await page.evaluate(() => Number(document.querySelector("#regions").dataset.top));
    assert.ok(top >= used && top <= 2 * used, `${used} bytes on an axis to ${top}`);
    for (const [id, figure] of [["throughput", /generated [0-9,]+ \/s/], ["latency", /first token, p95 [0-9.]+ ms/],
        ["regions", /dynamic, cached [0-9.]+ .?B/], ["memory", /free [0-9.]+ .?B/], ["pages", /\d+ pages in use/]]) {
        assert.match(await page.getAttribute(`#${id}`, "aria-label"), figure);
    }
}

// Few requests say nothing about other sizes; then more memory is never worse.
async function testWhatIf(page, port) {
    const note = page.locator("#what-if-note");
    assert.match(await note.textContent(), /^rates are shown from 100 requests with 500 .*so far there are \d+ requests/);
    assert.equal(await page.locator("#what-if tr").count(), 0);
    for (let i = 0; i < 100; i++) {
        await ask(port, { prompt: Array.from({ length: 400 }, (_, k) => 100 + (k ? k % 90 : i % 40)), max_tokens: 1, temperature: 0 });
    }
    await page.waitForFunction(() => document.querySelectorAll("#what-if tr").length === 4, null, WAIT);
    assert.match(await note.textContent(), /^\+[0-9.]+ .?B: hit rate [0-9.]+ % \u2192 [0-9.]+ %/);
    const { sizes, reason } = await (await fetch(`http://127.0.0.1:${port}/v1/cache/what-if`)).json();
    assert.equal(reason, null);
    assert.ok(sizes[0].hit_rate > 0 && sizes[1].hit_rate >= sizes[0].hit_rate && sizes[2].hit_rate >= sizes[1].hit_rate, JSON.stringify(sizes));
}

async function testFigures(browser) {
    const folder = mkdtempSync(join(tmpdir(), "quire-dashboard-"));
    const server = await Server.start(args.quire, [...FLAGS, "--cache-dir", join(folder, "cache"), "--store-all"]);
    try {
        await traffic(server.port, ["anna", "ben", "carla"]);
        await pin(server.port, "stories/beginning");
        const { page, problems } = await openPage(browser, server.port);
        await page.waitForFunction(() => document.querySelectorAll("#explain tr").length > 10, null, WAIT);
        await traffic(server.port, []); // the charts have two readings now
        const stats = await (await fetch(`http://127.0.0.1:${server.port}/v1/cache/stats`)).json();
        const total = stats.tokens.generated_total.toLocaleString("en");
        await page.waitForFunction((text) => document.querySelector("#generated-note").textContent === `${text} tokens in all`, total, WAIT);
        assert.match(await page.textContent("#requests-note"), new RegExp(`^${stats.requests.accepted_total} requests in all`));
        const rate = 100 * stats.prefix.hit_tokens_total / stats.prefix.query_tokens_total;
        assert.ok(rate > 30, `the traffic repeats itself: ${rate} %`);
        assert.ok((await page.textContent("#hits-note")).startsWith(`since the start ${rate.toFixed(1)} %`), await page.textContent("#hits-note"));
        assert.match(await page.textContent("#ttft"), /^[0-9.]+ m?s p50$/);
        assert.match(await page.textContent("#what"), /KV .*context/);
        assert.equal(await page.locator("#sessions tr").count(), 1 + 3);
        assert.match(await page.textContent("#explain"), /differs at token \d+/);
        assert.match(await page.textContent("#explain"), /pin:stories\/beginning/);
        assert.match(await page.textContent("#memory-legend"), /cached [0-9.]+ .?B/);
        assert.match(await page.textContent("#classes"), /realtime pinned.*standard.*batch/);
        assert.equal(await page.locator("#classes tr").count(), 1 + 3);
        assert.match(await page.textContent("#regions-legend"), /pins [0-9.]+ .?B/);
        assert.match(await page.textContent("#regions-legend"), /pinned region [0-9.]+ .?B/);
        await page.waitForFunction(() => /^[1-9][0-9,]* pages, [0-9.]+ .?B of 21.3 GB$/.test(document.querySelector("#tier-disk").textContent), null, WAIT);
        assert.match(await page.textContent("#tier-note"), /tokens were read instead of computed/);
        await testWhatIf(page, server.port);
        await page.waitForFunction(() => /^written [1-9][0-9.]* .?B, [1-9][0-9,]* pages/.test(document.querySelector("#tier-down").textContent), null, WAIT);
        assert.match(await page.textContent("#pins"), /stories\/beginning.*realtime/);
        assert.match(await page.textContent("#events"), /pin created/);
        await page.click("#tune-look");
        await page.waitForFunction(() => /requests of/.test(document.querySelector("#tuning-note").textContent), null, WAIT);
        const painted = await page.evaluate(() => ["pages", "throughput", "latency", "regions"].map((id) => {
            const canvas = document.getElementById(id);
            return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((v) => v !== 0);
        }));
        assert.deepEqual(painted, [true, true, true, true]);
        await page.hover("#pages", { position: { x: 5, y: 5 } });
        assert.match(await page.textContent("#tip"), /^page \d+.*tokens/);
        if (args.screenshot) {
            await page.mouse.move(0, 0);
            await page.screenshot({ path: args.screenshot, fullPage: true });
        }
        await testAxes(page, server.port);
        await checkPage(page, { axe: args.axe, settle: () => redrawn(page), screenshot: args.windows });
        await page.locator("#pins button").first().click();
        await page.waitForFunction(() => /none: POST/.test(document.querySelector("#pins").textContent), null, WAIT);
        await page.locator("#sessions button").first().click();
        await page.waitForFunction(() => document.querySelectorAll("#sessions tr").length === 3, null, WAIT);
        assert.equal((await (await fetch(`http://127.0.0.1:${server.port}/v1/cache/sessions`)).json()).total, 2);
        assert.deepEqual(problems, []);
        const { status } = await server.stop();
        assert.equal(status, 0);
        await page.waitForSelector("#state.bad", WAIT);
    } finally {
        await server.stop();
        rmSync(folder, { recursive: true, force: true });
    }
    console.log("ok - figures, charts, page map, classes, regions, what-if, pins, events, tuning, sessions, explanations");
}

async function testKey(browser) {
    const folder = mkdtempSync(join(tmpdir(), "quire-dashboard-"));
    const file = join(folder, "quire.yaml");
    writeFileSync(file, "api_keys:\n  - key: user-key-1\n    tenant: one\n  - key: admin-key-1\n    admin: true\n");
    const server = await Server.start(args.quire, [...FLAGS, "--config", file]);
    try {
        await ask(server.port, { prompt: "Once upon a time", max_tokens: 4 }, "user-key-1");
        const { page } = await openPage(browser, server.port);
        assert.ok(await page.isHidden("#tier"), "there is nothing below memory");
        await page.waitForSelector("#key.asked", WAIT);
        await page.fill("#key-text", "user-key-1");
        await page.click("#key button");
        await page.waitForFunction(() => document.querySelector("#state").textContent === "this is not the administrator's key", null, WAIT);
        // A user's key gets some of the replies: the form must stay, or a click misses it.
        await page.evaluate(() => {
            const form = document.querySelector("#key");
            window.formClasses = [];
            new MutationObserver(() => window.formClasses.push(form.className)).observe(form, { attributes: true });
        });
        await page.waitForFunction(() => window.formClasses.length >= 12, null, WAIT);
        assert.deepEqual([...new Set(await page.evaluate(() => window.formClasses))], ["asked"]);
        await page.fill("#key-text", "admin-key-1");
        await page.click("#key button");
        await page.waitForFunction(() => document.querySelectorAll("#explain tr").length === 2, null, WAIT);
        assert.equal(await page.isVisible("#key"), false);
        // The page knows of no request yet: its only one came before the first reading.
        assert.equal(await page.textContent("#hits"), "-");
        assert.match(await page.textContent("#hits-note"), /^since the start 0.0 % of \d+ prompt tokens$/);
    } finally {
        await server.stop();
        rmSync(folder, { recursive: true });
    }
    console.log("ok - the administrator's key");
}

// Two devices of one name, and measured page sizes of which none suits the disk.
async function testDevices(browser) {
    const folder = mkdtempSync(join(tmpdir(), "quire-dashboard-"));
    const file = join(folder, "pages.json");
    const curve = (...rates) => rates.map((rate, i) => ({ page_tokens: 64 << i, piece_bytes: 1, in_bytes_per_second: rate,
        out_bytes_per_second: 8, attention_bytes_per_second: null }));
    const memories = [{ memory: "host", page_tokens: 64, has_share: true, curve: curve(8, 4) },
        { memory: "disk", page_tokens: 128, has_share: false, curve: curve(2, 8) }];
    writeFileSync(file, JSON.stringify({ page_tokens: 128, has_share: false, memories }));
    const server = await Server.start(args.quire, ["serve", "-m", args.model, "-t", "1", "--chat-template", "chatml", "--kv-budget", "64MiB",
        "--device", "cpu,cpu", "--page-curve", file]);
    try {
        await ask(server.port, { prompt: "Once upon a time", max_tokens: 4 });
        const { page, problems } = await openPage(browser, server.port);
        await page.waitForFunction(() => document.querySelectorAll("#device-rows tr").length === 3, null, WAIT);
        assert.match(await page.textContent("#device-rows"), /0: cpu.*1: cpu/s);
        assert.match(await page.textContent("#page-size-rows"), /100 % \*50 %.*25 %100 % \?/s);
        assert.match(await page.textContent("#page-size-note"), /128 come nearest/);
        await checkPage(page, { axe: args.axe, settle: () => redrawn(page) });
        assert.deepEqual(problems, []);
    } finally {
        await server.stop();
        rmSync(folder, { recursive: true });
    }
    console.log("ok - devices, page sizes");
}

const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
try {
    await testFigures(browser);
    await testKey(browser);
    await testDevices(browser);
} finally {
    await browser.close();
}
