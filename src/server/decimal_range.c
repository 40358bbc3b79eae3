/* decimal_range.c - see decimal_range.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/decimal_range.h"

#include "base/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- decimals ---- */

/* The shortest text that reads as the value again. */
static void shortest(double value, char *text, size_t size)
{
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(text, size, "%.*e", digits - 1, value);
        if (strtod(text, NULL) == value) {
            return;
        }
    }
}

int quire_decimal_of(const json_t *value, quire_decimal *out)
{
    const double x = json_number_value(value);
    char text[40], digits[24];
    size_t n_digits = 0, n_part = 0;
    long exponent;

    *out = (quire_decimal){ .is_negative = x < 0.0 };
    if (json_is_integer(value)) {
        const json_int_t n = json_integer_value(value);

        out->whole = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
        return out->whole > QUIRE_DECIMAL_WHOLE_MAX ? QUIRE_RANGE : QUIRE_OK;
    }
    if (!(fabs(x) <= (double)QUIRE_DECIMAL_WHOLE_MAX)) {
        return QUIRE_RANGE;
    }
    shortest(fabs(x), text, sizeof text);
    exponent = strtol(strchr(text, 'e') + 1, NULL, 10);
    for (const char *c = text; *c != 'e'; c++) {
        if (*c != '.') {
            digits[n_digits++] = *c;
        }
    }
    while (n_digits > 0 && digits[n_digits - 1] == '0') {
        n_digits--;
    }
    if (exponent < 0 && n_digits > 0) { /* 0.00ddd */
        QUIRE_FAIL_IF((size_t)-exponent - 1 + n_digits > QUIRE_DECIMAL_PART_DIGITS, QUIRE_LIMIT);
        for (; n_part < (size_t)-exponent - 1; n_part++) {
            out->part[n_part] = '0';
        }
    }
    for (size_t i = 0; i < n_digits || (long)i <= exponent; i++) {
        const char digit = i < n_digits ? digits[i] : '0';

        if ((long)i <= exponent) {
            out->whole = 10 * out->whole + (uint64_t)(digit - '0');
        } else {
            QUIRE_FAIL_IF(n_part == QUIRE_DECIMAL_PART_DIGITS, QUIRE_LIMIT);
            out->part[n_part++] = digit;
        }
    }
    return QUIRE_OK;
}

bool quire_decimal_is_zero(const quire_decimal *d)
{
    return d->whole == 0 && d->part[0] == '\0';
}

int quire_decimal_compare(const quire_decimal *a, const quire_decimal *b)
{
    const int size =
        a->whole != b->whole ? (a->whole < b->whole ? -1 : 1) : strcmp(a->part, b->part);

    if (a->is_negative != b->is_negative) {
        return a->is_negative ? -1 : 1;
    }
    return a->is_negative ? -size : size;
}

/* ---- whole parts ---- */

static void digits_add(quire_bytes *text, size_t n)
{
    if (n > 0) {
        (void)quire_bytes_addf(text, " [0-9]{%zu}", n);
    }
}

static bool is_all(const char *digits, char digit)
{
    return digits[strspn(digits, (char[]){ digit, '\0' })] == '\0';
}

/* Texts of as many digits as `digits` that are at least (or at most) this. */
static void one_side_add(quire_bytes *text, const char *digits, bool is_least)
{
    const char end = is_least ? '9' : '0';

    if (is_all(digits, is_least ? '0' : '9')) {
        digits_add(text, strlen(digits));
        return;
    }
    (void)quire_bytes_addf(text, " (\"%c\"", digits[0]);
    one_side_add(text, digits + 1, is_least);
    if (digits[0] != end) {
        (void)quire_bytes_addf(text, " | [%c-%c]", is_least ? digits[0] + 1 : '0',
                               is_least ? '9' : digits[0] - 1);
        digits_add(text, strlen(digits) - 1);
    }
    (void)quire_bytes_addf(text, ")");
}

/* Texts of equally many digits from low to high. */
static void same_length_add(quire_bytes *text, const char *low, const char *high)
{
    size_t n = 0;

    while (low[n] != '\0' && low[n] == high[n]) {
        n++;
    }
    if (n > 0) {
        (void)quire_bytes_addf(text, " \"%.*s\"", (int)n, low);
    }
    low += n;
    high += n;
    if (*low == '\0') {
        return;
    }
    if (is_all(low + 1, '0') && is_all(high + 1, '9')) {
        (void)quire_bytes_addf(text, " [%c-%c]", *low, *high);
        digits_add(text, strlen(low) - 1);
        return;
    }
    (void)quire_bytes_addf(text, " (\"%c\"", *low);
    one_side_add(text, low + 1, true);
    if (*high - *low > 1) {
        (void)quire_bytes_addf(text, " | [%c-%c]", *low + 1, *high - 1);
        digits_add(text, strlen(low) - 1);
    }
    (void)quire_bytes_addf(text, " | \"%c\"", *high);
    one_side_add(text, high + 1, false);
    (void)quire_bytes_addf(text, ")");
}

/* The numbers low .. high without a sign, low <= high <= QUIRE_DECIMAL_WHOLE_MAX. */
static void wholes_add(quire_bytes *text, uint64_t low, uint64_t high)
{
    uint64_t least = 0, most = 9; /* of this many digits */
    bool is_first = true;

    (void)quire_bytes_addf(text, " (");
    for (uint32_t n = 1; n <= QUIRE_DECIMAL_WHOLE_DIGITS && least <= high; n++) {
        const uint64_t a = low > least ? low : least, b = high < most ? high : most;

        if (a <= b) {
            char first[24], last[24];

            (void)snprintf(first, sizeof first, "%" PRIu64, a);
            (void)snprintf(last, sizeof last, "%" PRIu64, b);
            (void)quire_bytes_addf(text, "%s", is_first ? "" : " |");
            same_length_add(text, first, last);
            is_first = false;
        }
        least = most + 1;
        most = 10 * most + 9;
    }
    (void)quire_bytes_addf(text, ")");
}

/* ---- fractions ---- */

/* A bound of the rest of a fraction; digits NULL: the digits before it decide already. */
typedef struct edge {
    const char *digits;
    bool is_exclusive;
} edge;

static edge edge_of(const quire_bound *b, bool holds)
{
    return b->is_there && holds ? (edge){ b->value.part, b->is_exclusive } : (edge){ NULL, false };
}

static edge edge_next(edge e, bool holds)
{
    return !holds ? (edge){ NULL, false }
                  : (edge){ e.digits[0] != '\0' ? e.digits + 1 : e.digits, e.is_exclusive };
}

/* Whether the fraction may end here: as if zeros followed. */
static bool may_end(edge low, edge high)
{
    return (low.digits == NULL || (low.digits[0] == '\0' && !low.is_exclusive)) &&
           (high.digits == NULL || high.digits[0] != '\0' || !high.is_exclusive);
}

static bool fraction_add(quire_bytes *text, edge low, edge high, uint32_t places);

/* One more digit that both edges allow, and the digits that may follow. */
static bool digit_add(quire_bytes *text, char digit, edge low, edge high, uint32_t places)
{
    const bool ends = may_end(low, high);
    quire_bytes rest = { 0 };
    const bool continues = fraction_add(&rest, low, high, places - 1);

    if (continues) {
        (void)quire_bytes_addf(text, "\"%c\" (%s)%s", digit, rest.data != NULL ? rest.data : "",
                               ends ? "?" : "");
    } else if (ends) {
        (void)quire_bytes_addf(text, "\"%c\"", digit);
    }
    text->status = rest.status < 0 ? rest.status : text->status;
    quire_bytes_fini(&rest);
    return continues || ends;
}

/* Alternatives of 1 to `places` digits between two edges. Returns whether there are any. */
static bool fraction_add(quire_bytes *text, edge low, edge high, uint32_t places)
{
    const bool holds_low = low.digits != NULL && (low.digits[0] != '\0' || low.is_exclusive);
    const bool holds_high = high.digits != NULL;
    const char first = (char)(holds_low && low.digits[0] != '\0' ? low.digits[0] : '0');
    const char last = (char)(!holds_high ? '9' : high.digits[0] != '\0' ? high.digits[0] : '0');
    const char from = (char)(first + holds_low), to = (char)(last - holds_high);
    quire_bytes part = { 0 };
    bool has_any = false;

    if (places == 0 || first > last) {
        return false;
    }
    if (from <= to) {
        (void)quire_bytes_addf(text, "[%c-%c]", from, to);
        if (places > 1) {
            (void)quire_bytes_addf(text, " [0-9]{0,%" PRIu32 "}", places - 1);
        }
        has_any = true;
    }
    for (int i = 0; i < 2; i++) {
        const bool is_low = i == 0;
        const char digit = is_low ? first : last;
        const bool also_low = holds_low && digit == first, also_high = holds_high && digit == last;

        if (!(is_low ? holds_low : holds_high && !also_low)) {
            continue;
        }
        quire_bytes_clear(&part);
        if (digit_add(&part, digit, edge_next(low, also_low), edge_next(high, also_high), places)) {
            (void)quire_bytes_addf(text, "%s%s", has_any ? " | " : "",
                                   part.data != NULL ? part.data : "");
            has_any = true;
        }
        text->status = part.status < 0 ? part.status : text->status;
    }
    quire_bytes_fini(&part);
    return has_any;
}

/* ---- numbers >= 0 ---- */

static void or_add(quire_bytes *text, bool *has_any)
{
    (void)quire_bytes_addf(text, "%s", *has_any ? " |" : "");
    *has_any = true;
}

/* Numbers with the whole part of a bound. */
static void at_bound_add(quire_bytes *text, const quire_decimal_range *r, uint64_t whole,
                         bool *has_any)
{
    const edge low = edge_of(&r->low, r->low.value.whole == whole);
    const edge high = edge_of(&r->high, r->high.value.whole == whole);
    const bool ends = may_end(low, high);
    quire_bytes part = { 0 };

    if (fraction_add(&part, low, high, r->places)) {
        or_add(text, has_any);
        (void)quire_bytes_addf(text, " \"%" PRIu64 "\" (\".\" (%s))%s", whole,
                               part.data != NULL ? part.data : "", ends ? "?" : "");
    } else if (ends) {
        or_add(text, has_any);
        (void)quire_bytes_addf(text, " \"%" PRIu64 "\"", whole);
    }
    text->status = part.status < 0 ? part.status : text->status;
    quire_bytes_fini(&part);
}

/* Alternatives of the numbers within a range; r->low is there. */
static void between_add(quire_bytes *text, const quire_decimal_range *r, bool *has_any)
{
    const uint64_t low = r->low.value.whole;
    const uint64_t high = r->high.is_there ? r->high.value.whole : QUIRE_DECIMAL_WHOLE_MAX;

    if (low > high) {
        return;
    }
    at_bound_add(text, r, low, has_any);
    if (high > low && high - low > (uint64_t)r->high.is_there) {
        or_add(text, has_any);
        wholes_add(text, low + 1, high - r->high.is_there);
        if (r->places > 0) {
            (void)quire_bytes_addf(text, " (\".\" [0-9]{1,%" PRIu32 "})?", r->places);
        }
    }
    if (r->high.is_there && high > low) {
        at_bound_add(text, r, high, has_any);
    }
}

/* ---- both signs ---- */

void quire_decimal_range_write(const quire_decimal_range *l, quire_bytes *text)
{
    const quire_bound zero = { .is_there = true, .is_exclusive = true };
    bool has_any = false;

    if (!l->high.is_there || !l->high.value.is_negative) {
        quire_decimal_range r = { l->low, l->high, l->places };

        if (!l->low.is_there || l->low.value.is_negative) {
            r.low = zero;
            r.low.is_exclusive = false;
        }
        between_add(text, &r, &has_any);
    }
    if (!l->low.is_there || l->low.value.is_negative) {
        quire_decimal_range r = { l->high, l->low, l->places };
        quire_bytes part = { 0 };
        bool has_part = false;

        if (!l->high.is_there || !l->high.value.is_negative) {
            r.low = zero;
        }
        between_add(&part, &r, &has_part);
        if (has_part) {
            (void)quire_bytes_addf(text, "%s \"-\" (%s)", has_any ? " |" : "",
                                   part.data != NULL ? part.data : "");
        }
        text->status = part.status < 0 ? part.status : text->status;
        quire_bytes_fini(&part);
    }
}
