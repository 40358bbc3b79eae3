/* read_mooncake.c - Mooncake's JSON Lines, and those of Qwen-Bailian, which have chats.
 *
 * The lines do not say how many tokens a block has. 512 is Mooncake's, 16 Qwen's; the usual size
 * that fits most of the first lines it is, and a line that does not fit it then is bad.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/reader.h"

#include "base/check.h"

#include <stdlib.h>

#define SIZE_LINES 200u /* that the size of blocks is taken from */

static const char *const input[2] = { "input_length", NULL };

static bool detect(const char *line, const json_t *json)
{
    (void)line;
    return json_is_array(json_object_get(json, "hash_ids"));
}

/* Whether n blocks of a size hold so many tokens, the last one partly filled or left out. */
static bool fits(uint64_t n_tokens, size_t n_blocks, uint32_t block_tokens)
{
    uint64_t full = n_tokens / block_tokens;

    return n_blocks == full || n_blocks == full + (n_tokens % block_tokens != 0);
}

/* The session of a chat: that of the chat it goes on from, else a new one. */
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

/* NULL, or what is wrong with the ids. */
static const char *ids_get(quire_reader *r, const json_t *ids, uint64_t n_input)
{
    size_t n = json_array_size(ids);

    if (!fits(n_input, n, r->trace->block_tokens)) {
        return "as many hash_ids as input_length does not take";
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);

        if (!json_is_integer(id)) {
            return "hash_ids are whole numbers";
        }
        r->keys[i] = (uint64_t)json_integer_value(id);
    }
    return NULL;
}

static int request_read(quire_reader *r, const json_t *json)
{
    static const char *const output[2] = { "output_length", NULL };
    const json_t *ids = json_object_get(json, "hash_ids");
    bool is_chat = json_object_get(json, "chat_id") != NULL;
    quire_trace_request request = { 0 };
    uint64_t n_input = 0;
    uint64_t n_output = 0;
    const char *why;

    if (!quire_reader_time(json, "timestamp", is_chat ? 1e6 : 1e3, &request.time_us)) {
        return quire_reader_bad(r, "no timestamp, a number from 0 on");
    }
    if (!quire_reader_count(json, input, 1, QUIRE_TRACE_TOKENS_MAX, &n_input)) {
        return quire_reader_bad(r, "no input_length, a whole number from 1 on");
    }
    if (!quire_reader_count(json, output, 0, QUIRE_TRACE_TOKENS_MAX, &n_output)) {
        return quire_reader_bad(r, "no output_length, a whole number");
    }
    if (!json_is_array(ids)) {
        return quire_reader_bad(r, "no hash_ids, a list");
    }
    QUIRE_TRY(quire_reader_keys(r, json_array_size(ids)));
    why = ids_get(r, ids, n_input);
    if (why != NULL) {
        return quire_reader_bad(r, "%s", why);
    }
    request.n_blocks = (uint32_t)json_array_size(ids);
    request.n_input_tokens = (uint32_t)n_input;
    request.n_output_tokens = (uint32_t)n_output;
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

static const uint32_t usual[] = { 512, 16, 64, 32, 128, 256, 1024 };
#define N_USUAL (sizeof(usual) / sizeof(usual[0]))

/* Count the sizes that a line fits. */
static void sizes_count(const json_t *json, uint32_t counts[N_USUAL])
{
    const json_t *ids = json_object_get(json, "hash_ids");
    uint64_t n_input;

    if (json_is_array(ids) &&
        quire_reader_count(json, input, 1, QUIRE_TRACE_TOKENS_MAX, &n_input)) {
        for (size_t i = 0; i < N_USUAL; i++) {
            counts[i] += fits(n_input, json_array_size(ids), usual[i]);
        }
    }
}

static int begin(quire_reader *r)
{
    uint32_t counts[N_USUAL] = { 0 };
    uint32_t best = 0;
    int rc = 1;

    r->is_quiet = true;
    for (uint32_t i = 0; i < SIZE_LINES && (rc = quire_reader_next(r)) > 0; i++) {
        json_t *json = json_loadb(r->line, r->line_bytes, 0, NULL);

        sizes_count(json, counts);
        json_decref(json);
    }
    r->is_quiet = false;
    QUIRE_TRY(rc);
    for (uint32_t i = 1; i < N_USUAL; i++) {
        best = counts[i] > counts[best] ? i : best;
    }
    r->trace->block_tokens = usual[best];
    return quire_reader_rewind(r);
}

const quire_reader_format quire_reader_mooncake = {
    .format = QUIRE_TRACE_FORMAT_MOONCAKE,
    .has_contents = true,
    .detect = detect,
    .line = line_read,
    .begin = begin,
};
