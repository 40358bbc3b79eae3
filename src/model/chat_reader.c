/* chat_reader.c - answers, piece by piece: see chat_format.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/chat_format.h"
#include "model/chat_internal.h"

#include "base/bytes.h"
#include "base/check.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

/* A long answer is read again only after so many times the time that reading took last. */
#define READ_SHARE 8u
/* Shorter answers are read at each call. */
#define READ_ALWAYS_BYTES 2048u

typedef struct shown_call {
    bool is_begun;
    size_t n_arguments;
} shown_call;

struct quire_chat_reader {
    quire_chat_reading *reading; /* NULL: of a built-in template, where all text is content */
    quire_bytes text;
    uint64_t read_again_ns;
    size_t n_reasoning, n_content; /* bytes that deltas have shown */
    shown_call calls[QUIRE_CHAT_CALLS_MAX];
};

int quire_chat_reader_create(quire_chat_reader **out, const quire_chat_prompt *prompt,
                             quire_error *err)
{
    quire_chat_parser *parser = quire_chat_prompt_parser(prompt);
    quire_chat_reader *reader = calloc(1, sizeof *reader);
    int rc = QUIRE_OK;

    *out = NULL;
    if (reader == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for reading an answer");
    }
    if (parser != NULL) {
        rc = quire_chat_reading_create(&reader->reading, parser, err);
    }
    if (rc < 0) {
        quire_chat_reader_destroy(reader);
        return rc;
    }
    *out = reader;
    return QUIRE_OK;
}

void quire_chat_reader_destroy(quire_chat_reader *reader)
{
    if (reader != NULL) {
        quire_chat_reading_destroy(reader->reading);
        quire_bytes_fini(&reader->text);
        free(reader);
    }
}

int quire_chat_reader_feed(quire_chat_reader *reader, const char *text, size_t n, bool is_last,
                           quire_error *err)
{
    uint64_t begun_ns;
    int rc;

    if (n > 0 && quire_bytes_add(&reader->text, text, n) < 0) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for an answer");
    }
    if (reader->reading == NULL || (n == 0 && !is_last)) {
        return QUIRE_OK;
    }
    begun_ns = quire_clock_ns();
    if (!is_last && reader->text.n > READ_ALWAYS_BYTES && begun_ns < reader->read_again_ns) {
        return QUIRE_OK;
    }
    rc =
        quire_chat_reading_read(reader->reading, reader->text.data != NULL ? reader->text.data : "",
                                reader->text.n, is_last, err);
    reader->read_again_ns = begun_ns + (1 + READ_SHARE) * (quire_clock_ns() - begun_ns);
    return rc;
}

void quire_chat_reader_answer(const quire_chat_reader *reader, quire_chat_answer *out)
{
    if (reader->reading != NULL) {
        quire_chat_reading_answer(reader->reading, out);
        return;
    }
    *out = (quire_chat_answer){
        .reasoning = { "", 0 },
        .content = { reader->text.data != NULL ? reader->text.data : "", reader->text.n },
        .is_whole = true,
    };
}

quire_chat_text quire_chat_reader_text(const quire_chat_reader *reader)
{
    return (quire_chat_text){ reader->text.data != NULL ? reader->text.data : "", reader->text.n };
}

/* ---- deltas ---- */

/* The part of a text behind the bytes that were shown; none while a reading has less than that. */
static bool rest(quire_chat_text whole, size_t *n_shown, quire_chat_text *out)
{
    if (whole.n <= *n_shown) {
        return false;
    }
    *out = (quire_chat_text){ whole.data + *n_shown, whole.n - *n_shown };
    *n_shown = whole.n;
    return true;
}

static bool call_delta(quire_chat_reader *reader, const quire_chat_call *call, uint32_t i,
                       quire_chat_delta *out)
{
    shown_call *shown = &reader->calls[i];

    *out = (quire_chat_delta){ .call = i, .id = call->id, .name = call->name };
    if (call->name.n == 0) {
        return false;
    }
    if (!shown->is_begun) {
        shown->is_begun = true;
        out->kind = QUIRE_CHAT_DELTA_CALL;
        return true;
    }
    out->kind = QUIRE_CHAT_DELTA_ARGUMENTS;
    return rest(call->arguments, &shown->n_arguments, &out->text);
}

bool quire_chat_reader_delta(quire_chat_reader *reader, quire_chat_delta *out)
{
    quire_chat_answer answer;

    quire_chat_reader_answer(reader, &answer);
    *out = (quire_chat_delta){ .kind = QUIRE_CHAT_DELTA_REASONING };
    if (rest(answer.reasoning, &reader->n_reasoning, &out->text)) {
        return true;
    }
    out->kind = QUIRE_CHAT_DELTA_CONTENT;
    if (rest(answer.content, &reader->n_content, &out->text)) {
        return true;
    }
    for (uint32_t i = 0; i < answer.n_calls && i < QUIRE_CHAT_CALLS_MAX; i++) {
        if (call_delta(reader, &answer.calls[i], i, out)) {
            return true;
        }
    }
    return false;
}

/* ---- history ---- */

static void add_json(quire_bytes *out, quire_chat_text text)
{
    (void)quire_bytes_add(out, "\"", 1);
    for (size_t i = 0; i < text.n; i++) {
        const unsigned char c = (unsigned char)text.data[i];

        if (c == '"' || c == '\\') {
            (void)quire_bytes_addf(out, "\\%c", c);
        } else if (c < ' ') {
            (void)quire_bytes_addf(out, "\\u%04x", c);
        } else {
            (void)quire_bytes_add(out, &text.data[i], 1);
        }
    }
    (void)quire_bytes_add(out, "\"", 1);
}

static void add_call(quire_bytes *out, const quire_chat_call *call)
{
    (void)quire_bytes_addf(out, "{\"id\":");
    add_json(out, call->id);
    (void)quire_bytes_addf(out, ",\"type\":\"function\",\"function\":{\"name\":");
    add_json(out, call->name);
    (void)quire_bytes_addf(out, ",\"arguments\":");
    add_json(out, call->arguments);
    (void)quire_bytes_addf(out, "}}");
}

int quire_chat_answer_extra(const quire_chat_answer *answer, char **extra)
{
    quire_bytes out = { 0 };

    *extra = NULL;
    if (answer->reasoning.n == 0 && answer->n_calls == 0) {
        return QUIRE_OK;
    }
    (void)quire_bytes_addf(&out, "{");
    if (answer->n_calls > 0) {
        (void)quire_bytes_addf(&out, "\"tool_calls\":[");
        for (uint32_t i = 0; i < answer->n_calls; i++) {
            (void)quire_bytes_addf(&out, "%s", i > 0 ? "," : "");
            add_call(&out, &answer->calls[i]);
        }
        (void)quire_bytes_addf(&out, "]%s", answer->reasoning.n > 0 ? "," : "");
    }
    if (answer->reasoning.n > 0) {
        (void)quire_bytes_addf(&out, "\"reasoning_content\":");
        add_json(&out, answer->reasoning);
    }
    (void)quire_bytes_addf(&out, "}");
    if (out.status < 0) {
        quire_bytes_fini(&out);
        return QUIRE_NOMEM;
    }
    *extra = out.data;
    return QUIRE_OK;
}
