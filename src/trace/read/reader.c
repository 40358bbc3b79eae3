/* reader.c - lines of a trace file, complaints about them, their fields.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/read/reader.h"

#include "base/check.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define LINE_FIRST 4096u

/* ---- lines ---- */

int quire_reader_rewind(quire_reader *r)
{
    static const char mark[3] = { '\xef', '\xbb', '\xbf' }; /* some editors begin files with it */
    char begin[sizeof(mark)];
    bool is_marked;

    if (fseek(r->file, 0, SEEK_SET) != 0) {
        return quire_error_set_errno(r->err, errno, "%s: cannot go back to its beginning", r->name);
    }
    is_marked = fread(begin, 1, sizeof(begin), r->file) == sizeof(begin) &&
                memcmp(begin, mark, sizeof(mark)) == 0;
    if (!is_marked && fseek(r->file, 0, SEEK_SET) != 0) {
        return quire_error_set_errno(r->err, errno, "%s: cannot go back to its beginning", r->name);
    }
    clearerr(r->file);
    r->line_number = 0;
    r->line_bytes = 0;
    return QUIRE_OK;
}

static int line_grow(quire_reader *r)
{
    size_t capacity = r->line_capacity > 0 ? r->line_capacity * 2 : LINE_FIRST;
    char *line = realloc(r->line, capacity);

    if (line == NULL) {
        return quire_error_set(r->err, QUIRE_NOMEM, "%s:%llu: out of memory for a line", r->name,
                               (unsigned long long)r->line_number);
    }
    r->line = line;
    r->line_capacity = capacity;
    return QUIRE_OK;
}

/* Read up to the end of the line, skipping bytes beyond the limit. Returns 1 if any byte was
 * read. */
static int line_read(quire_reader *r, bool *is_long)
{
    int c = getc(r->file);

    r->line_bytes = 0;
    r->is_cut = false;
    *is_long = false;
    if (c == EOF) {
        return ferror(r->file) ? quire_error_set_errno(r->err, errno, "%s: cannot be read", r->name)
                               : 0;
    }
    r->line_number++;
    for (; c != EOF && c != '\n'; c = getc(r->file)) {
        if (r->line_bytes == r->opts->line_bytes_max) {
            *is_long = true;
            continue;
        }
        if (r->line_bytes + 1 >= r->line_capacity) {
            QUIRE_TRY(line_grow(r));
        }
        r->line[r->line_bytes++] = (char)c;
    }
    if (r->line_capacity == 0) {
        QUIRE_TRY(line_grow(r));
    }
    if (ferror(r->file)) {
        return quire_error_set_errno(r->err, errno, "%s: cannot be read", r->name);
    }
    r->is_cut = c == EOF;
    r->line[r->line_bytes] = '\0';
    return 1;
}

static bool is_blank(const quire_reader *r)
{
    return strspn(r->line, " \t\r") == r->line_bytes;
}

int quire_reader_next(quire_reader *r)
{
    for (;;) {
        bool is_long;
        int rc = line_read(r, &is_long);

        if (rc <= 0) {
            return rc;
        }
        if (is_long) {
            QUIRE_TRY(
                quire_reader_bad(r, "a line of more than %zu bytes", r->opts->line_bytes_max));
        } else if (!is_blank(r)) {
            return 1;
        }
    }
}

int quire_reader_bad(quire_reader *r, const char *format, ...)
{
    quire_trace_report *report = r->report;
    char why[120];
    va_list args;

    if (r->is_quiet) {
        return QUIRE_OK;
    }
    va_start(args, format);
    (void)vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    report->n_bad++;
    if (report->n_named < QUIRE_TRACE_NAMED_MAX) {
        (void)snprintf(report->named[report->n_named], QUIRE_TRACE_WHY_MAX, "%.100s:%llu: %s%s",
                       r->name, (unsigned long long)r->line_number, why,
                       r->is_cut ? " (the last line, without an end)" : "");
        report->n_named++;
    }
    if (report->n_bad > r->opts->bad_lines_max) {
        return quire_error_set(r->err, QUIRE_CORRUPT,
                               "%.100s: more than %llu bad lines, the first: %.200s", r->name,
                               (unsigned long long)r->opts->bad_lines_max, report->named[0]);
    }
    return QUIRE_OK;
}

/* ---- fields ---- */

bool quire_reader_count(const json_t *object, const char *const names[2], uint64_t min,
                        uint64_t max, uint64_t *out)
{
    const json_t *value = json_object_get(object, names[0]);
    double number;

    if (value == NULL && names[1] != NULL) {
        value = json_object_get(object, names[1]);
    }
    if (!json_is_number(value)) {
        return false;
    }
    number = json_number_value(value);
    if (!(number >= (double)min && number <= (double)max) || floor(number) < number) {
        return false;
    }
    *out = json_is_integer(value) ? (uint64_t)json_integer_value(value) : (uint64_t)number;
    return true;
}

bool quire_reader_time(const json_t *object, const char *name, double unit_us, uint64_t *out)
{
    const json_t *value = json_object_get(object, name);
    double us = json_number_value(value) * unit_us;

    if (!json_is_number(value) || !(us >= 0.0 && us <= QUIRE_TRACE_TIME_MAX)) {
        return false;
    }
    *out = (uint64_t)llround(us);
    return true;
}

double quire_reader_exponential(quire_reader *r, double mean)
{
    return -mean * log(1.0 - quire_rng_unit(&r->rng));
}

double quire_reader_arrival(quire_reader *r)
{
    r->clock_s = fmin(r->clock_s + quire_reader_exponential(r, 1.0 / r->opts->arrivals_per_s),
                      QUIRE_TRACE_LATEST_S);
    return r->clock_s;
}

int quire_reader_keys(quire_reader *r, uint64_t n)
{
    uint64_t capacity = r->keys_capacity > 0 ? r->keys_capacity : 256;
    uint64_t *keys;

    if (n <= r->keys_capacity) {
        return QUIRE_OK;
    }
    while (capacity < n) {
        capacity *= 2;
    }
    keys = realloc(r->keys, capacity * sizeof(*keys));
    if (keys == NULL) {
        return quire_error_set(r->err, QUIRE_NOMEM, "%s:%llu: out of memory", r->name,
                               (unsigned long long)r->line_number);
    }
    r->keys = keys;
    r->keys_capacity = (uint32_t)capacity;
    return QUIRE_OK;
}

static int number_of(quire_reader *r, quire_id_map *map, uint64_t key, uint32_t *out)
{
    int rc = quire_id_map_plan(map, 1);

    if (rc < 0) {
        return quire_error_set(r->err, rc, "%s:%llu: too many sessions or tenants", r->name,
                               (unsigned long long)r->line_number);
    }
    *out = quire_id_map_put(map, key);
    return QUIRE_OK;
}

int quire_reader_session(quire_reader *r, uint64_t key, uint32_t *out)
{
    QUIRE_TRY(number_of(r, &r->sessions, key, out));
    (*out)++;
    r->trace->n_sessions = r->sessions.n;
    return QUIRE_OK;
}

int quire_reader_tenant(quire_reader *r, uint64_t key, uint32_t *out)
{
    QUIRE_TRY(number_of(r, &r->tenants, key, out));
    r->trace->n_tenants = r->tenants.n;
    return QUIRE_OK;
}

int quire_reader_add(quire_reader *r, const quire_trace_request *request)
{
    int rc;

    if (r->trace->n_requests >= r->opts->requests_max) {
        return QUIRE_OK; /* of a line, or of a conversation, that has more */
    }
    rc = quire_trace_add_keys(r->trace, request, r->keys);
    return rc < 0 ? quire_error_set(r->err, rc, "%s:%llu: %s", r->name,
                                    (unsigned long long)r->line_number, quire_status_text(rc))
                  : QUIRE_OK;
}

/* ---- texts ---- */

uint64_t quire_reader_hash(const void *text, size_t text_bytes)
{
    return XXH3_64bits(text, text_bytes);
}

uint32_t quire_reader_text_tokens(const quire_reader *r, size_t text_bytes)
{
    double n = ceil((double)text_bytes / r->token_bytes);

    return n < (double)QUIRE_TRACE_TOKENS_MAX ? (uint32_t)n : QUIRE_TRACE_TOKENS_MAX;
}

int quire_reader_text(quire_reader *r, const char *text, size_t text_bytes,
                      quire_trace_request *request)
{
    double block_bytes = r->token_bytes * r->trace->block_tokens;
    uint64_t n = (uint64_t)ceil((double)text_bytes / block_bytes);

    QUIRE_TRY(quire_reader_keys(r, n));
    for (uint64_t i = 0; i < n; i++) {
        size_t begin = (size_t)((double)i * block_bytes);
        size_t end = (size_t)((double)(i + 1) * block_bytes);

        end = end < text_bytes ? end : text_bytes;
        begin = begin < end ? begin : end;
        r->keys[i] = quire_reader_hash(text + begin, end - begin);
    }
    request->n_blocks = (uint32_t)n;
    if (request->n_input_tokens == 0) {
        request->n_input_tokens = quire_reader_text_tokens(r, text_bytes);
    }
    return QUIRE_OK;
}
