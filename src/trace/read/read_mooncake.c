/* read_mooncake.c - Mooncake's JSON Lines, and those of Qwen-Bailian, which have chats.
 *
 * Lines do not state the block size. Mooncake's is 512 tokens, Qwen's 16. The reader takes the
 * usual size that fits most of the first lines, or else the one size that fits all of them. In a
 * line that does not fit, the ids count, because a cache is asked for ids, and the length is
 * adjusted. A field that all first lines lack may be lacking in the others.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/read/reader.h"

#include "base/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_LINES      200u /* from which the form of the others follows */
#define BLOCK_TOKENS_MAX 65536u
#define DIGITS_MAX       19u /* that surely fit 64 bits */

static const char *const input[2] = { "input_length", NULL };
static const char *const output[2] = { "output_length", NULL };

static bool detect(const char *line, const json_t *json)
{
    (void)line;
    return json_is_array(json_object_get(json, "hash_ids"));
}

/* Whether n_tokens tokens fill n blocks of a size, the last one partly filled or left out. */
static bool fits(uint64_t n_tokens, size_t n_blocks, uint32_t block_tokens)
{
    uint64_t full = n_tokens / block_tokens;

    return n_blocks == full || n_blocks == full + (n_tokens % block_tokens != 0);
}

/* The session of a chat: the session of the chat that it continues, else a new one. */
static int chat_session(quire_reader *r, const json_t *json, uint32_t *session)
{
    const json_t *chat = json_object_get(json, "chat_id");
    const json_t *parent = json_object_get(json, "parent_chat_id");
    uint32_t found = QUIRE_ID_NONE;
    uint32_t chats;

    if (!json_is_integer(chat)) {
        return QUIRE_OK;
    }
    if (json_is_integer(parent) && json_integer_value(parent) >= 0) {
        found = quire_id_map_find(&r->sessions, (uint64_t)json_integer_value(parent));
    }
    QUIRE_TRY(quire_id_map_plan(&r->sessions, 1));
    chats = quire_id_map_put(&r->sessions, (uint64_t)json_integer_value(chat));
    if (chats >= r->sessions_capacity) {
        uint32_t capacity = r->sessions_capacity > 0 ? r->sessions_capacity * 2 : 1024;
        uint32_t *numbers = realloc(r->session_numbers, capacity * sizeof(*numbers));

        QUIRE_FAIL_IF(numbers == NULL, QUIRE_NOMEM);
        r->session_numbers = numbers;
        r->sessions_capacity = capacity;
    }
    *session = found != QUIRE_ID_NONE ? r->session_numbers[found] : ++r->trace->n_sessions;
    r->session_numbers[chats] = *session;
    return QUIRE_OK;
}

/* The key of an id: a number of any length, or a text. */
static bool id_key(const json_t *id, uint64_t *key)
{
    const char *text = json_string_value(id);
    size_t n = json_string_length(id);

    if (text == NULL) {
        *key = (uint64_t)json_integer_value(id);
        return json_is_integer(id);
    }
    /* A whole number is the same one with quotes and without. */
    if (n == 0 || n > DIGITS_MAX || strspn(text, "0123456789") != n) {
        *key = quire_reader_hash(text, n);
    } else {
        *key = strtoull(text, NULL, 10);
    }
    return true;
}

static bool ids_get(quire_reader *r, const json_t *ids)
{
    for (size_t i = 0; i < json_array_size(ids); i++) {
        if (!id_key(json_array_get(ids, i), &r->keys[i])) {
            return false;
        }
    }
    return true;
}

/* The prompt length closest to the line's that has this number of blocks. */
static uint32_t length_fit(quire_reader *r, uint64_t n_tokens, size_t n_blocks)
{
    const uint64_t block = r->trace->block_tokens;
    const uint64_t least = n_blocks > 0 ? (n_blocks - 1) * block + 1 : 1;
    const uint64_t most = n_blocks > 0 ? n_blocks * block : 1;

    if (!r->has_input) {
        return (uint32_t)most;
    }
    if (fits(n_tokens, n_blocks, r->trace->block_tokens)) {
        return (uint32_t)n_tokens;
    }
    if (r->report->n_fitted++ == 0) {
        r->report->fitted_first = r->line_number;
    }
    return (uint32_t)(n_tokens < least ? least : most);
}

/* Read a line's fields. Returns the fault, or NULL. */
static const char *fields_get(quire_reader *r, const json_t *json, quire_trace_request *request)
{
    const json_t *ids = json_object_get(json, "hash_ids");
    const size_t n = json_array_size(ids);
    uint64_t n_input = 0;
    uint64_t n_output = 0;

    if (r->time_unit_us > 0.0 &&
        !quire_reader_time(json, "timestamp", r->time_unit_us, &request->time_us)) {
        return "no timestamp, a number from 0 on";
    }
    if (r->has_input && !quire_reader_count(json, input, 1, QUIRE_TRACE_TOKENS_MAX, &n_input)) {
        return "no input_length, a whole number from 1 on";
    }
    if (r->has_output && !quire_reader_count(json, output, 0, QUIRE_TRACE_TOKENS_MAX, &n_output)) {
        return "no output_length, a whole number";
    }
    if (!json_is_array(ids)) {
        return "no hash_ids, a list";
    }
    if (n > QUIRE_TRACE_TOKENS_MAX / r->trace->block_tokens) {
        return "more hash_ids than a prompt can have";
    }
    request->n_blocks = (uint32_t)n;
    request->n_input_tokens = (uint32_t)n_input;
    request->n_output_tokens = (uint32_t)n_output;
    return NULL;
}

static int request_read(quire_reader *r, const json_t *json)
{
    const json_t *ids = json_object_get(json, "hash_ids");
    quire_trace_request request = { 0 };
    const char *why = fields_get(r, json, &request);

    if (why != NULL) {
        return quire_reader_bad(r, "%s", why);
    }
    QUIRE_TRY(quire_reader_keys(r, request.n_blocks));
    if (!ids_get(r, ids)) {
        return quire_reader_bad(r, "hash_ids are whole numbers or texts");
    }
    request.n_input_tokens = length_fit(r, request.n_input_tokens, request.n_blocks);
    if (!(r->time_unit_us > 0.0)) {
        request.time_us = (uint64_t)llround(quire_reader_arrival(r) * 1e6);
    }
    QUIRE_TRY(chat_session(r, json, &request.session));
    return quire_reader_add(r, &request);
}

static int line_read(quire_reader *r)
{
    json_t *json;
    int rc = quire_reader_json(r, &json);

    if (json != NULL) {
        rc = request_read(r, json);
        json_decref(json);
    }
    return rc;
}

/* ---- the form of the file, from its first lines ---- */

static const uint32_t usual[] = { 512, 16, 64, 32, 128, 256, 1024 };
#define N_USUAL (sizeof(usual) / sizeof(usual[0]))

typedef struct first_lines {
    uint32_t n;               /* that have blocks and a length */
    uint32_t counts[N_USUAL]; /* of lines that fit a size */
    uint64_t least;           /* sizes that fit all lines: from .. to */
    uint64_t most;
} first_lines;

/* Count the sizes that a line fits. */
static void sizes_count(first_lines *first, uint64_t n_tokens, size_t n_blocks)
{
    for (size_t i = 0; i < N_USUAL; i++) {
        first->counts[i] += fits(n_tokens, n_blocks, usual[i]);
    }
    if (n_blocks > 0) {
        const uint64_t least = (n_tokens + n_blocks - 1) / n_blocks;
        const uint64_t most = n_blocks > 1 ? (n_tokens - 1) / (n_blocks - 1) : BLOCK_TOKENS_MAX;

        first->least = least > first->least ? least : first->least;
        first->most = most < first->most ? most : first->most;
    }
    first->n++;
}

/* Timestamps that large count from 1970, in units that their size tells; others are milliseconds
 * from the beginning of the trace. */
static double time_unit(double timestamp, bool is_chat)
{
    if (timestamp >= 1e17) {
        return 1e-3;
    }
    if (timestamp >= 1e14) {
        return 1.0;
    }
    if (timestamp >= 1e11) {
        return 1e3;
    }
    return timestamp >= 1e9 || is_chat ? 1e6 : 1e3;
}

static bool has(const json_t *json, const char *name)
{
    const json_t *value = json_object_get(json, name);

    return value != NULL && !json_is_null(value);
}

static void line_look(quire_reader *r, const json_t *json, first_lines *first)
{
    const json_t *ids = json_object_get(json, "hash_ids");
    uint64_t n_input;

    if (has(json, "timestamp") && !(r->time_unit_us > 0.0)) {
        r->time_unit_us =
            time_unit(json_number_value(json_object_get(json, "timestamp")), has(json, "chat_id"));
    }
    r->has_input = r->has_input || has(json, input[0]);
    r->has_output = r->has_output || has(json, output[0]);
    if (json_is_array(ids) &&
        quire_reader_count(json, input, 1, QUIRE_TRACE_TOKENS_MAX, &n_input)) {
        sizes_count(first, n_input, json_array_size(ids));
    }
}

/* The block size: the usual size that fits most lines, if it fits half of them; else the roundest
 * size that fits all lines. */
static uint32_t size_choose(const first_lines *first)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < N_USUAL; i++) {
        best = first->counts[i] > first->counts[best] ? i : best;
    }
    if (first->counts[best] >= first->n - first->counts[best] || first->least > first->most) {
        return usual[best];
    }
    for (uint64_t round = BLOCK_TOKENS_MAX;; round /= 2) {
        uint64_t size = (first->least + round - 1) / round * round;

        if (size <= first->most) {
            return (uint32_t)size;
        }
    }
}

static int begin(quire_reader *r)
{
    first_lines first = { .least = 1, .most = BLOCK_TOKENS_MAX };
    int rc = 1;

    r->is_quiet = true;
    for (uint32_t i = 0; i < FIRST_LINES && (rc = quire_reader_next(r)) > 0; i++) {
        json_error_t error;
        json_t *json = quire_reader_load(r, 0, &error);

        line_look(r, json, &first);
        json_decref(json);
    }
    r->is_quiet = false;
    QUIRE_TRY(rc);
    r->trace->block_tokens = size_choose(&first);
    r->report->has_no_times = !(r->time_unit_us > 0.0);
    return quire_reader_rewind(r);
}

const quire_reader_format quire_reader_mooncake = {
    .format = QUIRE_TRACE_FORMAT_MOONCAKE,
    .has_contents = true,
    .detect = detect,
    .line = line_read,
    .begin = begin,
};
