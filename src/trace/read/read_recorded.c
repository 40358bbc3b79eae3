/* read_recorded.c - files that record.h writes. A file may have several headers: each begins a
 * recording with a key of its own, so prefixes of different recordings never show as equal.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/read/reader.h"

#include "base/check.h"
#include "trace/online/record.h"

#include <stdio.h>
#include <string.h>

static bool is_header(const json_t *json)
{
    return json_is_integer(json_object_get(json, "quire_trace"));
}

static bool detect(const char *line, const json_t *json)
{
    (void)line;
    return is_header(json);
}

static int header_read(quire_reader *r, const json_t *json)
{
    static const char *const block_tokens[2] = { "block_tokens", NULL };
    const json_t *classes = json_object_get(json, "classes");
    quire_trace *trace = r->trace;
    uint64_t n_tokens;

    if (json_integer_value(json_object_get(json, "quire_trace")) != QUIRE_RECORD_VERSION) {
        return quire_error_set(r->err, QUIRE_UNSUPP, "%s:%llu: version %lld of recorded traces",
                               r->name, (unsigned long long)r->line_number,
                               (long long)json_integer_value(json_object_get(json, "quire_trace")));
    }
    if (!quire_reader_count(json, block_tokens, 1, QUIRE_RECORD_BLOCK_TOKENS, &n_tokens) ||
        (r->has_header && n_tokens != trace->block_tokens)) {
        return quire_reader_bad(r, "a header without the block_tokens of this trace");
    }
    trace->block_tokens = (uint32_t)n_tokens;
    r->recording = r->line_number;
    for (uint32_t i = 0; i < json_array_size(classes) && i < QUIRE_TRACE_CLASSES_MAX; i++) {
        const char *name = json_string_value(json_array_get(classes, i));

        (void)snprintf(trace->class_names[i], QUIRE_TRACE_NAME_MAX, "%s", name != NULL ? name : "");
        trace->n_classes = trace->n_classes > i ? trace->n_classes : i + 1;
    }
    r->has_header = true;
    return QUIRE_OK;
}

/* ---- blocks ---- */

static bool digits_parse(const char *text, uint64_t *out)
{
    uint64_t value = 0;

    for (uint32_t i = 0; i < QUIRE_RECORD_DIGITS; i++) {
        const char c = text[i];
        uint64_t digit = c >= '0' && c <= '9'   ? (uint64_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint64_t)(c - 'a' + 10)
                                                : 16;

        if (digit == 16) {
            return false;
        }
        value = value << 4 | digit;
    }
    *out = value;
    return true;
}

/* Returns NULL, or the fault. */
static const char *hashes_get(quire_reader *r, const json_t *blocks, uint32_t n_blocks)
{
    const char *digits = json_string_value(blocks);

    if (json_string_length(blocks) != (size_t)n_blocks * QUIRE_RECORD_DIGITS) {
        return "as many blocks as the input does not take";
    }
    for (uint32_t i = 0; i < n_blocks; i++) {
        if (!digits_parse(digits + (size_t)i * QUIRE_RECORD_DIGITS, &r->keys[i])) {
            return "blocks are hexadecimal digits";
        }
    }
    return NULL;
}

/* Token ids in the clear: blocks are named by the same hash, under a key that is no secret. */
static const char *tokens_get(quire_reader *r, const json_t *list, const quire_trace_request *q)
{
    static const uint64_t key[2] = { 0, 0 };
    uint64_t hash = quire_record_chain_begin(key, q->tenant);
    int32_t tokens[QUIRE_RECORD_BLOCK_TOKENS];
    uint32_t block_tokens = r->trace->block_tokens;

    if (json_array_size(list) != q->n_input_tokens) {
        return "as many tokens as the input does not have";
    }
    for (uint32_t i = 0; i < q->n_blocks; i++) {
        uint32_t first = i * block_tokens;
        uint32_t n = q->n_input_tokens - first;

        n = n < block_tokens ? n : block_tokens;
        for (uint32_t k = 0; k < n; k++) {
            const json_t *token = json_array_get(list, first + k);

            if (!json_is_integer(token) || json_integer_value(token) < 0 ||
                json_integer_value(token) > INT32_MAX) {
                return "tokens are ids from 0 on";
            }
            tokens[k] = (int32_t)json_integer_value(token);
        }
        hash = quire_record_chain_add(key, hash, tokens, n);
        r->keys[i] = hash;
    }
    return NULL;
}

/* A request with known lengths only: its blocks are unique. */
static void own_get(quire_reader *r, uint32_t n_blocks)
{
    for (uint32_t i = 0; i < n_blocks; i++) {
        r->keys[i] = quire_id_pair(r->line_number, i);
    }
}

/* ---- requests ---- */

static bool numbers_read(const json_t *json, quire_trace_request *q)
{
    static const struct {
        const char *name[2];
        uint64_t min, max;
    } fields[] = {
        { { "input", NULL }, 1, QUIRE_TRACE_TOKENS_MAX },
        { { "output", NULL }, 0, QUIRE_TRACE_TOKENS_MAX },
        { { "tenant", NULL }, 0, UINT32_MAX - 1 },
        { { "session", NULL }, 0, UINT32_MAX - 1 },
        { { "class", NULL }, 0, QUIRE_TRACE_CLASSES_MAX - 1 },
    };
    uint64_t values[5];

    for (size_t i = 0; i < 5; i++) {
        if (!quire_reader_count(json, fields[i].name, fields[i].min, fields[i].max, &values[i])) {
            return false;
        }
    }
    q->n_input_tokens = (uint32_t)values[0];
    q->n_output_tokens = (uint32_t)values[1];
    q->tenant = (uint32_t)values[2];
    q->session = (uint32_t)values[3];
    q->class_index = (uint8_t)values[4];
    return quire_reader_time(json, "t", 1.0, &q->time_us);
}

static int request_read(quire_reader *r, const json_t *json)
{
    const json_t *blocks = json_object_get(json, "blocks");
    const json_t *tokens = json_object_get(json, "tokens");
    quire_trace_request q = { 0 };
    const char *why = NULL;

    if (!r->has_header) {
        return quire_reader_bad(r, "no header before it");
    }
    if (!numbers_read(json, &q)) {
        return quire_reader_bad(r, "no t, tenant, class, session, input or output");
    }
    q.n_blocks = (q.n_input_tokens + r->trace->block_tokens - 1) / r->trace->block_tokens;
    QUIRE_TRY(quire_reader_keys(r, q.n_blocks));
    if (json_is_string(blocks)) {
        why = hashes_get(r, blocks, q.n_blocks);
    } else if (json_is_array(tokens)) {
        why = tokens_get(r, tokens, &q);
    } else {
        own_get(r, q.n_blocks);
    }
    if (why != NULL) {
        return quire_reader_bad(r, "%s", why);
    }
    if (q.class_index >= r->trace->n_classes) {
        r->trace->n_classes = q.class_index + 1u; /* without a name */
    }
    QUIRE_TRY(quire_reader_tenant(r, q.tenant, &q.tenant));
    if (q.session > 0) {
        QUIRE_TRY(quire_reader_session(r, quire_id_pair(r->recording, q.session), &q.session));
    }
    return quire_reader_add(r, &q);
}

static int line_read(quire_reader *r)
{
    json_t *json;
    int rc = quire_reader_json(r, &json);

    if (json != NULL) {
        rc = is_header(json) ? header_read(r, json) : request_read(r, json);
        json_decref(json);
    }
    return rc;
}

const quire_reader_format quire_reader_recorded = {
    .format = QUIRE_TRACE_FORMAT_RECORDED,
    .has_contents = true,
    .detect = detect,
    .line = line_read,
};
