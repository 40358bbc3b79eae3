// chat.mjs - the page to talk on in a real browser.
//
//   node chat.mjs --quire PROGRAM --model FILE --playwright DIR --axe DIR [--windows NAME]
//
// With a real server: turns, figures of the cache, branches, stop, reload, keys. With answers that
// this test makes up: Markdown that tries to become markup, thoughts, tool calls, errors, settings.
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
    playwright: { type: "string" }, axe: { type: "string" }, windows: { type: "string" } } });
const { chromium } = await import(pathToFileURL(join(args.playwright, "index.mjs")));
const FLAGS = ["serve", "-m", args.model, "-t", "1", "--chat-template", "chatml", "--kv-budget", "64MiB", "--kv", "f32"];
const WAIT = { timeout: 30000 };
const WINDOWS = [{ width: 390, height: 844 }, { width: 1280, height: 900 }];

async function openPage(context, port) {
    const page = await context.newPage();
    const problems = [];
    page.on("pageerror", (error) => problems.push(`error: ${error.message}`));
    page.on("console", (message) => {
        if (message.type() === "error" && !/40[013]|503|ERR_CONNECTION_REFUSED/.test(message.text())) {
            problems.push(`console: ${message.text()}`);
        }
    });
    page.on("request", (request) => {
        if (!request.url().startsWith(`http://127.0.0.1:${port}/`) && !request.url().startsWith("data:")) {
            problems.push(`from outside: ${request.url()}`);
        }
    });
    page.on("dialog", (dialog) => dialog.accept());
    await page.goto(`http://127.0.0.1:${port}/chat`);
    return { page, problems };
}

// A turn has ended when the button to send is back.
const idle = (page) => page.waitForFunction(() => !running && !document.querySelector("#send").hidden, null, WAIT);
async function ask(page, text) {
    await page.fill("#text", text);
    await page.press("#text", "Enter");
    await idle(page);
}
async function set(page, fields) {
    await page.click("#settings");
    for (const [name, value] of Object.entries(fields)) {
        await page.fill(`#s-${name}`, value);
    }
    await page.click("#apply");
    await page.waitForFunction(() => !document.querySelector("#panel").open, null, WAIT);
}
const figures = (page, i) => page.locator("article.assistant .cached").nth(i).textContent();
const numbers = (text) => text.match(/^([0-9,]+) of ([0-9,]+) prompt tokens from the cache . ([0-9,]+) computed/).slice(1).map((n) => Number(n.replaceAll(",", "")));

// ---- with a real server ----

async function testTurns(page) {
    await page.waitForFunction(() => /stories260K/.test(document.querySelector("#model").textContent), null, WAIT);
    await set(page, { system: "You tell stories about a little dog who lived in a small house near the forest.", max_tokens: "12", temperature: "0" });
    await page.fill("#text", "Tell me one");
    await page.press("#text", "Shift+Enter");
    assert.match(await page.inputValue("#text"), /\n$/);
    await ask(page, "Tell me a story.");
    const [cached, total, computed] = numbers(await figures(page, 0));
    assert.equal(cached + computed, total);
    await ask(page, "And then?");
    const second = numbers(await figures(page, 1));
    assert.ok(second[0] >= total, `the second turn shares the first: ${second} after ${total}`);
    assert.match(await page.textContent("#context"), /^[0-9,]+ of [0-9,]+ tokens of context$/);
    assert.match(await page.locator("article.assistant .actions").first().textContent(), /ended at the limit of tokens/);
    assert.equal(await page.locator("article.assistant .figures").first().locator("span").last().textContent(), "nothing was cached before");
}

async function testBranches(page) {
    const before = await page.locator("article").count();
    await page.locator("article.assistant").last().getByRole("button", { name: "Answer again, as a branch" }).click();
    await idle(page);
    const [cached, total] = numbers(await figures(page, 1));
    assert.ok(cached >= total - 1, `all of the prompt is there already: ${cached} of ${total}`);
    assert.equal(await page.locator("article").count(), before);
    assert.match(await page.locator("article.assistant .branches").last().textContent(), /2 of 2/);
    // The focus stays on the pressed button, or moves to the other one when the last branch is
    // reached.
    await page.locator("article.assistant .branches").last().getByRole("button", { name: "Earlier branch" }).focus();
    await page.keyboard.press("Enter");
    assert.match(await page.locator("article.assistant .branches").last().textContent(), /1 of 2/);
    assert.equal(await page.evaluate(() => document.activeElement.title), "Later branch");
    await page.keyboard.press("Enter");
    await page.keyboard.press("Enter");
    assert.match(await page.locator("article.assistant .branches").last().textContent(), /1 of 2/);
    const last = page.locator("article.user").last();
    await last.getByRole("button", { name: "Edit this message, as a branch" }).click();
    await last.locator("textarea").fill("And the cat?");
    await last.locator("textarea").press("Enter");
    await idle(page);
    assert.match(await page.locator("article.user .branches").last().textContent(), /2 of 2/);
    const [shared, all] = numbers(await figures(page, 1));
    assert.ok(shared > 0 && shared < all, `an edited turn shares what is before it: ${shared} of ${all}`);
    assert.match(await page.locator("article.assistant .figures").last().textContent(), /shared up to token [0-9,]+: the cached text goes on otherwise/);
    await page.locator("article.user .branches").last().getByRole("button", { name: "Earlier branch" }).click();
    assert.equal(await page.locator("article.user .text").last().textContent(), "And then?");
}

async function testKept(page) {
    const texts = await page.locator("article").allTextContents();
    await page.reload();
    await page.waitForSelector("article", WAIT);
    await page.waitForFunction(() => props !== null, null, WAIT);
    assert.deepEqual(await page.locator("article").allTextContents(), texts);
    await page.click("#new");
    assert.equal(await page.locator("article").count(), 0);
    await ask(page, "Another one.");
    assert.equal(await page.locator("#list li").count(), 2);
    await page.locator("#list li").nth(1).locator("button").first().click();
    assert.deepEqual(await page.locator("article").allTextContents(), texts);
    await page.getByRole("button", { name: "Delete Another one." }).click();
    assert.equal(await page.locator("#list li").count(), 1);
}

// An answer that never ends: the small model may be done before a key is pressed.
async function testStop(page) {
    await page.click("#new");
    await page.evaluate(() => {
        const real = window.fetch;
        window.fetch = (url, how) => /completions/.test(url) ? Promise.resolve(new Response(new ReadableStream({ start(stream) {
            stream.enqueue(new TextEncoder().encode('data: {"choices": [{"index": 0, "delta": {"content": "Once upon"}}]}\n\n'));
            how.signal.addEventListener("abort", () => stream.error(new DOMException("ended", "AbortError")));
        } }))) : real(url, how);
        window.fetch.real = real;
    });
    for (const stop of [() => page.keyboard.press("Escape"), () => page.click("#stop")]) {
        await page.fill("#text", "Once upon a time");
        await page.press("#text", "Enter");
        await page.waitForFunction(() => [...document.querySelectorAll("article.assistant > .md")].at(-1)?.textContent === "Once upon", null, WAIT);
        assert.ok(await page.isHidden("#send"));
        await stop();
        await idle(page);
        assert.match(await page.locator("article.assistant .actions").last().textContent(), /stopped/);
        assert.equal(await page.textContent("#said"), "stopped");
        // No usage has come, so the tokens are not known.
        assert.match(await page.textContent("#context"), /^[0-9,]+ tokens of context$/);
    }
    // A chat that is deleted while it is answered stays deleted.
    await page.click("#new");
    await page.fill("#text", "Once more");
    await page.press("#text", "Enter");
    await page.waitForFunction(() => running !== null, null, WAIT);
    await page.getByRole("button", { name: "Delete Once more" }).click();
    await page.waitForFunction(() => running === null, null, WAIT);
    assert.ok(!await page.evaluate(() => JSON.stringify(localStorage).includes("Once more")), "a deleted chat comes back");
    await page.evaluate(() => { window.fetch = window.fetch.real; });
}

// ---- with answers made up here ----

const RECORDED = [];
async function play(page, events) {
    await page.unroute("**/v1/chat/completions");
    await page.route("**/v1/chat/completions", (route) => {
        RECORDED.push(route.request().postDataJSON());
        return route.fulfill({ contentType: "text/event-stream",
            body: `${events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join("")}data: [DONE]\n\n` });
    });
}
const delta = (fields) => ({ choices: [{ index: 0, delta: fields, finish_reason: null }] });
const end = (reason) => ({ choices: [{ index: 0, delta: {}, finish_reason: reason }] });
const USAGE = { choices: [], usage: { prompt_tokens: 100, completion_tokens: 20, total_tokens: 120, prompt_tokens_details: { cached_tokens: 80 } } };

const MARKDOWN = `# A title

Some *emphasis*, **strong words**, \`code <b>\`, ~~gone~~ and snake_case_name.
<img src=x onerror="document.title='broken in'"> <script>document.title = 'broken in'</script>
[bad](javascript:alert(1)) [good](https://example.com/a_(b)) https://example.com/c. ![picture](https://example.com/p.png)

1. first
   - inner
2. second

> said before
> > and before that

| a | b |
|---|--:|
| 1 | ${"wide ".repeat(60)} |

\`\`\`js
const a = "<script>"; ${"// a long line ".repeat(20)}
\`\`\`
`;

async function testMarkdown(page) {
    await page.click("#new");
    await play(page, [...MARKDOWN.match(/[\s\S]{1,7}/g).map((content) => delta({ content })), end("stop"), USAGE]);
    await ask(page, "Show <b>all</b> of it");
    const answer = page.locator("article.assistant .md");
    assert.equal(await page.locator("article.user .text").textContent(), "Show <b>all</b> of it");
    assert.equal(await answer.locator("img, script, b").count(), 0);
    assert.equal(await page.title(), "Quire chat");
    assert.deepEqual(await answer.locator("a").evaluateAll((all) => all.map((a) => [a.getAttribute("href"), a.rel])), [
        ["https://example.com/a_(b)", "noopener noreferrer"], ["https://example.com/c", "noopener noreferrer"],
        ["https://example.com/p.png", "noopener noreferrer"]]);
    assert.match(await answer.textContent(), /\[bad\]\(javascript:alert\(1\)\)/);
    assert.match(await answer.textContent(), /snake_case_name/);
    for (const [selector, n] of [["h3", 1], ["em", 1], ["strong", 1], ["del", 1], ["ol > li", 2], ["ol ul > li", 1],
        ["blockquote blockquote", 1], ["th", 2], ["td", 2], ["pre", 1], ["p code", 1]]) {
        assert.equal(await answer.locator(selector).count(), n, selector);
    }
    assert.match(await answer.locator("pre").textContent(), /^const a = "<script>";/);
    assert.match(await figures(page, 0), /^80 of 100 prompt tokens from the cache . 20 computed/);
    // A text that is written in two parts, cut at any place, gives the same HTML as the whole.
    assert.deepEqual(await page.evaluate((text) => {
        const made = (parts) => { const into = document.createElement("div"); let all = ""; for (const part of parts) { all += part; markdown(into, all); } return into.innerHTML; };
        return [3, 11, 200].map((n) => made(text.match(new RegExp(`[\\s\\S]{1,${n}}`, "g"))) === made([text]));
    }, MARKDOWN), [true, true, true]);
    // Deep and long texts are no danger.
    assert.ok(await page.evaluate(() => {
        const into = document.createElement("div");
        for (const text of ["> ".repeat(5000) + "x", "*_".repeat(20000), Array.from({ length: 400 }, (_, i) => `${" ".repeat(2 * i)}- x`).join("\n")]) { markdown(into, text); }
        return into.textContent.length > 0;
    }));
}

async function testThoughtsAndTools(page) {
    const call = (fields) => delta({ tool_calls: [{ index: 0, ...fields }] });
    await page.click("#new");
    await set(page, { system: "", tools: '[{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]' });
    await play(page, [delta({ reasoning_content: "The user wants " }), delta({ reasoning_content: "the weather." }),
        call({ id: "c1", type: "function", function: { name: "weather", arguments: "" } }),
        call({ function: { arguments: '{"city": ' } }), call({ function: { arguments: '"Rome"}' } }), end("tool_calls"), USAGE]);
    await ask(page, "How is the weather in Rome?");
    const thoughts = page.locator("article.assistant .thoughts");
    assert.equal(await thoughts.evaluate((d) => d.open), false);
    assert.match(await thoughts.textContent(), /The user wants the weather\./);
    await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
    await page.getByRole("button", { name: "Copy this answer" }).click();
    await page.waitForFunction(() => [...document.querySelectorAll("article button")].some((each) => each.textContent === "copied"), null, WAIT);
    // Unfolded thoughts stay so when the turn is drawn anew.
    await thoughts.locator("summary").click();
    await page.evaluate(() => draw());
    assert.equal(await thoughts.evaluate((d) => d.open), true);
    await look(page, "call");
    await thoughts.locator("summary").click();
    assert.equal(await page.locator(".tool pre").textContent(), '{\n  "city": "Rome"\n}');
    assert.equal(RECORDED.at(-1).tools[0].function.name, "weather");
    await play(page, [delta({ content: "<think>Sun means nice.</think>" }), delta({ content: "It is sunny." }), end("stop"), USAGE]);
    await page.locator("article form textarea").fill('{"sky": "clear"}');
    await page.getByRole("button", { name: "Send the results" }).click();
    await idle(page);
    const { messages } = RECORDED.at(-1);
    assert.deepEqual(messages.map((m) => m.role), ["user", "assistant", "tool"]);
    assert.equal(messages[1].tool_calls[0].function.arguments, '{"city": "Rome"}');
    assert.equal(messages[1].reasoning_content, "The user wants the weather.");
    assert.deepEqual(messages[2], { role: "tool", content: '{"sky": "clear"}', tool_call_id: "c1" });
    assert.equal(await page.locator("article.assistant .thoughts").last().evaluate((d) => d.open), false);
    assert.equal(await page.locator("article.assistant > .md").last().textContent(), "It is sunny.");
    // A call that the limit has cut is shown, and left out of later requests.
    await play(page, [call({ id: "c2", type: "function", function: { name: "weather", arguments: '{"city": "Par' } }), end("length"), USAGE]);
    await ask(page, "And in Paris?");
    assert.equal(await page.locator(".tool summary").last().textContent(), "calls weather (cut off)");
    assert.equal(await page.locator("article form").count(), 0);
    await play(page, [delta({ content: "I do not know." }), end("stop"), USAGE]);
    await ask(page, "Well?");
    assert.deepEqual(RECORDED.at(-1).messages.slice(-3).map((m) => [m.role, m.content]),
        [["assistant", "It is sunny."], ["user", "And in Paris?"], ["user", "Well?"]].map(([role, content]) =>
            [role, role === "assistant" ? "<think>Sun means nice.</think>It is sunny." : content]));
    await set(page, { tools: "" });
}

async function testErrors(page) {
    await play(page, [delta({ content: "Half an ans" }), { error: { message: "the engine stopped" } }]);
    await ask(page, "Go on");
    assert.equal(await page.locator("article .error").textContent(), "the engine stopped");
    assert.equal(await page.locator("article.assistant > .md").last().textContent(), "Half an ans");
    assert.match(await page.textContent("#context"), /^more than 120 of [0-9,]+ tokens of context$/);
    await page.unroute("**/v1/chat/completions");
    await page.route("**/v1/chat/completions", (route) => route.fulfill({ status: 503, contentType: "application/json",
        body: '{"error": {"message": "the server is draining"}}' }));
    await page.locator("article.assistant").last().getByRole("button", { name: "Answer again, as a branch" }).click();
    await idle(page);
    assert.equal(await page.locator("article .error").textContent(), "the server is draining");
    await page.unroute("**/v1/chat/completions");
    await page.route("**/v1/chat/completions", (route) => route.abort("connectionrefused"));
    await page.locator("article.assistant").last().getByRole("button", { name: "Answer again, as a branch" }).click();
    await idle(page);
    assert.match(await page.locator("article .error").textContent(), /^the server does not answer \(/);
    await page.click("#settings");
    await page.fill("#s-temperature", "warm");
    await page.click("#apply");
    assert.equal(await page.textContent("#panel-error"), 'temperature: "warm" is no number');
    await page.fill("#s-temperature", "");
    await page.fill("#s-tools", "{");
    await page.click("#apply");
    assert.match(await page.textContent("#panel-error"), /^tools: /);
    await page.keyboard.press("Escape");
    await page.unroute("**/v1/chat/completions");
}

// A phone has its list of conversations in a drawer.
async function testPhone(page) {
    const before = page.viewportSize();
    await page.setViewportSize(WINDOWS[0]);
    assert.ok(await page.isHidden("#side"));
    await page.click("#menu");
    assert.ok(await page.isVisible("#side"));
    await page.keyboard.press("Escape");
    assert.ok(await page.isHidden("#side"));
    await page.setViewportSize(before);
}

// Keys of a screen: Enter makes a line, the button sends.
async function testTouch(browser, port) {
    const context = await browser.newContext({ viewport: WINDOWS[0], hasTouch: true, isMobile: true });
    const { page, problems } = await openPage(context, port);
    await page.waitForFunction(() => props !== null, null, WAIT);
    assert.ok(await page.isHidden("#keys"));
    await page.locator("#text").tap();
    await page.keyboard.type("Once");
    await page.keyboard.press("Enter");
    await page.keyboard.type("more");
    assert.equal(await page.inputValue("#text"), "Once\nmore");
    await page.evaluate(() => { chat.settings.max_tokens = 4; });
    await page.locator("#send").tap();
    await idle(page);
    assert.equal(await page.locator("article.user .text").textContent(), "Once\nmore");
    await page.locator("#menu").tap();
    await look(page, "menu", WINDOWS.slice(0, 1));
    await page.touchscreen.tap(WINDOWS[0].width - 20, WINDOWS[0].height - 200);
    assert.ok(await page.isHidden("#side"), "a tap beside the drawer closes it");
    assert.deepEqual(problems, []);
    await context.close();
}

const look = (page, name, windows = WINDOWS) => checkPage(page, { axe: args.axe, windows, screenshot: args.windows && `${args.windows}-${name}`,
    settle: () => page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))) });

async function testLooks(page) {
    await page.locator("#list li button").filter({ hasText: "Show <b>all</b>" }).first().click();
    await look(page, "markdown");
    await page.locator("#list li button").filter({ hasText: "weather in Rome" }).first().click();
    await look(page, "tools");
    await page.locator("#list li button").filter({ hasText: "Tell me a story." }).first().click();
    await look(page, "turns");
    await page.click("#settings");
    await look(page, "settings");
    await page.keyboard.press("Escape");
}

async function testAll(browser) {
    const server = await Server.start(args.quire, FLAGS);
    try {
        const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
        const { page, problems } = await openPage(context, server.port);
        await testTurns(page);
        await testBranches(page);
        await testKept(page);
        await testStop(page);
        await testMarkdown(page);
        await testThoughtsAndTools(page);
        await testErrors(page);
        await testPhone(page);
        await testLooks(page);
        await testTouch(browser, server.port);
        await page.getByRole("link", { name: "Dashboard" }).click();
        await page.waitForSelector("#state", WAIT);
        await page.getByRole("link", { name: "Chat" }).click();
        await page.waitForSelector("#composer", WAIT);
        assert.deepEqual(problems, []);
        await context.close();
        const { status } = await server.stop();
        assert.equal(status, 0);
    } finally {
        await server.stop();
    }
    console.log("ok - turns, figures, branches, reload, stop, Markdown, thoughts, tools, errors, phone, looks, touch");
}

async function testKey(browser) {
    const folder = mkdtempSync(join(tmpdir(), "quire-chat-"));
    const file = join(folder, "quire.yaml");
    writeFileSync(file, "api_keys:\n  - key: user-key-1\n    tenant: one\n");
    const server = await Server.start(args.quire, [...FLAGS, "--config", file]);
    try {
        const context = await browser.newContext();
        const { page } = await openPage(context, server.port);
        await page.waitForFunction(() => /Settings has a field for the API key/.test(document.querySelector("#model").textContent), null, WAIT);
        await set(page, { key: "user-key-1", max_tokens: "4" });
        await page.waitForFunction(() => /stories260K/.test(document.querySelector("#model").textContent), null, WAIT);
        await ask(page, "Hello");
        assert.equal(await page.locator("article .error").count(), 0);
        assert.equal(await page.evaluate(() => JSON.stringify(localStorage).includes("user-key-1")), false);
        await context.close();
    } finally {
        await server.stop();
        rmSync(folder, { recursive: true });
    }
    console.log("ok - the key");
}

const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
try {
    await testAll(browser);
    await testKey(browser);
} finally {
    await browser.close();
}
