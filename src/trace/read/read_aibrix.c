/* read_aibrix.c - AIBrix's JSON Lines, which have the prompts as text.
 *
 * The file is read twice: first for the sums of the stated lengths and of the bytes of the prompts,
 * whose ratio says how many bytes stand for a token.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/read/reader.h"

#include "base/check.h"

#include <math.h>
#include <string.h>

#define TOKEN_BYTES_MIN 0.5
#define TOKEN_BYTES_MAX 64.0

static const char *const input[2] = { "Prompt Length", "prompt_length" };
static const char *const output[2] = { "Output Length", "output_length" };

static const json_t *requests_of(const json_t *json)
{
    const json_t *requests = json_object_get(json, "requests");

    return json_is_array(requests) ? requests : NULL;
}

static bool detect(const char *line, const json_t *json)
{
    const json_t *first = json_array_get(requests_of(json), 0);

    (void)line;
    return json_object_get(first, input[0]) != NULL || json_object_get(first, input[1]) != NULL ||
           json_object_get(first, "prompt") != NULL;
}

/* The session that a request names, as a number or as a text; 0 = it names none. */
static int session_of(quire_reader *r, const json_t *json, uint32_t *session)
{
    const json_t *id = json_object_get(json, "session_id");
    const char *text = json_string_value(id);

    if (json_is_integer(id)) {
        return quire_reader_session(r, (uint64_t)json_integer_value(id), session);
    }
    return text != NULL
               ? quire_reader_session(r, quire_reader_hash(text, json_string_length(id)), session)
               : QUIRE_OK;
}

static int request_read(quire_reader *r, const json_t *json, uint64_t time_us)
{
    const json_t *prompt = json_object_get(json, "prompt");
    quire_trace_request request = { .time_us = time_us };
    uint64_t n_input = 0;
    uint64_t n_output = 0;

    if (!json_is_string(prompt) || json_string_length(prompt) == 0) {
        return quire_reader_bad(r, "a request without a prompt, a text");
    }
    if (!quire_reader_count(json, output, 0, QUIRE_TRACE_TOKENS_MAX, &n_output)) {
        return quire_reader_bad(r, "a request without an Output Length, a whole number");
    }
    (void)quire_reader_count(json, input, 1, QUIRE_TRACE_TOKENS_MAX, &n_input);
    request.n_input_tokens = (uint32_t)n_input;
    request.n_output_tokens = (uint32_t)n_output;
    QUIRE_TRY(session_of(r, json, &request.session));
    QUIRE_TRY(
        quire_reader_text(r, json_string_value(prompt), json_string_length(prompt), &request));
    return quire_reader_add(r, &request);
}

static int requests_read(quire_reader *r, const json_t *json)
{
    const json_t *requests = requests_of(json);
    uint64_t time_us;

    if (requests == NULL) {
        return quire_reader_bad(r, "no requests, a list");
    }
    if (!quire_reader_time(json, "timestamp", 1e3, &time_us)) {
        return quire_reader_bad(r, "no timestamp, a number from 0 on");
    }
    for (size_t i = 0; i < json_array_size(requests); i++) {
        QUIRE_TRY(request_read(r, json_array_get(requests, i), time_us));
    }
    return QUIRE_OK;
}

static int line_read(quire_reader *r)
{
    json_t *json;
    int rc = quire_reader_json(r, &json);

    if (json != NULL) {
        rc = requests_read(r, json);
        json_decref(json);
    }
    return rc;
}

/* Of requests that have both. */
static void lengths_add(const json_t *requests, uint64_t *bytes, uint64_t *tokens)
{
    for (size_t i = 0; i < json_array_size(requests); i++) {
        const json_t *request = json_array_get(requests, i);
        const json_t *prompt = json_object_get(request, "prompt");
        uint64_t n = 0;

        if (json_is_string(prompt) && json_string_length(prompt) > 0 &&
            quire_reader_count(request, input, 1, QUIRE_TRACE_TOKENS_MAX, &n)) {
            *bytes += json_string_length(prompt);
            *tokens += n;
        }
    }
}

static int begin(quire_reader *r)
{
    uint64_t bytes = 0;
    uint64_t tokens = 0;
    int rc;

    r->is_quiet = true;
    while ((rc = quire_reader_next(r)) > 0) {
        json_t *json = json_loadb(r->line, r->line_bytes, 0, NULL);

        lengths_add(requests_of(json), &bytes, &tokens);
        json_decref(json);
    }
    r->is_quiet = false;
    QUIRE_TRY(rc);
    if (tokens > 0) {
        r->token_bytes =
            fmin(fmax((double)bytes / (double)tokens, TOKEN_BYTES_MIN), TOKEN_BYTES_MAX);
    }
    return quire_reader_rewind(r);
}

const quire_reader_format quire_reader_aibrix = {
    .format = QUIRE_TRACE_FORMAT_AIBRIX,
    .has_contents = true,
    .detect = detect,
    .line = line_read,
    .begin = begin,
};
