// events.mjs URL - the first event of a stream must come before the last one is made: a proxy that
// collects a reply would deliver both at once.
//
// The answer is as long as the context allows, and is given up after some events. A proxy that
// collects would deliver the first of them only when the answer has ended.
//
// SPDX-License-Identifier: MIT
const url = process.argv[2];
const abort = new AbortController();
const reply = await fetch(`${url}/v1/completions`, {
    method: 'POST',
    signal: abort.signal,
    body: JSON.stringify({ prompt: 'Once', max_tokens: 400, ignore_eos: true, stream: true }),
});
let text = '';
let events = 0;
for await (const piece of reply.body) {
    text += Buffer.from(piece).toString();
    events = text.split('\n\n').length - 1;
    if (events >= 3) {
        break;
    }
}
if (reply.status !== 200 || events < 3) {
    console.error(`no stream: status ${reply.status}, ${events} events: ${text}`);
    process.exit(1);
}
if (text.includes('[DONE]')) {
    console.error('the events of a stream came together, at its end');
    process.exit(1);
}
abort.abort();
process.exit(0);
