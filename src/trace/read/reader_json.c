/* reader_json.c - a line as JSON.
 *
 * jansson's integers have 63 bits and a sign; jansson refuses a line with a larger one.
 * Hashes of blocks have 64 bits and more. In a line with such a hash all long integers are put in
 * quotes before jansson sees the line.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/read/reader.h"

#include <stdlib.h>
#include <string.h>

#define LONG_DIGITS 19u /* a number with fewer digits fits */

/* The end of a text whose opening quote is at `at`. */
static size_t text_end(const char *line, size_t n, size_t at)
{
    for (at++; at < n && line[at] != '"'; at++) {
        at += line[at] == '\\';
    }
    return at < n ? at + 1 : n;
}

/* Copy a line with its long whole numbers in quotes; where it ends. to: NULL only counts. */
static size_t quote_numbers(const char *line, size_t n, char *to)
{
    size_t used = 0;

    for (size_t at = 0; at < n;) {
        size_t end = at + 1;
        bool is_long = false;

        if (line[at] == '"') {
            end = text_end(line, n, at);
        } else if (strchr("+-.0123456789eE", line[at]) != NULL && line[at] != '\0') {
            end = at + strspn(line + at, "+-.0123456789eE");
            is_long =
                end - at >= LONG_DIGITS && strspn(line + at + 1, "0123456789") == end - at - 1;
        }
        if (to != NULL) {
            memcpy(to + used + is_long, line + at, end - at);
        }
        if (to != NULL && is_long) {
            to[used] = '"';
            to[used + 1 + (end - at)] = '"';
        }
        used += end - at + 2u * is_long;
        at = end;
    }
    return used;
}

/* Put the line's long whole numbers in quotes. False when there is no memory. */
static bool line_quote(quire_reader *r)
{
    size_t capacity = quote_numbers(r->line, r->line_bytes, NULL) + 1;
    char *line = malloc(capacity);

    if (line == NULL) {
        return false;
    }
    r->line_bytes = quote_numbers(r->line, r->line_bytes, line);
    line[r->line_bytes] = '\0';
    free(r->line);
    r->line = line;
    r->line_capacity = capacity;
    return true;
}

json_t *quire_reader_load(quire_reader *r, size_t flags, json_error_t *error)
{
    json_t *json = json_loadb(r->line, r->line_bytes, flags, error);

    if (json == NULL && json_error_code(error) == json_error_numeric_overflow && line_quote(r)) {
        json = json_loadb(r->line, r->line_bytes, flags, error);
    }
    return json;
}

int quire_reader_json(quire_reader *r, json_t **out)
{
    json_error_t error;

    *out = quire_reader_load(r, JSON_REJECT_DUPLICATES, &error);
    if (*out == NULL) {
        return quire_reader_bad(r, "no JSON: %s at byte %d", error.text, error.position);
    }
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return quire_reader_bad(r, "no JSON object");
    }
    return QUIRE_OK;
}
