/* read_sharegpt.c - conversations, and single prompts, without times.
 *
 * A conversation of k answers becomes k requests: the prompt of each is the whole text before
 * its answer. The file has no times. The next turn arrives after the time of writing the answer at
 * a usual speed, plus a random time of thought.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/read/reader.h"

#include "base/bytes.h"
#include "base/check.h"

#include <math.h>
#include <string.h>

#define TURNS_MAX 1000u /* of a conversation: repeated turns make its trace grow as n^2 */
#define ANSWER_S  0.02  /* a token of an answer */

/* A conversation so far. */
typedef struct talk {
    quire_bytes text;
    double at_s; /* when the next request comes */
    uint32_t session;
    uint32_t n_turns;
} talk;

static const json_t *messages_of(const json_t *json)
{
    const json_t *messages = json_object_get(json, "conversations");

    messages = messages != NULL ? messages : json_object_get(json, "messages");
    return json_is_array(messages) ? messages : NULL;
}

static bool detect(const char *line, const json_t *json)
{
    (void)line;
    return messages_of(json) != NULL || (json_is_string(json_object_get(json, "input")) &&
                                         json_object_get(json, "output_length") != NULL);
}

static bool is_answer(const json_t *message)
{
    static const char *const who[] = {
        "gpt", "assistant", "chatgpt", "model", "bing", "bard", NULL
    };
    const char *from = json_string_value(json_object_get(message, "from"));

    from = from != NULL ? from : json_string_value(json_object_get(message, "role"));
    for (size_t i = 0; from != NULL && who[i] != NULL; i++) {
        if (strcmp(from, who[i]) == 0) {
            return true;
        }
    }
    return false;
}

static int turn_add(quire_reader *r, talk *t, size_t answer_bytes)
{
    quire_trace_request request = { .time_us = (uint64_t)llround(t->at_s * 1e6),
                                    .session = t->session,
                                    .n_output_tokens = quire_reader_text_tokens(r, answer_bytes) };

    QUIRE_TRY(quire_reader_text(r, t->text.data, t->text.n, &request));
    QUIRE_TRY(quire_reader_add(r, &request));
    t->n_turns++;
    t->at_s = fmin(t->at_s + request.n_output_tokens * ANSWER_S +
                       quire_reader_exponential(r, r->opts->think_s),
                   QUIRE_TRACE_LATEST_S);
    return QUIRE_OK;
}

static int messages_read(quire_reader *r, const json_t *messages, talk *t)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *message = json_array_get(messages, i);
        const json_t *value = json_object_get(message, "value");

        value = value != NULL ? value : json_object_get(message, "content");
        if (!json_is_string(value)) {
            return quire_reader_bad(r, "message %zu of a conversation has no text", i + 1);
        }
        if (is_answer(message) && t->text.n > 0) {
            if (t->n_turns == TURNS_MAX) {
                return quire_reader_bad(r, "a conversation of more than %u turns", TURNS_MAX);
            }
            QUIRE_TRY(turn_add(r, t, json_string_length(value)));
        }
        if (quire_bytes_add(&t->text, json_string_value(value), json_string_length(value)) < 0) {
            return quire_error_set(r->err, QUIRE_NOMEM, "%s:%llu: out of memory", r->name,
                                   (unsigned long long)r->line_number);
        }
    }
    return t->n_turns > 0 ? QUIRE_OK : quire_reader_bad(r, "a conversation without an answer");
}

static int conversation_read(quire_reader *r, const json_t *messages)
{
    talk t = { .at_s = quire_reader_arrival(r) };
    int rc = quire_reader_session(r, r->sessions.n, &t.session);

    if (rc == QUIRE_OK) {
        rc = messages_read(r, messages, &t);
    }
    quire_bytes_fini(&t.text);
    return rc;
}

static int prompt_read(quire_reader *r, const json_t *json)
{
    static const char *const output[2] = { "output_length", NULL };
    const json_t *input = json_object_get(json, "input");
    quire_trace_request request = { 0 };
    uint64_t n_output;

    if (!json_is_string(input) || json_string_length(input) == 0) {
        return quire_reader_bad(r, "neither conversations nor an input, a text");
    }
    if (!quire_reader_count(json, output, 0, QUIRE_TRACE_TOKENS_MAX, &n_output)) {
        return quire_reader_bad(r, "no output_length, a whole number");
    }
    request.time_us = (uint64_t)llround(quire_reader_arrival(r) * 1e6);
    request.n_output_tokens = (uint32_t)n_output;
    QUIRE_TRY(quire_reader_text(r, json_string_value(input), json_string_length(input), &request));
    return quire_reader_add(r, &request);
}

static int element_read(quire_reader *r, const json_t *json)
{
    const json_t *messages = messages_of(json);

    if (!json_is_object(json)) {
        return quire_reader_bad(r, "an element that is no object");
    }
    return messages != NULL ? conversation_read(r, messages) : prompt_read(r, json);
}

static int line_read(quire_reader *r)
{
    json_t *json;
    int rc = quire_reader_json(r, &json);

    if (json != NULL) {
        rc = element_read(r, json);
        json_decref(json);
    }
    return rc;
}

const quire_reader_format quire_reader_sharegpt = {
    .format = QUIRE_TRACE_FORMAT_SHAREGPT,
    .has_contents = true,
    .detect = detect,
    .line = line_read,
    .element = element_read,
};
