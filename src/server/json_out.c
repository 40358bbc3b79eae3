/* json_out.c - writing JSON.
 *
 * SPDX-License-Identifier: MIT */
#include "server/json_out.h"

#include "model/model.h"
#include "model/text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define PIECE_BYTES 256u

static void add_literal(quire_json_out *json, const char *text)
{
    (void)quire_bytes_add(json->bytes, text, strlen(text));
}

/* Text that is UTF-8, without its quotes. */
static void add_escaped(quire_json_out *json, const char *text, size_t n)
{
    size_t begin = 0;

    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];

        if (c >= 0x20 && c != '"' && c != '\\' && c != 0x7f) {
            continue;
        }
        (void)quire_bytes_add(json->bytes, text + begin, i - begin);
        begin = i + 1;
        switch (c) {
        case '"':
            add_literal(json, "\\\"");
            break;
        case '\\':
            add_literal(json, "\\\\");
            break;
        case '\n':
            add_literal(json, "\\n");
            break;
        default:
            (void)quire_bytes_addf(json->bytes, "\\u%04x", c);
            break;
        }
    }
    (void)quire_bytes_add(json->bytes, text + begin, n - begin);
}

static void add_quoted(quire_json_out *json, const char *text, size_t n)
{
    quire_utf8_stream stream = { { 0 }, 0 };
    char whole[3 * (PIECE_BYTES + 3)];

    add_literal(json, "\"");
    for (size_t i = 0; i < n; i += PIECE_BYTES) {
        const size_t n_piece = n - i < PIECE_BYTES ? n - i : PIECE_BYTES;

        add_escaped(json, whole, quire_utf8_stream_feed(&stream, text + i, n_piece, whole));
    }
    add_escaped(json, whole, quire_utf8_stream_flush(&stream, whole));
    add_literal(json, "\"");
}

static void value_begin(quire_json_out *json, const char *key)
{
    if (json->needs_comma) {
        add_literal(json, ",");
    }
    if (key != NULL) {
        add_quoted(json, key, strlen(key));
        add_literal(json, ":");
    }
    json->needs_comma = true;
}

static void begin(quire_json_out *json, const char *key, const char *bracket)
{
    value_begin(json, key);
    add_literal(json, bracket);
    json->needs_comma = false;
}

static void end(quire_json_out *json, const char *bracket)
{
    add_literal(json, bracket);
    json->needs_comma = true;
}

void quire_json_object(quire_json_out *json, const char *key)
{
    begin(json, key, "{");
}

void quire_json_object_end(quire_json_out *json)
{
    end(json, "}");
}

void quire_json_array(quire_json_out *json, const char *key)
{
    begin(json, key, "[");
}

void quire_json_array_end(quire_json_out *json)
{
    end(json, "]");
}

void quire_json_text(quire_json_out *json, const char *key, const char *text, size_t n)
{
    value_begin(json, key);
    add_quoted(json, text, n);
}

void quire_json_string(quire_json_out *json, const char *key, const char *text)
{
    if (text == NULL) {
        quire_json_null(json, key);
    } else {
        quire_json_text(json, key, text, strlen(text));
    }
}

void quire_json_u64(quire_json_out *json, const char *key, uint64_t value)
{
    value_begin(json, key);
    (void)quire_bytes_addf(json->bytes, "%" PRIu64, value);
}

void quire_json_i64(quire_json_out *json, const char *key, int64_t value)
{
    value_begin(json, key);
    (void)quire_bytes_addf(json->bytes, "%" PRId64, value);
}

void quire_json_number(quire_json_out *json, const char *key, double value)
{
    if (!isfinite(value)) {
        quire_json_null(json, key);
        return;
    }
    value_begin(json, key);
    (void)quire_bytes_addf(json->bytes, "%.6g", value);
}

void quire_json_bool(quire_json_out *json, const char *key, bool value)
{
    value_begin(json, key);
    add_literal(json, value ? "true" : "false");
}

void quire_json_null(quire_json_out *json, const char *key)
{
    value_begin(json, key);
    add_literal(json, "null");
}

void quire_json_raw(quire_json_out *json, const char *key, const char *text, size_t n)
{
    value_begin(json, key);
    (void)quire_bytes_add(json->bytes, text, n);
}
