/* read_azure.c - CSV files of times and lengths: Azure's LLM inference traces, Splitwise, BurstGPT.
 *
 * A header line names the columns; three of them are looked for, the others are passed over. Times
 * are seconds, or dates with a time of day. Nothing is known of the contents, so each request's
 * blocks are its own.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/read/reader.h"

#include "base/check.h"
#include "base/parse.h"

#include <math.h>
#include <string.h>

#define FIELD_MAX   64u
#define COLUMNS_MAX 64u

typedef struct field {
    const char *text;
    size_t n;
} field;

/* The names that the three columns may have. */
static const char *const names[3][4] = {
    { "TIMESTAMP", "arrived_at", "Timestamp", NULL },
    { "ContextTokens", "num_prefill_tokens", "Request tokens", NULL },
    { "GeneratedTokens", "num_decode_tokens", "Response tokens", NULL },
};

/* The next field, without blanks and quotes around it; false behind the last. */
static bool field_next(const char **at, field *out)
{
    const char *text = *at;
    size_t n;

    if (text == NULL) {
        return false;
    }
    n = strcspn(text, ",");
    *at = text[n] == ',' ? text + n + 1 : NULL;
    while (n > 0 && strchr(" \t\r\"", text[n - 1]) != NULL) {
        n--;
    }
    while (n > 0 && strchr(" \t\"", *text) != NULL) {
        text++;
        n--;
    }
    *out = (field){ text, n };
    return true;
}

static bool is_named(const field *f, const char *const *of)
{
    for (; *of != NULL; of++) {
        if (strlen(*of) == f->n && memcmp(*of, f->text, f->n) == 0) {
            return true;
        }
    }
    return false;
}

/* Where a header has the three columns; false when it has not all of them. */
static bool header_parse(const char *line, uint32_t columns[3])
{
    uint32_t n_found = 0;
    field f;

    if (strncmp(line, "\xef\xbb\xbf", 3) == 0) {
        line += 3; /* a byte order mark */
    }
    for (uint32_t i = 0; i < COLUMNS_MAX && field_next(&line, &f); i++) {
        for (uint32_t k = 0; k < 3; k++) {
            if (is_named(&f, names[k])) {
                columns[k] = i;
                n_found |= 1u << k;
            }
        }
    }
    return n_found == 7;
}

static bool detect(const char *line, const json_t *json)
{
    uint32_t columns[3];

    return json == NULL && header_parse(line, columns);
}

/* Days from 1970-01-01, by the civil calendar: a year begins in March, so that the leap day is its
 * last, and 400 years have 146,097 days. */
static int64_t days_of(int64_t year, int64_t month, int64_t day)
{
    int64_t y = month > 2 ? year : year - 1;
    int64_t m = month > 2 ? month - 3 : month + 9;
    int64_t era = y / 400;

    return era * 146097 + (y % 400) * 365 + (y % 400) / 4 - (y % 400) / 100 + (153 * m + 2) / 5 +
           day - 1 - 719468;
}

/* "2023-11-16 18:15:46.6805900", maybe with a time zone behind it, which is left alone: only
 * differences count. */
static bool date_parse(const char *text, uint64_t *us)
{
    unsigned year;
    unsigned month;
    unsigned day;
    unsigned hour;
    unsigned minute;
    double second;

    if (sscanf(text, "%4u-%2u-%2u%*1[T ]%2u:%2u:%12lf", &year, &month, &day, &hour, &minute,
               &second) != 6 ||
        year < 1970 || month < 1 || month > 12 || day < 1 || day > 31 || hour > 23 || minute > 59 ||
        !(second >= 0.0 && second < 61.0)) {
        return false;
    }
    *us = (uint64_t)(days_of(year, month, day) * 86400 + hour * 3600 + minute * 60) * 1000000u +
          (uint64_t)llround(second * 1e6);
    return true;
}

static bool time_parse(const field *f, uint64_t *us)
{
    char text[FIELD_MAX];
    double seconds;

    if (f->n == 0 || f->n >= sizeof(text)) {
        return false;
    }
    memcpy(text, f->text, f->n);
    text[f->n] = '\0';
    if (strchr(text, ':') != NULL) {
        return date_parse(text, us);
    }
    if (quire_parse_f64(text, 0.0, QUIRE_TRACE_TIME_MAX * 1e-6, &seconds) < 0) {
        return false;
    }
    *us = (uint64_t)llround(seconds * 1e6);
    return true;
}

static bool count_parse(const field *f, int64_t min, uint32_t *out)
{
    char text[FIELD_MAX];
    double number;

    if (f->n == 0 || f->n >= sizeof(text)) {
        return false;
    }
    memcpy(text, f->text, f->n);
    text[f->n] = '\0';
    if (quire_parse_f64(text, (double)min, QUIRE_TRACE_TOKENS_MAX, &number) < 0 ||
        floor(number) < number) {
        return false;
    }
    *out = (uint32_t)number;
    return true;
}

static int row_read(quire_reader *r)
{
    const char *at = r->line;
    quire_trace_request request = { 0 };
    uint32_t n_found = 0;
    uint64_t n_blocks;
    field f;

    for (uint32_t i = 0; field_next(&at, &f); i++) {
        if (i == r->columns[0]) {
            n_found |= time_parse(&f, &request.time_us) ? 1u : 0u;
        } else if (i == r->columns[1]) {
            n_found |= count_parse(&f, 1, &request.n_input_tokens) ? 2u : 0u;
        } else if (i == r->columns[2]) {
            n_found |= count_parse(&f, 0, &request.n_output_tokens) ? 4u : 0u;
        }
    }
    if (n_found != 7) {
        return quire_reader_bad(r, "no %s",
                                (n_found & 1) == 0   ? "time"
                                : (n_found & 2) == 0 ? "length of a prompt, from 1 on"
                                                     : "length of an answer");
    }
    n_blocks =
        ((uint64_t)request.n_input_tokens + r->trace->block_tokens - 1) / r->trace->block_tokens;
    QUIRE_TRY(quire_reader_keys(r, n_blocks));
    for (uint64_t i = 0; i < n_blocks; i++) {
        r->keys[i] = r->trace->n_requests; /* a unique key, by its first block */
    }
    request.n_blocks = (uint32_t)n_blocks;
    return quire_reader_add(r, &request);
}

static int line_read(quire_reader *r)
{
    if (!r->has_columns) {
        r->has_columns = header_parse(r->line, r->columns);
        return r->has_columns ? QUIRE_OK : quire_reader_bad(r, "no header with the columns");
    }
    if (strlen(r->line) != r->line_bytes) {
        return quire_reader_bad(r, "a byte 0");
    }
    return row_read(r);
}

const quire_reader_format quire_reader_azure = {
    .format = QUIRE_TRACE_FORMAT_AZURE,
    .has_contents = false,
    .detect = detect,
    .line = line_read,
};
