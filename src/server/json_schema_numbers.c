/* json_schema_numbers.c - numbers of a schema: minimum, maximum, multipleOf.
 *
 * SPDX-License-Identifier: MIT */
#include "server/json_schema_internal.h"

#include "base/check.h"
#include "server/decimal_range.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

/* ---- the schema ---- */

static int bound_get(const schema_maker *m, const json_t *schema, const schema_place *p,
                     bool is_low, quire_bound *out)
{
    const char *const inclusive = is_low ? "minimum" : "maximum";
    const char *const exclusive = is_low ? "exclusiveMinimum" : "exclusiveMaximum";
    const json_t *plain = json_object_get(schema, inclusive);
    const json_t *other = json_object_get(schema, exclusive);
    const json_t *value = plain;
    int rc;

    *out = (quire_bound){ .is_there = false };
    if (other != NULL && !json_is_number(other) && !json_is_boolean(other)) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "not a number is the value of", exclusive);
    }
    if (plain != NULL && !json_is_number(plain)) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "not a number is the value of", inclusive);
    }
    out->is_exclusive = json_is_true(other); /* draft 4 */
    if (json_is_number(other)) {
        const double a = json_number_value(other), b = plain != NULL ? json_number_value(plain) : a;

        if (plain == NULL || (is_low ? a >= b : a <= b)) {
            value = other;
            out->is_exclusive = true;
        }
    }
    if (value == NULL) {
        return QUIRE_OK;
    }
    rc = quire_decimal_of(value, &out->value);
    if (rc == QUIRE_LIMIT) {
        return quire_schema_refuse(m, rc, p, "more than 16 digits behind the point has",
                                   value == plain ? inclusive : exclusive);
    }
    out->is_there = rc == QUIRE_OK;
    if (rc == QUIRE_RANGE && out->value.is_negative != is_low) {
        return quire_schema_refuse(m, QUIRE_LIMIT, p, "numbers have 16 digits, beyond them is",
                                   value == plain ? inclusive : exclusive);
    }
    return QUIRE_OK;
}

/* ---- multiples ---- */

/* A bound in units of 10^-places, inside of the range. */
static int64_t scaled(const quire_bound *b, uint32_t places, bool is_low)
{
    int64_t n = (int64_t)b->value.whole;
    size_t i = 0;
    bool has_rest;

    for (uint32_t k = 0; k < places; k++) {
        n = 10 * n + (b->value.part[i] != '\0' ? b->value.part[i++] - '0' : 0);
    }
    has_rest = b->value.part[i] != '\0';
    n = b->value.is_negative ? -n : n;
    if (has_rest) { /* the value lies between two units */
        n += b->value.is_negative ? (is_low ? 0 : -1) : (is_low ? 1 : 0);
    } else if (b->is_exclusive) {
        n += is_low ? 1 : -1;
    }
    return n;
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b != 0 && a < 0);
}

/* The multiples within two bounds, one by one. Returns their number, or 0 and nothing written when
 * they are more than QUIRE_SCHEMA_VALUES_MAX. */
static uint32_t multiples_add(quire_bytes *text, const quire_decimal_range *l, int64_t unit,
                              uint32_t places)
{
    const int64_t first = -floor_div(-scaled(&l->low, places, true), unit);
    const int64_t last = floor_div(scaled(&l->high, places, false), unit);
    uint64_t power = 1;

    if (last < first || (uint64_t)(last - first) >= QUIRE_SCHEMA_VALUES_MAX) {
        return 0;
    }
    for (uint32_t k = 0; k < places; k++) {
        power *= 10;
    }
    for (int64_t i = first; i <= last; i++) {
        const uint64_t n = (uint64_t)(i < 0 ? -i : i) * (uint64_t)unit;

        (void)quire_bytes_addf(text, "%s\"%s%" PRIu64, i > first ? " | " : "", i < 0 ? "-" : "",
                               n / power);
        if (n % power != 0) {
            (void)quire_bytes_addf(text, ".%0*" PRIu64, (int)places, n % power);
        }
        (void)quire_bytes_addf(text, "\"");
    }
    return (uint32_t)(last - first + 1);
}

/* Whole multiples of a unit that divides 10, 100 or 1000, of any size: their last digits decide.
 * False for other units. */
static bool endings_add(quire_bytes *text, uint64_t unit, bool is_signed)
{
    uint64_t power = 1;
    int n = 0;

    while (n < 3 && power % unit != 0) {
        power *= 10;
        n++;
    }
    if (power % unit != 0) {
        return false;
    }
    (void)quire_bytes_addf(text, "\"0\" |%s (", is_signed ? " \"-\"?" : "");
    for (uint64_t k = unit; k < power; k += unit) {
        (void)quire_bytes_addf(text, "\"%" PRIu64 "\" | ", k);
    }
    (void)quire_bytes_addf(text, "[1-9] [0-9]{0,11}");
    for (uint64_t k = 0; n > 0 && k < power; k += unit) {
        (void)quire_bytes_addf(text, "%s\"%0*" PRIu64 "\"", k == 0 ? " (" : " | ", n, k);
    }
    (void)quire_bytes_addf(text, "%s)", n > 0 ? ")" : "");
    return true;
}

/* The integers among the multiples are those of a whole number: of 0.75 those of 3. */
static void make_whole(quire_decimal *unit)
{
    const quire_bound exact = { .is_there = true, .value = *unit };
    const size_t places = strlen(unit->part);
    const int64_t n = scaled(&exact, (uint32_t)places, true);
    int64_t a = n, b = 1;

    for (size_t k = 0; k < places; k++) {
        b *= 10;
    }
    while (b != 0) { /* a = the greatest common divisor */
        const int64_t rest = a % b;

        a = b;
        b = rest;
    }
    *unit = (quire_decimal){ .whole = (uint64_t)(n / a) };
}

/* A schema with a multipleOf that is no power of ten. */
static int multiples(const schema_maker *m, const schema_place *p, const quire_decimal_range *l,
                     const quire_decimal *unit, quire_bytes *text)
{
    const uint32_t places = (uint32_t)strlen(unit->part);
    const bool is_from_zero =
        l->low.is_there && quire_decimal_is_zero(&l->low.value) && !l->low.is_exclusive;
    const quire_bound exact = { .is_there = true, .value = *unit };

    if (l->low.is_there && l->high.is_there && l->low.value.whole < UINT64_C(1000000000000) &&
        l->high.value.whole < UINT64_C(1000000000000) &&
        multiples_add(text, l, scaled(&exact, places, true), places) > 0) {
        return text->status;
    }
    if (places == 0 && !l->high.is_there && (!l->low.is_there || is_from_zero) &&
        endings_add(text, unit->whole, !l->low.is_there)) {
        return text->status;
    }
    return quire_schema_refuse(m, QUIRE_INVAL, p,
                               "takes a minimum and a maximum with 1 to 1000 multiples between "
                               "them:",
                               "multipleOf");
}

/* multipleOf: *places for a power of ten up to 1, else *unit. *places 0: of integers. Errors as the
 * caller's. */
static int multiple_get(const schema_maker *m, const json_t *schema, const schema_place *p,
                        uint32_t *places, quire_decimal *unit)
{
    const json_t *value = json_object_get(schema, "multipleOf");
    size_t n;

    *unit = (quire_decimal){ .whole = 0 };
    if (value == NULL) {
        return QUIRE_OK;
    }
    if (!json_is_number(value) || !(json_number_value(value) > 0.0)) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "not a number above 0 is", "multipleOf");
    }
    if (quire_decimal_of(value, unit) < 0) {
        return quire_schema_refuse(m, QUIRE_LIMIT, p, "too many digits has", "multipleOf");
    }
    n = strlen(unit->part);
    if (unit->whole == (uint64_t)(n == 0) &&
        (n == 0 || (unit->part[n - 1] == '1' && strspn(unit->part, "0") == n - 1))) {
        *places = n < *places ? (uint32_t)n : *places;
        *unit = (quire_decimal){ .whole = 0 }; /* said by the places */
        return QUIRE_OK;
    }
    if (n > 6 || unit->whole > UINT64_C(1000000000)) {
        return quire_schema_refuse(m, QUIRE_LIMIT, p,
                                   "more than nine digits, or six behind the "
                                   "point, has",
                                   "multipleOf");
    }
    if (*places == 0) {
        make_whole(unit);
        unit->whole = unit->whole == 1 ? 0 : unit->whole; /* every integer */
    }
    return QUIRE_OK;
}

int quire_schema_number_add(schema_maker *m, const json_t *schema, const schema_place *p,
                            bool is_integer, quire_bytes *text)
{
    const bool has_multiple = json_object_get(schema, "multipleOf") != NULL;
    quire_decimal_range l = { .places = is_integer ? 0 : QUIRE_DECIMAL_PART_DIGITS };
    quire_decimal unit;
    size_t n_before;
    int rc;

    QUIRE_TRY(bound_get(m, schema, p, true, &l.low));
    QUIRE_TRY(bound_get(m, schema, p, false, &l.high));
    QUIRE_TRY(multiple_get(m, schema, p, &l.places, &unit));
    if (!l.low.is_there && !l.high.is_there && !has_multiple) {
        return quire_bytes_addf(text, is_integer ? "integer" : "number");
    }
    if (l.low.is_there && l.high.is_there &&
        quire_decimal_compare(&l.low.value, &l.high.value) > 0) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "above the maximum is the", "minimum");
    }
    (void)quire_bytes_addf(text, "(");
    n_before = text->n;
    rc = quire_decimal_is_zero(&unit) ? QUIRE_INVAL : multiples(m, p, &l, &unit, text);
    if (rc < 0 && !quire_decimal_is_zero(&unit) && !m->skips_unknown) {
        return rc;
    }
    if (rc < 0) { /* without a unit, or any number */
        quire_decimal_range_write(&l, text);
    }
    if (text->status == QUIRE_OK && text->n == n_before) {
        return quire_schema_refuse(m, QUIRE_INVAL, p, "no number is within the bounds of",
                                   is_integer ? "integer" : "number");
    }
    return quire_bytes_addf(text, ")");
}
