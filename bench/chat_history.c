/* chat_history.c - see chat_history.h.
 *
 * SPDX-License-Identifier: MIT */
#include "chat_history.h"

#include "base/bytes.h"
#include "base/rng.h"

#include <stdlib.h>
#include <string.h>

#define N_TOOLS    20u
#define TEXTS_PER  2u   /* of a message: content, extra */
#define CALL_BYTES 160u /* of a call's arguments, and of the words around it */
#define LINE_WORDS 9u

static const char *const words[] = {
    "return",  "the",     "static", "value", "file",   "count", "buffer", "index", "error",
    "request", "server",  "token",  "if",    "cache",  "page",  "when",   "line",  "test",
    "handler", "pointer", "loop",   "state", "update", "reads", "writes", "after", "message",
};
#define N_WORDS (sizeof words / sizeof words[0])

/* Lines as in a source file: words, numbers, punctuation. */
static void add_lines(quire_bytes *out, quire_rng *rng, size_t n_bytes, const char *line_end)
{
    const size_t end = out->n + n_bytes;

    while (out->n < end && out->status == QUIRE_OK) {
        for (unsigned i = 0; i < LINE_WORDS; i++) {
            (void)quire_bytes_addf(out, "%s%s", words[quire_rng_below(rng, N_WORDS)],
                                   quire_rng_below(rng, 8) == 0 ? "(x);" : " ");
        }
        (void)quire_bytes_addf(out, "%u%s", quire_rng_below(rng, 1000), line_end);
    }
}

static char *make_tools(quire_rng *rng)
{
    quire_bytes out = { 0 };

    (void)quire_bytes_addf(&out, "[");
    for (unsigned i = 0; i < N_TOOLS; i++) {
        (void)quire_bytes_addf(&out,
                               "%s{\"type\":\"function\",\"function\":{\"name\":\"tool_%u\","
                               "\"description\":\"",
                               i > 0 ? "," : "", i);
        add_lines(&out, rng, 300, " ");
        (void)quire_bytes_addf(
            &out, "\",\"parameters\":{\"type\":\"object\",\"properties\":{\"path\":{\"type\":"
                  "\"string\",\"description\":\"The file\"},\"line\":{\"type\":\"integer\"},"
                  "\"text\":{\"type\":\"string\"},\"options\":{\"type\":\"array\",\"items\":"
                  "{\"type\":\"string\"}}},\"required\":[\"path\"]}}}");
    }
    (void)quire_bytes_addf(&out, "]");
    return out.data;
}

/* The text belongs to the history; NULL without memory. */
static char *own(chat_history *h, quire_bytes *text)
{
    (void)quire_bytes_add(text, "", 0);
    if (text->status < 0) {
        quire_bytes_fini(text);
        return NULL;
    }
    h->texts[h->n_texts++] = text->data;
    h->n_bytes += text->n;
    return text->data;
}

static int add_message(chat_history *h, quire_rng *rng, const char *role, size_t n_bytes,
                       quire_bytes *extra)
{
    quire_bytes text = { 0 };
    quire_chat_message *message = &h->messages[h->n++];

    message->role = role;
    add_lines(&text, rng, n_bytes, "\n");
    message->content = own(h, &text);
    message->extra = extra != NULL ? own(h, extra) : NULL;
    return message->content == NULL || (extra != NULL && message->extra == NULL) ? QUIRE_NOMEM
                                                                                 : QUIRE_OK;
}

static int add_call(chat_history *h, quire_rng *rng, unsigned i, size_t n_bytes)
{
    quire_bytes call = { 0 };
    quire_bytes result = { 0 };
    int rc;

    (void)quire_bytes_addf(&call,
                           "{\"tool_calls\":[{\"id\":\"call%05u\",\"type\":\"function\","
                           "\"function\":{\"name\":\"tool_%u\",\"arguments\":\"{\\\"path\\\": "
                           "\\\"src/file_%u.c\\\", \\\"text\\\": \\\"",
                           i, i % N_TOOLS, i);
    add_lines(&call, rng, CALL_BYTES / 2, " ");
    (void)quire_bytes_addf(&call, "\\\"}\"}}]}");
    (void)quire_bytes_addf(&result, "{\"tool_call_id\":\"call%05u\",\"name\":\"tool_%u\"}", i,
                           i % N_TOOLS);
    rc = add_message(h, rng, "assistant", CALL_BYTES / 2, &call);
    return rc == QUIRE_OK ? add_message(h, rng, "tool", n_bytes, &result) : rc;
}

int chat_history_make(chat_history *out, size_t n_turns, size_t n_bytes, bool has_tools)
{
    const size_t n_most = 2 * n_turns + 4;
    quire_rng rng = { 24 };
    int rc;

    *out = (chat_history){ 0 };
    out->messages = calloc(n_most, sizeof *out->messages);
    out->texts = calloc(n_most * TEXTS_PER, sizeof *out->texts);
    rc = out->messages != NULL && out->texts != NULL ? QUIRE_OK : QUIRE_NOMEM;
    if (rc == QUIRE_OK && has_tools) {
        out->tools = make_tools(&rng);
        rc = out->tools != NULL ? QUIRE_OK : QUIRE_NOMEM;
        out->n_bytes = rc == QUIRE_OK ? strlen(out->tools) : 0;
    }
    if (rc == QUIRE_OK) {
        rc = add_message(out, &rng, "system", n_bytes / 10, NULL);
    }
    if (rc == QUIRE_OK) {
        rc = add_message(out, &rng, "user", 400, NULL);
    }
    for (unsigned i = 0; i < n_turns && rc == QUIRE_OK; i++) {
        const size_t left = n_bytes > out->n_bytes ? n_bytes - out->n_bytes : 0;
        const size_t share = left / (n_turns - i);

        if (has_tools) {
            rc =
                add_call(out, &rng, i, share > 3 * CALL_BYTES ? share - 2 * CALL_BYTES : share / 2);
        } else {
            rc = add_message(out, &rng, "assistant", share * 3 / 4, NULL);
            rc = rc == QUIRE_OK ? add_message(out, &rng, "user", share / 4, NULL) : rc;
        }
    }
    if (rc == QUIRE_OK && has_tools) {
        rc = add_message(out, &rng, "assistant", 200, NULL);
        rc = rc == QUIRE_OK ? add_message(out, &rng, "user", 100, NULL) : rc;
    }
    if (rc < 0) {
        chat_history_fini(out);
    }
    return rc;
}

void chat_history_fini(chat_history *history)
{
    for (size_t i = 0; i < history->n_texts; i++) {
        free(history->texts[i]);
    }
    free(history->texts);
    free(history->messages);
    free(history->tools);
    *history = (chat_history){ 0 };
}
