/* char_set.c - see char_set.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/char_set.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SURROGATE_FIRST 0xd800u
#define SURROGATE_LAST  0xdfffu

int quire_char_set_add(quire_char_set *set, uint32_t first, uint32_t last)
{
    QUIRE_FAIL_IF(set->n == QUIRE_REGEX_RANGES_MAX, QUIRE_LIMIT);
    set->ranges[set->n++] = (quire_char_range){ first, last };
    return QUIRE_OK;
}

static int compare(const void *a, const void *b)
{
    const quire_char_range *x = a, *y = b;

    return x->first < y->first ? -1 : x->first > y->first;
}

/* Sort the ranges, and join those that touch. */
static void normalize(quire_char_set *set)
{
    uint32_t n = 0;

    qsort(set->ranges, set->n, sizeof set->ranges[0], compare);
    for (uint32_t i = 0; i < set->n; i++) {
        const quire_char_range *range = &set->ranges[i];

        if (n > 0 && range->first <= set->ranges[n - 1].last + 1) {
            if (range->last > set->ranges[n - 1].last) {
                set->ranges[n - 1].last = range->last;
            }
        } else {
            set->ranges[n++] = *range;
        }
    }
    set->n = n;
}

int quire_char_set_invert(quire_char_set *set)
{
    quire_char_set others = { .n = 0 };
    uint32_t next = 1;

    normalize(set);
    for (uint32_t i = 0; i < set->n; i++) {
        if (set->ranges[i].first > next) {
            QUIRE_TRY(quire_char_set_add(&others, next, set->ranges[i].first - 1));
        }
        next = set->ranges[i].last + 1;
    }
    if (next <= QUIRE_CHAR_MAX) {
        QUIRE_TRY(quire_char_set_add(&others, next, QUIRE_CHAR_MAX));
    }
    *set = others;
    return QUIRE_OK;
}

/* ECMA-262's WhiteSpace and LineTerminator. */
static const quire_char_range spaces[] = {
    { 0x09, 0x0d },     { 0x20, 0x20 },     { 0xa0, 0xa0 },     { 0x1680, 0x1680 },
    { 0x2000, 0x200a }, { 0x2028, 0x2029 }, { 0x202f, 0x202f }, { 0x205f, 0x205f },
    { 0x3000, 0x3000 }, { 0xfeff, 0xfeff },
};
static const quire_char_range digits[] = { { '0', '9' } };
static const quire_char_range words[] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } };

int quire_char_set_add_class(quire_char_set *set, char letter)
{
    const bool is_space = letter == 's' || letter == 'S';
    const bool is_digit = letter == 'd' || letter == 'D';
    const quire_char_range *ranges = is_space ? spaces : is_digit ? digits : words;
    const size_t n = is_space   ? sizeof spaces / sizeof spaces[0]
                     : is_digit ? sizeof digits / sizeof digits[0]
                                : sizeof words / sizeof words[0];
    quire_char_set part = { .n = 0 };

    for (size_t i = 0; i < n; i++) {
        QUIRE_TRY(quire_char_set_add(&part, ranges[i].first, ranges[i].last));
    }
    if (letter == 'S' || letter == 'D' || letter == 'W') {
        QUIRE_TRY(quire_char_set_invert(&part));
    }
    for (uint32_t i = 0; i < part.n; i++) {
        QUIRE_TRY(quire_char_set_add(set, part.ranges[i].first, part.ranges[i].last));
    }
    return QUIRE_OK;
}

static bool contains(const quire_char_set *set, uint32_t c)
{
    for (uint32_t i = 0; i < set->n; i++) {
        if (c >= set->ranges[i].first && c <= set->ranges[i].last) {
            return true;
        }
    }
    return false;
}

static void write_char(quire_bytes *gbnf, uint32_t c)
{
    const bool is_plain = c < 0x80 && strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                             "0123456789_ .,:;/@+*()",
                                             (int)c) != NULL;

    if (is_plain) {
        (void)quire_bytes_addf(gbnf, "%c", (int)c);
    } else {
        (void)quire_bytes_addf(gbnf, "\\U%08" PRIX32, c);
    }
}

/* Write first .. last without the characters that a text cannot have, or not as they are. */
static void write_range(quire_bytes *gbnf, uint32_t first, uint32_t last, bool is_json)
{
    static const quire_char_range left_out[] = {
        { 0, 0 }, { SURROGATE_FIRST, SURROGATE_LAST }, { '"', '"' }, { '\\', '\\' }, { 1, 0x1f }
    };
    const unsigned n = is_json ? 5 : 2;

    for (unsigned i = 0; i < n; i++) {
        const quire_char_range *out = &left_out[i];

        if (first <= out->last && last >= out->first) {
            if (first < out->first) {
                write_range(gbnf, first, out->first - 1, is_json);
            }
            if (last > out->last) {
                write_range(gbnf, out->last + 1, last, is_json);
            }
            return;
        }
    }
    write_char(gbnf, first);
    if (last > first) {
        (void)quire_bytes_addf(gbnf, "-");
        write_char(gbnf, last);
    }
}

/* The characters that JSON writes with a backslash, in `set`, as alternatives. */
static void write_escapes(const quire_char_set *set, quire_bytes *gbnf, const char *between)
{
    static const struct {
        unsigned char c;
        char letter;
    } escapes[] = { { '"', '"' },  { '\\', '\\' }, { '\n', 'n' }, { '\t', 't' },
                    { '\r', 'r' }, { '\f', 'f' },  { '\b', 'b' } };
    bool has_any = false;

    for (size_t i = 0; i < sizeof escapes / sizeof escapes[0]; i++) {
        if (!contains(set, escapes[i].c)) {
            continue;
        }
        (void)quire_bytes_addf(gbnf, "%s", has_any ? "" : between);
        (void)quire_bytes_addf(gbnf, has_any ? "" : "\"\\\\\" [");
        (void)quire_bytes_addf(gbnf, "%s%c", strchr("\"\\", escapes[i].letter) != NULL ? "\\" : "",
                               escapes[i].letter);
        has_any = true;
    }
    if (has_any) {
        (void)quire_bytes_addf(gbnf, "]");
    }
}

int quire_char_set_write(quire_char_set *set, bool is_json, quire_bytes *gbnf)
{
    quire_bytes plain = { 0 };
    quire_bytes escapes = { 0 };
    int rc;

    normalize(set);
    for (uint32_t i = 0; i < set->n; i++) {
        write_range(&plain, set->ranges[i].first, set->ranges[i].last, is_json);
    }
    if (is_json) {
        write_escapes(set, &escapes, plain.n > 0 ? " | " : "");
    }
    rc = plain.n + escapes.n == 0 ? QUIRE_INVAL : QUIRE_OK;
    rc = plain.status < 0 || escapes.status < 0 ? QUIRE_NOMEM : rc;
    if (rc == QUIRE_OK) {
        (void)quire_bytes_addf(gbnf, "%s", escapes.n > 0 ? "(" : "");
        if (plain.n > 0) {
            (void)quire_bytes_addf(gbnf, "[%s]", plain.data);
        }
        (void)quire_bytes_addf(gbnf, "%s%s", escapes.n > 0 ? escapes.data : "",
                               escapes.n > 0 ? ")" : "");
        rc = gbnf->status;
    }
    quire_bytes_fini(&plain);
    quire_bytes_fini(&escapes);
    return rc;
}
