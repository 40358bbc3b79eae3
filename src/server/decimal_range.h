/* decimal_range.h - the decimal numbers between two bounds, as a grammar.
 *
 * A grammar compares numbers as texts of decimal digits. Bounds become decimal texts first. The
 * numbers between two bounds are then: those whose whole part lies strictly between, and those with
 * the whole part of a bound and a fraction on the right side of the bound's fraction. Fractions are
 * compared digit by digit. The numbers have no exponent.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_DECIMAL_RANGE_H
#define QUIRE_SERVER_DECIMAL_RANGE_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "base/bytes.h"

#define QUIRE_DECIMAL_WHOLE_DIGITS 16u
#define QUIRE_DECIMAL_PART_DIGITS  16u
#define QUIRE_DECIMAL_WHOLE_MAX    UINT64_C(9999999999999999)

typedef struct quire_decimal {
    bool is_negative; /* -0 is not */
    uint64_t whole;
    char part[QUIRE_DECIMAL_PART_DIGITS + 1]; /* digits behind the point, no zeros at the end */
} quire_decimal;

/* The shortest decimal number that reads as the value. Errors: QUIRE_RANGE (more than 16 digits
 * before the point; the sign is set), QUIRE_LIMIT (more than 16 behind it). */
int quire_decimal_of(const json_t *value, quire_decimal *out);
bool quire_decimal_is_zero(const quire_decimal *d);
/* < 0, 0, > 0 */
int quire_decimal_compare(const quire_decimal *a, const quire_decimal *b);

/* One end of a range. */
typedef struct quire_bound {
    bool is_there; /* false: no bound on this side */
    bool is_exclusive;
    quire_decimal value;
} quire_bound;

typedef struct quire_decimal_range {
    quire_bound low, high;
    uint32_t places; /* digits behind the point at most, <= QUIRE_DECIMAL_PART_DIGITS */
} quire_decimal_range;

/* Append the numbers of a range as alternatives; nothing when there are none. Errors: in text. */
void quire_decimal_range_write(const quire_decimal_range *range, quire_bytes *text);

#endif /* QUIRE_SERVER_DECIMAL_RANGE_H */
