/* parse.c - numbers, sizes and likely typos.
 *
 * SPDX-License-Identifier: MIT */
#include "base/parse.h"

#include "base/check.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define WORD_MAX     64
#define DIGITS_LEAST 6  /* as %g prints: fewer write 200 as 2e+02 */
#define DIGITS_EACH  17 /* with so many every double has a text of its own */

static bool starts_like_a_number(const char *text)
{
    /* strtoll and strtod skip blanks and accept "inf", "nan" and hexadecimal numbers; this check
     * refuses all of these. */
    size_t i = text[0] == '-' || text[0] == '+' ? 1 : 0;

    return isdigit((unsigned char)text[i]) ||
           (text[i] == '.' && isdigit((unsigned char)text[i + 1]));
}

int quire_parse_i64(const char *text, int64_t min, int64_t max, int64_t *out)
{
    char *end = NULL;
    long long value;

    QUIRE_FAIL_IF(text == NULL || !starts_like_a_number(text), QUIRE_INVAL);
    errno = 0;
    value = strtoll(text, &end, 10);
    QUIRE_FAIL_IF(*end != '\0', QUIRE_INVAL);
    QUIRE_FAIL_IF(errno == ERANGE || value < min || value > max, QUIRE_RANGE);
    *out = value;
    return QUIRE_OK;
}

int quire_parse_f64(const char *text, double min, double max, double *out)
{
    char *end = NULL;
    double value;

    QUIRE_FAIL_IF(text == NULL || !starts_like_a_number(text), QUIRE_INVAL);
    QUIRE_FAIL_IF(strpbrk(text, "xX") != NULL, QUIRE_INVAL);
    value = strtod(text, &end);
    QUIRE_FAIL_IF(*end != '\0', QUIRE_INVAL);
    QUIRE_FAIL_IF(!isfinite(value) || value < min || value > max, QUIRE_RANGE);
    *out = value;
    return QUIRE_OK;
}

typedef struct scale {
    const char *suffix;
    double factor;
} scale;

/* A non-negative number times that of its suffix, which is one of n units. */
static int parse_scaled(const char *text, const scale *units, size_t n, uint64_t *out)
{
    char *end = NULL;
    double value;

    QUIRE_FAIL_IF(text == NULL || text[0] == '-' || !starts_like_a_number(text), QUIRE_INVAL);
    QUIRE_FAIL_IF(strpbrk(text, "xX") != NULL, QUIRE_INVAL);
    value = strtod(text, &end);
    for (size_t i = 0; i < n; i++) {
        if (strcasecmp(end, units[i].suffix) == 0) {
            value *= units[i].factor;
            QUIRE_FAIL_IF(!(value < 9223372036854775808.0), QUIRE_RANGE);
            *out = (uint64_t)round(value);
            return QUIRE_OK;
        }
    }
    return QUIRE_INVAL;
}

int quire_parse_size(const char *text, uint64_t *out)
{
    static const scale units[] = {
        { "", 1.0 },
        { "B", 1.0 },
        { "k", 1e3 },
        { "kB", 1e3 },
        { "M", 1e6 },
        { "MB", 1e6 },
        { "G", 1e9 },
        { "GB", 1e9 },
        { "T", 1e12 },
        { "TB", 1e12 },
        { "KiB", 1024.0 },
        { "MiB", 1048576.0 },
        { "GiB", 1073741824.0 },
        { "TiB", 1099511627776.0 },
    };

    return parse_scaled(text, units, sizeof(units) / sizeof(units[0]), out);
}

int quire_parse_duration(const char *text, uint64_t *us)
{
    static const scale units[] = {
        { "", 1e6 }, { "s", 1e6 }, { "ms", 1e3 }, { "m", 60e6 }, { "h", 3600e6 }, { "d", 86400e6 },
    };

    return parse_scaled(text, units, sizeof(units) / sizeof(units[0]), us);
}

char *quire_format_bytes(uint64_t bytes, char *buffer, size_t buffer_bytes)
{
    static const char *const units[] = { "B", "kB", "MB", "GB", "TB", "PB", "EB" };
    double value = (double)bytes;
    size_t unit = 0;

    /* 999.5 would print as "1000": move on one step before that. */
    while (value >= 999.5 && unit + 1 < sizeof(units) / sizeof(units[0])) {
        value /= 1000.0;
        unit++;
    }
    if (unit == 0) {
        (void)snprintf(buffer, buffer_bytes, "%u B", (unsigned)bytes);
    } else {
        int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;

        (void)snprintf(buffer, buffer_bytes, "%.*f %s", decimals, value, units[unit]);
    }
    return buffer;
}

char *quire_format_real(double value, char *buffer, size_t buffer_bytes)
{
    for (int digits = DIGITS_LEAST; digits <= DIGITS_EACH; digits++) {
        (void)snprintf(buffer, buffer_bytes, "%.*g", digits, value);
        if (strtod(buffer, NULL) == value) {
            break;
        }
    }
    return buffer;
}

static size_t edit_distance(const char *a, const char *b)
{
    size_t n_a = strnlen(a, WORD_MAX);
    size_t n_b = strnlen(b, WORD_MAX);
    size_t rows[3][WORD_MAX + 1]; /* the last three rows of the table, used in turn */

    for (size_t j = 0; j <= n_b; j++) {
        rows[0][j] = j;
    }
    for (size_t i = 1; i <= n_a; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i + 2) % 3];
        const size_t *above2 = rows[(i + 1) % 3];

        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            size_t best = above[j - 1] + (a[i - 1] != b[j - 1]);

            best = above[j] + 1 < best ? above[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                above2[j - 2] + 1 < best) {
                best = above2[j - 2] + 1;
            }
            row[j] = best;
        }
    }
    return rows[n_a % 3][n_b];
}

const char *quire_nearest_within(const char *word, const char *const *candidates, size_t n,
                                 size_t edits_max)
{
    const char *nearest = NULL;
    size_t best = SIZE_MAX;

    for (size_t i = 0; i < n; i++) {
        size_t n_word = strnlen(word, WORD_MAX);
        size_t n_candidate = strnlen(candidates[i], WORD_MAX);
        size_t longer = n_word > n_candidate ? n_word : n_candidate;
        size_t distance = edit_distance(word, candidates[i]);

        if (distance < best && distance <= (longer + 2) / 3 && distance <= edits_max) {
            best = distance;
            nearest = candidates[i];
        }
    }
    return nearest;
}

const char *quire_nearest_name(const char *word, const char *const *candidates, size_t n)
{
    return quire_nearest_within(word, candidates, n, SIZE_MAX);
}
